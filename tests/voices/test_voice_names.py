"""Names of voices, the files they find, and the arithmetic of mixes."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ane.system.errors import UserError
from ane.voices import Voice, check_voice_name, find_voice, list_voices, mix_voices, parse_mix

ROW = npst.arrays(np.float32, (1, 8), elements=st.floats(-60, 60, width=32))
WEIGHT = st.floats(0, 1e6, allow_subnormal=True)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "voices"


def touch(*files: Path) -> None:
    """Create empty files: finding looks at names alone."""
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


# finding

def test_the_clips_of_a_folder_are_sorted_by_name(folder):
    pat = folder / "pat"
    touch(pat / "2.wav", pat / "1.MP3", pat / "3.ogg", pat / "notes.txt", pat / "._1.wav")
    touch(pat / "pat.pth")      # upstream's copy of the clips
    assert find_voice("pat", [folder]).files == (pat / "1.MP3", pat / "2.wav", pat / "3.ogg")
    assert find_voice(str(pat), []) == find_voice("pat", [folder])


def test_a_folder_with_two_files_of_latents_or_nothing_is_refused(folder):
    (folder / "pat").mkdir(parents=True)
    with pytest.raises(UserError, match="no clips"):
        find_voice(str(folder / "pat"), [])
    touch(folder / "pat" / "one.safetensors")
    touch(folder / "pat" / "two.pth")
    with pytest.raises(UserError, match=r"one\.safetensors, two\.pth"):
        find_voice(str(folder / "pat"), [])


def test_an_earlier_folder_hides_the_same_name_in_a_later_one(tmp_path):
    for folder in ("bundle", "mine"):
        touch(tmp_path / folder / "pat.safetensors")
    touch(tmp_path / "mine" / "emma.pth")
    folders = [tmp_path / "bundle", tmp_path / "missing", tmp_path / "mine"]
    assert {name: found.files[0].parent.name for name, found in list_voices(folders).items()} == {
        "emma": "mine", "pat": "bundle"}


def test_a_stored_voice_hides_its_clips(folder):
    touch(folder / "pat" / "0.wav")
    touch(folder / "pat.safetensors")
    assert find_voice("pat", [folder]).files == (folder / "pat.safetensors",)


def test_an_unknown_name_is_refused_with_similar_and_known_names(folder):
    touch(folder / "william.safetensors")
    touch(folder / "emma.safetensors")
    with pytest.raises(UserError, match=r"'wiliam'.*did you mean william\? the voices are emma, william, and random"):
        find_voice("wiliam", [folder])
    for number in range(20):
        touch(folder / f"extra{number}.safetensors")
    with pytest.raises(UserError, match="shows all 22"):
        find_voice("zzz", [folder])


def test_without_voices_the_message_says_how_to_add_one(folder):
    with pytest.raises(UserError, match="ane voices add pat"):
        find_voice("pat", [folder])


@pytest.mark.parametrize("path", ["./pat", "some/pat", "pat.wav", "pat.pth", "/nowhere/pat"])
def test_a_path_that_does_not_exist_is_not_looked_up_as_a_name(folder, path):
    touch(folder / "pat.safetensors")
    with pytest.raises(UserError, match="no such voice file or folder"):
        find_voice(path, [folder])


def test_a_name_is_looked_up_before_a_path(folder, tmp_path, monkeypatch):
    touch(folder / "pat.safetensors")
    touch(tmp_path / "pat" / "0.wav")
    monkeypatch.chdir(tmp_path)
    assert find_voice("pat", [folder]).files == (folder / "pat.safetensors",)
    assert find_voice("pat", []).files == (Path("pat/0.wav"),)
    assert find_voice("./pat", [folder]).name == "pat"


@pytest.mark.parametrize("name", ["", " pat", "pat ", "x\ny", "x\x1b[31m", "x\0", "lone\ud800", ".pat", "-pat", "~pat",
                                  "a/b", "a\\b", "a&b", "a:b", "random", "pat.wav", "pat.pth"], ids=ascii)
def test_a_name_that_could_not_be_found_again_is_refused(name):
    with pytest.raises(UserError, match=r"^'.*' cannot name a voice: "):
        check_voice_name(name)


@pytest.mark.parametrize("name", ["pat", "Zoë", "two words", "v1.5", "random2", "老師"])
def test_other_names_are_accepted(folder, name):
    check_voice_name(name)
    touch(folder / f"{name}.safetensors")
    assert find_voice(name, [folder]).name == name


def test_a_deleted_working_directory_has_no_voices(folder, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for name in (".", "pat", "./pat.wav"):
        with pytest.raises(UserError):
            find_voice(name, [folder])


@pytest.mark.parametrize("name", ["x" * 5000, "./" + "x" * 5000, "lone\ud800"], ids=["name", "path", "surrogate"])
def test_a_name_that_no_file_can_have_is_not_found(folder, name):
    with pytest.raises(UserError):
        find_voice(name, [folder])


# mixing

@given(ROW, st.lists(WEIGHT, min_size=1, max_size=5).filter(any))
def test_a_voice_mixed_with_itself_is_itself(row, weights):
    mixed = mix_voices([Voice(row, row[:, :3], "a")] * len(weights), weights)
    assert mixed.ar.dtype == mixed.diffusion.dtype == np.float32
    np.testing.assert_allclose(mixed.ar, row, rtol=2e-7)
    np.testing.assert_allclose(mixed.diffusion, row[:, :3], rtol=2e-7)


@given(ROW, ROW, WEIGHT.filter(lambda weight: weight > 1e-3), WEIGHT, st.floats(1e-3, 1e3))
def test_only_the_ratio_of_weights_matters(a, b, first, second, factor):
    voices = [Voice(a, a, "a"), Voice(b, b, "b")]
    mixed = mix_voices(voices, [first, second])
    np.testing.assert_allclose(mix_voices(voices, [first * factor, second * factor]).ar, mixed.ar, rtol=1e-6, atol=1e-5)
    expected = (first * a.astype(np.float64) + second * b.astype(np.float64)) / (first + second)
    np.testing.assert_allclose(mixed.ar, expected, rtol=1e-6, atol=1e-5)


@given(st.lists(ROW, min_size=1, max_size=5))
def test_a_mix_stays_between_its_voices(rows):
    mixed = mix_voices([Voice(row, row, "a") for row in rows]).ar
    assert np.all(mixed >= np.min(rows, axis=0))
    assert np.all(mixed <= np.max(rows, axis=0))


def test_a_weight_of_zero_leaves_a_voice_out():
    a, b = (Voice(np.full((1, 4), value, np.float32), np.ones((1, 4), np.float32), name, clip_mels=(mel,))
            for name, value, mel in (("a", 1.0, "mel a"), ("b", 9.0, "mel b")))
    mixed = mix_voices([a, b], [2, 0])
    np.testing.assert_array_equal(mixed.ar, a.ar)
    assert mixed.clip_mels == ("mel a",)
    assert mix_voices([a, b]).clip_mels == ("mel a", "mel b")


@pytest.mark.parametrize(("spec", "names", "weights"), [
    ("a", ["a"], None), ("a&b", ["a", "b"], None), (" a & b ", ["a", "b"], None),
    ("a:0.3&b:0.7", ["a", "b"], [0.3, 0.7]),
    ("a : 1 & b:0", ["a", "b"], [1.0, 0.0]), ("x/a.pth:2&random:1e-1", ["x/a.pth", "random"], [2.0, 0.1]),
    (r"C:\voices\a&b", [r"C:\voices\a", "b"], None)])
def test_mixes_are_parsed(spec, names, weights):
    assert parse_mix(spec) == (names, weights)


@pytest.mark.parametrize("spec", ["", "&", "a&", "a&&b", "a:0.3&b", "a&b:1", "a:-1&b:2", "a:nan&b:1", "a:inf&b:1",
                                  "a:0&b:0", ":1"])
def test_malformed_mixes_are_refused(spec):
    with pytest.raises(UserError, match=r"^voice "):
        parse_mix(spec)
