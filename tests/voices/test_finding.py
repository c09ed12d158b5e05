"""Voices by name or path: which files they have, and which names are refused."""

from pathlib import Path

import pytest

from ane.system.errors import UserError
from ane.voices import check_voice_name, find_voice, list_voices


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


def test_a_folder_of_clips_hides_upstreams_latents_and_these_hide_a_single_clip(folder):
    touch(folder / "pat" / "0.wav", folder / "pat.pth", folder / "emma.pth", folder / "emma.wav")
    assert find_voice("pat", [folder]).files == (folder / "pat" / "0.wav",)
    assert find_voice("emma", [folder]).files == (folder / "emma.pth",)


def test_at_most_three_similar_names_are_proposed_and_the_folder_is_named(folder):
    touch(*(folder / f"emma{number}.safetensors" for number in range(4)))
    with pytest.raises(UserError) as caught:
        find_voice("emma", [folder])
    assert str(folder) in str(caught.value)
    assert str(caught.value).partition("?")[0].count(" or ") == 2


def test_an_unknown_name_is_refused_with_similar_and_known_names(folder):
    touch(folder / "william.safetensors")
    touch(folder / "emma.safetensors")
    with pytest.raises(UserError, match=r"'wiliam'.*did you mean william\? the voices are emma, william, and random"):
        find_voice("wiliam", [folder])
    for number in range(20):
        touch(folder / f"extra{number}.safetensors")
    with pytest.raises(UserError, match="shows all 22"):
        find_voice("zzz", [folder])


def test_the_error_without_any_voices_explains_how_to_add_one(folder):
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
def test_a_name_that_cannot_be_found_later_is_refused(name):
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
