"""Test how voices are found by name or path, mixes, and voices of Tortoise's forks."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import ane
from ane import cli
from ane.backends import load_backend
from ane.bundles import open_model
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.voices import cloning_notes, encode_clips
from ane.voices import (
    Voice,
    check_voice_name,
    find_voice,
    list_voices,
    load_voice,
    mix_voices,
    open_voice,
    parse_mix,
    save_voice,
)
from tests.refusals import assert_refused, refusal_of


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "voices"


def touch(*files: Path) -> None:
    """Create empty files; only names matter to find_voice."""
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def test_the_clips_of_a_folder_are_sorted_by_name(folder):
    pat = folder / "pat"
    touch(pat / "2.wav", pat / "1.MP3", pat / "3.ogg", pat / "notes.txt", pat / "._1.wav")
    touch(pat / "pat.pth")  # a copy of the clips, as upstream makes it
    assert find_voice("pat", [folder]).files == (pat / "1.MP3", pat / "2.wav", pat / "3.ogg")
    assert find_voice(str(pat), []) == find_voice("pat", [folder])


def test_a_folder_with_two_files_of_latents_or_nothing_is_refused(folder):
    (folder / "pat").mkdir(parents=True)
    assert_refused("neither clips", lambda: find_voice(str(folder / "pat"), []))
    touch(folder / "pat" / "one.safetensors")
    touch(folder / "pat" / "two.pth")
    assert_refused(r"one\.safetensors, two\.pth", lambda: find_voice(str(folder / "pat"), []))


def test_an_earlier_folder_hides_the_same_name_in_a_later_one(tmp_path):
    for folder in ("bundle", "mine"):
        touch(tmp_path / folder / "pat.safetensors")
    touch(tmp_path / "mine" / "emma.pth")
    folders = [tmp_path / "bundle", tmp_path / "missing", tmp_path / "mine"]
    assert {name: found.files[0].parent.name for name, found in list_voices(folders).items()} == {
        "emma": "mine",
        "pat": "bundle",
    }


def test_a_stored_voice_hides_clips_these_hide_upstreams_latents_and_these_a_single_clip(folder):
    touch(folder / "pat" / "0.wav", folder / "pat.pth", folder / "emma.pth", folder / "emma.wav")
    assert find_voice("pat", [folder]).files == (folder / "pat" / "0.wav",)
    assert find_voice("emma", [folder]).files == (folder / "emma.pth",)
    touch(folder / "pat.safetensors")
    assert find_voice("pat", [folder]).files == (folder / "pat.safetensors",)


def test_an_unknown_name_is_refused_with_the_folder_and_at_most_three_similar_names(folder):
    assert_refused(r"ane voices add clip\.wav -o pat", find_voice, "pat", [folder])
    touch(folder / "william.safetensors", folder / "emma.safetensors")
    assert_refused(
        r"'wiliam'.*did you mean william\? the voices are emma, william, and random", find_voice, "wiliam", [folder]
    )
    touch(*(folder / f"emma{number}.safetensors" for number in range(20)))
    assert_refused("shows all 22", find_voice, "zzz", [folder])
    line = refusal_of(find_voice, "emm", [folder])
    assert str(folder) in line
    assert line.partition("?")[0].count(" or ") == 2


@pytest.mark.parametrize("path", ["./pat", "some/pat", "pat.wav", "pat.pth", "/nowhere/pat"])
def test_a_path_that_does_not_exist_is_not_looked_up_as_a_name(folder, path):
    touch(folder / "pat.safetensors")
    assert_refused(r"no such file or folder in |there is no folder ", find_voice, path, [folder])


def test_a_name_is_looked_up_before_a_path(folder, tmp_path, monkeypatch):
    touch(folder / "pat.safetensors")
    touch(tmp_path / "pat" / "0.wav")
    monkeypatch.chdir(tmp_path)
    assert find_voice("pat", [folder]).files == (folder / "pat.safetensors",)
    assert find_voice("pat", []).files == (Path("pat/0.wav"),)
    assert find_voice("./pat", [folder]).name == "pat"


@pytest.mark.parametrize(
    "name",
    [
        "",
        " pat",
        "pat ",
        "x\ny",
        "x\x1b[31m",
        "x\0",
        "lone\ud800",
        ".pat",
        "-pat",
        "~pat",
        "a/b",
        "a\\b",
        "a&b",
        "a:b",
        "random",
        "pat.wav",
        "pat.pth",
    ],
    ids=ascii,
)
def test_a_name_that_cannot_be_found_later_is_refused(name):
    assert_refused(r"^'.*' cannot name a voice: ", check_voice_name, name)


def test_other_names_are_accepted(folder):
    for name in ("pat", "Zoë", "two words", "v1.5", "random2", "老師"):
        check_voice_name(name)
        touch(folder / f"{name}.safetensors")
        assert find_voice(name, [folder]).name == name


def test_a_name_that_no_file_can_have_and_a_deleted_working_directory_have_no_voices(folder, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for name in (".", "pat", "./pat.wav", "x" * 5000, "./" + "x" * 5000, "lone\ud800"):
        refusal_of(find_voice, name, [folder])


ROW = npst.arrays(np.float32, (1, 8), elements=st.floats(-60, 60, width=32))
WEIGHT = st.floats(0, 1e6, allow_subnormal=True)


@given(ROW, ROW, WEIGHT.filter(lambda weight: weight > 1e-3), WEIGHT, st.floats(1e-3, 1e3))
def test_only_the_ratio_of_weights_matters(a, b, first, second, factor):
    voices = [Voice(a, a, "a"), Voice(b, b, "b")]
    mixed = mix_voices(voices, [first, second])
    np.testing.assert_allclose(mix_voices(voices, [first * factor, second * factor]).ar, mixed.ar, rtol=1e-6, atol=1e-5)
    expected = (first * a.astype(np.float64) + second * b.astype(np.float64)) / (first + second)
    np.testing.assert_allclose(mixed.ar, expected, rtol=1e-6, atol=1e-5)


@given(st.lists(ROW, min_size=1, max_size=5))
def test_a_mix_is_between_its_voices(rows):
    mixed = mix_voices([Voice(row, row[:, :3], "a") for row in rows])
    assert mixed.ar.dtype == mixed.diffusion.dtype == np.float32
    for latent, width in ((mixed.ar, 8), (mixed.diffusion, 3)):
        assert np.all(latent >= np.min(rows, axis=0)[:, :width])
        assert np.all(latent <= np.max(rows, axis=0)[:, :width])


def test_a_weight_of_zero_leaves_a_voice_out():
    a, b = (
        Voice(np.full((1, 4), value, np.float32), np.ones((1, 4), np.float32), name, from_clips=clips)
        for name, value, clips in (("a", 1.0, False), ("b", 9.0, True))
    )
    mixed = mix_voices([a, b], [2, 0])
    np.testing.assert_array_equal(mixed.ar, a.ar)
    assert not mixed.from_clips
    assert mix_voices([a, b]).from_clips


@pytest.mark.parametrize(
    ("spec", "names", "weights"),
    [
        ("a", ["a"], None),
        ("a&b", ["a", "b"], None),
        (" a & b ", ["a", "b"], None),
        ("a:0.3&b:0.7", ["a", "b"], [0.3, 0.7]),
        ("a : 1 & b:0", ["a", "b"], [1.0, 0.0]),
        ("x/a.pth:2&random:1e-1", ["x/a.pth", "random"], [2.0, 0.1]),
        (r"C:\voices\a&b", [r"C:\voices\a", "b"], None),
    ],
)
def test_mixes_are_parsed(spec, names, weights):
    assert parse_mix(spec) == (names, weights)


@pytest.mark.parametrize(
    "spec", ["", "&", "a&", "a&&b", "a:0.3&b", "a&b:1", "a:-1&b:2", "a:nan&b:1", "a:inf&b:1", "a:0&b:0", ":1"]
)
def test_malformed_mixes_are_refused(spec):
    assert_refused(r"^voice ", parse_mix, spec)


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
    assert_refused("preset=fastest", synthesizer.speak, "Hi.", voice, seed=1, preset="1x10")
    assert_refused("cannot be mixed", mix_voices, [voice, pair])


def test_a_stored_voice_keeps_the_decoder_that_made_it(latents, tmp_path):
    for name, content in (("hifigan_cond_latents_d1f79232", latents[0]), ("cond_latents_d1f79232", tuple(latents))):
        voice = stored(tmp_path / f"{name}.pth", content)
        save_voice(tmp_path / f"{name}.safetensors", voice)
        again = load_voice(tmp_path / f"{name}.safetensors")
        assert (again.decoder, again.has_diffusion) == ("d1f79232", voice.has_diffusion)


def test_a_voice_of_another_decoder_is_named(model, latents, tmp_path, monkeypatch):
    voice = stored(tmp_path / "cond_latents_d1f79232.pth", tuple(latents))
    assert cloning_notes(model, voice) == []  # the bundle does not record its decoder's file
    monkeypatch.setattr(type(model), "decoder_md5", "d1f79232" + 24 * "0")
    assert cloning_notes(model, voice) == []
    monkeypatch.setattr(type(model), "decoder_md5", 32 * "a")
    assert (
        "made with another decoder (MD5 d1f79232, but the model's decoder has aaaaaaaa)"
        in cloning_notes(model, voice)[0]
    )


def test_all_of_a_recording_is_heard_when_asked_for(model):
    rng = np.random.default_rng(0)
    long, short = (rng.standard_normal(22050 * seconds).astype(np.float32) / 9 for seconds in (14, 6))
    backend = load_backend("torch", model)

    def encoded(clips: list[np.ndarray], mode: str) -> np.ndarray:
        return encode_clips(
            [(clip, 22050) for clip in clips], backend, model.mel_norms, np.random.default_rng(0), mode=mode
        ).ar

    slices = long[:132300], long[132300:264600], long[-132300:]
    parts = [encoded([each], "first") for each in (*slices, short)]
    assert np.allclose(encoded([long], "slices"), np.mean(parts[:3], axis=0), atol=1e-5)
    assert np.allclose(encoded([long, short], "slices"), np.mean(parts, axis=0), atol=1e-5)
    whole = np.mean([np.mean(parts[:3], axis=0), parts[3]], axis=0)
    assert np.allclose(encoded([long, short], "whole"), whole, atol=1e-5)


def test_a_clip_mode_for_stored_latents_is_refused(latents, tmp_path, capsys):
    torch.save(tuple(latents), tmp_path / "a.pth")
    written = str(tmp_path / "b.safetensors")
    assert (
        cli.main(["voices", "add", str(tmp_path / "a.pth"), "-o", written, "--bundle", "demo", "--clip-mode", "whole"])
        != 0
    )
    assert "--clip-mode has no effect" in capsys.readouterr().err
    settings, synthesizer = TortoiseSettings.of("fastest", clip_mode="whole"), ane.load("demo", "torch")
    assert_refused(
        "clip_mode has no effect on voice a",
        lambda: synthesizer.speak("Hi.", str(tmp_path / "a.pth"), settings=settings),
    )
