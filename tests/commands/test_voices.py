"""Test `ane voices` as a user runs it, on tiny checkpoints from the golden set."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ane.audio import write
from ane.bundles.writing import write_bundle
from ane.cli import main
from ane.system import paths
from ane.voices import Voice, load_voice, mix_voices, save_voice

RATE = 22050


@pytest.fixture
def bundle(tmp_path, golden_model) -> Path:
    """A bundle of the golden set's tiny checkpoints with a voice."""
    voice = tmp_path / "builtin.safetensors"
    save_voice(voice, latents(1.0, "builtin"))
    return write_bundle(golden_model.contents(), tmp_path / "bundle", voices={"builtin": voice}).path


@pytest.fixture
def ane(bundle, succeed):
    """``ane("list", "--json")``: the command's output; it must succeed."""
    return lambda *arguments: succeed("voices", *arguments, "--bundle", bundle)


@pytest.fixture
def refused(bundle, complain):
    """``refused("add", …)``: the one line that the command complains with, having written nothing."""
    return lambda *arguments: complain("voices", *arguments, "--bundle", bundle)


@pytest.fixture
def clips(tmp_path) -> list[Path]:
    (tmp_path / "clips").mkdir()
    files = [tmp_path / "clips" / f"{number}.wav" for number in range(2)]
    for number, file in enumerate(files):
        time = np.arange(RATE * (1 + 6 * number)) / RATE  # the second clip is longer than six seconds
        write(file, (0.4 * np.sin(2 * np.pi * (150 + 200 * time) * time)).astype(np.float32), RATE)
    return files


def latents(value: float, name: str = "") -> Voice:
    return Voice(np.full((1, 32), value, np.float32), np.full((1, 80), value, np.float32), name)


def stored(name: str) -> Voice:
    return load_voice(paths.voices_dir() / f"{name}.safetensors")


def test_an_added_voice_is_listed(ane, clips):
    ane("add", *clips, "-o", "pat")
    listed = {voice["name"]: voice["files"] for voice in json.loads(ane("list", "--json"))}
    assert list(listed) == ["builtin", "pat"]
    assert listed["pat"] == [str(paths.voices_dir() / "pat.safetensors")]
    voice = stored("pat")
    assert (voice.source, voice.from_clips) == ("0.wav, 1.wav", True)
    assert (voice.ar.shape, voice.diffusion.shape) == ((1, 32), (1, 80))


def test_tables_name_voices_literally_and_the_number_of_their_clips(ane, clips):
    ane("add", clips[0], "-o", "[bold]pat")
    shutil.copytree(clips[0].parent, paths.voices_dir() / "sue")
    listed = ane("list")
    assert "[bold]pat" in listed
    assert "2 clips" in listed


def test_latents_of_another_model_are_not_added_nor_pooled_with_clips(refused, clips, tmp_path):
    save_voice(tmp_path / "pat.pth", Voice(np.ones((1, 1024), np.float32), np.ones((1, 2048), np.float32), "pat"))
    assert "1024 and 2048" in refused("add", tmp_path / "pat.pth", "-o", "pat")
    save_voice(tmp_path / "pat.pth", latents(2.0))
    assert "ane voices mix" in refused("add", clips[0], tmp_path / "pat.pth", "-o", "pat")


def test_a_stored_voice_is_replaced_only_by_force(ane, refused, clips):
    ane("add", clips[0], "-o", "pat")
    before = stored("pat").ar
    assert "--force" in refused("add", clips[1], "-o", "pat")
    np.testing.assert_array_equal(stored("pat").ar, before)
    ane("add", clips[1], "-o", "pat", "--force")
    assert not np.array_equal(stored("pat").ar, before)


@pytest.mark.parametrize("name", ["random", "a/b", "", "..", "builtin", "~pat", "pat\n", "?", "pat.MP3", "./pat"])
def test_names_that_could_not_be_found_again_are_refused(refused, clips, name):
    assert "choose" in refused("add", clips[0], "-o", name)


def test_a_mix_is_stored_under_its_name(ane, clips):
    ane("add", *clips, "-o", "pat")
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


@pytest.mark.parametrize("arguments", [("mix", "builtin"), ("add", "CLIP")])
def test_a_voice_goes_to_a_file_where_a_path_or_a_suffix_is_given(ane, clips, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    arguments = [clips[0] if word == "CLIP" else word for word in arguments]
    for output in ("mix.pth", "folder/mix.safetensors"):
        ane(*arguments, "-o", output)
        assert (tmp_path / output).is_file()
    assert not paths.voices_dir().exists()
    with pytest.raises(SystemExit):
        ane(*arguments)


def test_clips_are_encoded_for_export(ane, clips, tmp_path):
    ane("add", *clips, "-o", "pat")
    ane("mix", clips[0].parent, "-o", tmp_path / "v.safetensors")
    np.testing.assert_array_equal(load_voice(tmp_path / "v.safetensors").ar, stored("pat").ar)


def test_an_export_replaces_a_file_only_by_force(ane, refused, tmp_path):
    (tmp_path / "v.pth").write_text("precious")
    assert "--force" in refused("mix", "builtin", "-o", tmp_path / "v.pth")
    assert (tmp_path / "v.pth").read_text() == "precious"
    ane("mix", "builtin", "-o", tmp_path / "v.pth", "--force")


@pytest.mark.parametrize("seed", ["-1", "1.5", "x"])
def test_a_seed_that_is_not_a_whole_number_is_wrong_usage(ane, clips, seed):
    with pytest.raises(SystemExit):
        ane("add", clips[0], "-o", "pat", f"--seed={seed}")


def test_an_empty_list_explains_how_to_add_a_voice(succeed, golden_model):
    assert "ane voices add" in succeed("voices", "list", "--bundle", golden_model.path)
    assert json.loads(succeed("voices", "list", "--bundle", golden_model.path, "--json")) == []


@pytest.mark.parametrize("command", [["voices", "list"], ["say", "-v", "?"], ["read", "-v", "?"]])
def test_the_voice_of_the_default_bundle_has_a_name(command, capsys):
    assert main(command) == 0
    assert capsys.readouterr().out == "heart\n"


def test_stored_voices_are_removed_all_or_none_and_folders_of_clips_are_kept(workplace, complain, succeed, speech):
    folder = workplace / "home" / "voices"
    assert "stored in" in complain("voices", "remove", "anna")
    for name in ("anna", "bert"):
        succeed("voices", "mix", "heart", "-o", name, "--bundle", "demo")
    (folder / "clips").mkdir()
    write(folder / "clips" / "a.wav", speech, RATE)
    assert "clips is a folder of clips" in complain("voices", "remove", "anna", "clips")
    assert "no voice 'heart' is stored" in complain("voices", "remove", "anna", "heart")
    assert f"deleted {folder / 'anna.safetensors'}" in succeed("voices", "remove", "anna")
    assert sorted(path.name for path in folder.iterdir()) == ["bert.safetensors", "clips"]
