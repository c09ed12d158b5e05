"""Test `ane voices` as a user runs it, on tiny checkpoints from the golden set."""

import numpy as np
import pytest

from ane.system import paths
from ane.voices import Voice, load_voice, mix_voices, save_voice
from tests.commands.conftest import latents


@pytest.fixture
def ane(voiced, succeed):
    """``ane("list", "--json")``: the command's output; it must succeed."""
    return lambda *arguments: succeed("voices", *arguments, "--bundle", voiced)


@pytest.fixture
def refused(voiced, complain):
    """``refused("add", …)``: the one line that the command complains with, having written nothing."""
    return lambda *arguments: complain("voices", *arguments, "--bundle", voiced)


def stored(name: str) -> Voice:
    return load_voice(paths.voices_dir() / f"{name}.safetensors")


def test_latents_of_another_model_are_not_added_nor_pooled_with_clips(refused, clips, tmp_path):
    save_voice(tmp_path / "pat.pth", Voice(np.ones((1, 1024), np.float32), np.ones((1, 2048), np.float32), "pat"))
    assert "1024 and 2048" in refused("add", tmp_path / "pat.pth", "-o", "pat")
    save_voice(tmp_path / "pat.pth", latents(2.0))
    assert "ane voices mix" in refused("add", clips[0], tmp_path / "pat.pth", "-o", "pat")


def test_a_mix_is_stored_under_its_name(ane, clips):
    ane("add", *clips, "-o", "pat")
    assert (stored("pat").source, stored("pat").from_clips) == ("0.wav, 1.wav", True)
    ane("mix", "pat:1&builtin:3", "-o", "both")
    mixed = stored("both")
    expected = mix_voices([stored("pat"), latents(1.0)], [1, 3])
    np.testing.assert_array_equal(mixed.ar, expected.ar)
    assert mixed.name == "both"
    assert mixed.source == "mix of 25% pat, 75% builtin"
    assert mixed.from_clips


def test_a_random_voice_can_be_kept(ane):
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        ane("mix", "random", "-o", name, "--seed", seed)
    assert np.array_equal(stored("a").ar, stored("b").ar)
    assert not np.array_equal(stored("a").ar, stored("c").ar)


def test_clips_are_encoded_for_export(ane, clips, tmp_path):
    ane("add", *clips, "-o", "pat")
    ane("mix", clips[0].parent, "-o", tmp_path / "v.safetensors")
    exported = load_voice(tmp_path / "v.safetensors")
    np.testing.assert_array_equal(exported.ar, stored("pat").ar)
    assert exported.decoder == stored("pat").decoder != ""
