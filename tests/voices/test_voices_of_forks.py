"""Latents as forks of Tortoise store them, the decoder that they belong to, and all of a recording."""

from pathlib import Path

import numpy as np
import pytest
import torch

import ane
from ane import cli
from ane.backends import load_backend
from ane.bundles import open_model
from ane.models.tortoise.settings import Settings
from ane.models.tortoise.voices import cloning_notes, encode_clips
from ane.system.errors import UserError
from ane.voices import load_voice, mix_voices, open_voice, save_voice


@pytest.fixture(scope="module")
def model():
    return open_model("demo")


@pytest.fixture
def latents(model):
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.standard_normal((1, width), dtype=np.float32)) for width in model.widths]


def stored(path: Path, content: object):
    torch.save(content, path)
    return open_voice(path.stem, (path,))


def test_lean_pairs_and_quadruples_are_the_pair_of_latents(latents, tmp_path):
    lean = stored(tmp_path / "cond_latents_d1f79232.pth", tuple(latents))
    full = stored(tmp_path / "cond_latents.pth", (*latents, torch.zeros(1, 2, 80, 7), None))
    assert np.array_equal(lean.ar, full.ar)
    assert np.array_equal(lean.diffusion, full.diffusion)
    assert (lean.decoder, full.decoder) == ("d1f79232", "")


def test_a_latent_for_hifigan_speaks_without_diffusion_alone(latents, tmp_path):
    voice = stored(tmp_path / "hifigan_cond_latents_d1f79232.pth", latents[0])
    pair = stored(tmp_path / "pair.pth", tuple(latents))
    synthesizer = ane.load("demo", "torch")
    spoken = [synthesizer.speak("Hi.", each, seed=1, preset="fastest").audio for each in (voice, pair)]
    assert np.array_equal(*spoken)
    with pytest.raises(UserError, match="preset=fastest"):
        synthesizer.speak("Hi.", voice, seed=1, preset="1x10")
    with pytest.raises(UserError, match="cannot be mixed"):
        mix_voices([voice, pair])


def test_a_stored_voice_keeps_the_decoder_that_made_it(latents, tmp_path):
    for name, content in (("hifigan_cond_latents_d1f79232", latents[0]), ("cond_latents_d1f79232", tuple(latents))):
        voice = stored(tmp_path / f"{name}.pth", content)
        save_voice(tmp_path / f"{name}.safetensors", voice)
        again = load_voice(tmp_path / f"{name}.safetensors")
        assert again.decoder == "d1f79232"
        assert again.has_diffusion == voice.has_diffusion


def test_a_voice_of_another_decoder_is_named(model, latents, tmp_path, monkeypatch):
    voice = stored(tmp_path / "cond_latents_d1f79232.pth", tuple(latents))
    assert cloning_notes(model, voice) == []                    # the bundle does not state its decoder's file
    monkeypatch.setattr(type(model), "decoder_md5", "d1f79232" + 24 * "0")
    assert cloning_notes(model, voice) == []
    monkeypatch.setattr(type(model), "decoder_md5", 32 * "a")
    assert "made with another decoder (MD5 d1f79232, the model's is aaaaaaaa)" in cloning_notes(model, voice)[0]


def test_all_of_a_recording_is_heard_when_asked_for(model):
    rng = np.random.default_rng(0)
    long, short = (rng.standard_normal(22050 * seconds).astype(np.float32) / 9 for seconds in (14, 6))
    backend = load_backend("torch", model)

    def encoded(clips: list[np.ndarray], mode: str) -> np.ndarray:
        return encode_clips([(clip, 22050) for clip in clips], backend, model.mel_norms, np.random.default_rng(0),
                            mode=mode).ar

    parts = [encoded([long[:132300]], "first"), encoded([long[132300:264600]], "first"),
             encoded([long[-132300:]], "first"), encoded([short], "first")]
    assert np.allclose(encoded([long], "slices"), np.mean(parts[:3], axis=0), atol=1e-5)
    assert np.allclose(encoded([long, short], "slices"), np.mean(parts, axis=0), atol=1e-5)
    assert np.allclose(encoded([long, short], "whole"), np.mean([np.mean(parts[:3], axis=0), parts[3]], axis=0),
                       atol=1e-5)


def test_a_clip_mode_for_stored_latents_is_refused(latents, tmp_path, capsys):
    torch.save(tuple(latents), tmp_path / "a.pth")
    written = str(tmp_path / "b.safetensors")
    assert cli.main(["voices", "add", str(tmp_path / "a.pth"), "-o", written, "--bundle", "demo",
                     "--clip-mode", "whole"]) != 0
    assert "--clip-mode has no effect" in capsys.readouterr().err
    settings, synthesizer = Settings.of("fastest", clip_mode="whole"), ane.load("demo", "torch")
    with pytest.raises(UserError, match="clip_mode has no effect on voice a"):
        synthesizer.speak("Hi.", str(tmp_path / "a.pth"), settings=settings)
