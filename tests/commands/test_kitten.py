"""Test `ane import` and `ane say` with KittenTTS models."""

import io
import json
import shutil
from pathlib import Path

import pytest
import soundfile

from ane.bundles.hashes import sha256_of
from ane.bundles.hub import Snapshot
from ane.cli import main
from ane.models.kitten import family, synthesizer
from ane.models.styletts.settings import KittenSettings
from tests.commands.conftest import Complain
from tests.models.kitten.kitten_model import kitten_speaker, letters, write_kitten_model
from tests.tables import rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published model, and the bundle that it becomes; tests must not change them."""
    folder = tmp_path_factory.mktemp("kitten")
    (folder / "home" / "bundles").mkdir(parents=True)
    write_kitten_model(folder / "published")
    assert main(["import", str(folder / "published"), "-o", str(folder / "home" / "bundles" / "kitty")]) == 0
    return folder


@pytest.fixture(autouse=True)
def bundle(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of that bundle, a copy; espeak-ng is replaced by the letters of the text."""
    monkeypatch.setattr(synthesizer, "load_espeak", lambda: letters)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return "kitty"


def test_import_states_the_hashes(tmp_path: Path) -> None:
    manifest = json.loads(next((tmp_path / "home").rglob("bundle.json")).read_text())
    assert (manifest["model"], manifest["name"]) == ("kitten", "kitty")
    hashes = {record["file"]: record["sha256"] for record in manifest["files"].values()}
    assert manifest["source"]["files"] == hashes


def test_the_json_document_is_that_of_every_family(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    facts = []
    for model, own in ((bundle, {"voice", "speed", "tokens"}), ("demo", {"seed", "voice", "codes", "preset"})):
        fast = ("--bundle=demo", "--preset=fastest", "--max-codes", "10") if model == "demo" else ()
        assert main(["say", "Hello.", "--bundle", model, "--json", "-o", "a.wav", *fast]) == 0
        facts.append(json.loads(capsys.readouterr().out).keys() - own)
    assert facts[0] == facts[1]


def test_published_is_what_the_library_speaks(bundle: str) -> None:
    text = "Is it 3.14? It is!"
    assert main(["say", text, "--published", "--bundle", bundle, "-v", "Bella", "-o", "a.wav"]) == 0
    expected = kitten_speaker(Path("published")).speak(text, "Bella", settings=KittenSettings(published=True))
    assert expected.chunks == ["is it three point one four,", "it is,"]
    assert soundfile.info("a.wav").frames == len(expected.audio)


def test_a_folder_is_imported_before_it_speaks(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "Hello.", "--bundle", "./published", "-o", "a.wav"]) == 1
    assert "make a bundle with `ane import published -o NAME`" in capsys.readouterr().err


def test_a_commit_that_was_imported_before_must_have_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def download(repository: str, required: tuple[str, ...], **options: object) -> Snapshot:
        folder = tmp_path / "published"
        return Snapshot("1" * 40, folder, {name: sha256_of(folder / name) for name in required})

    monkeypatch.setattr(family, "download_files", download)
    command = ["import", "KittenML/tiny", "-o", "hub", "--force"]
    assert main(command) == 0
    (tmp_path / "published" / "config.json").write_text((tmp_path / "published" / "config.json").read_text() + "\n")
    assert main(command) == 1
    assert "config.json has SHA-256" in capsys.readouterr().err


def test_a_streamed_text_is_as_long_as_a_whole_one(bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Is this the text, or is it another one? " * 20)))
    assert main(["say", "-f", "-", "--bundle", bundle, "--stream", "-o", "a.wav"]) == 0
    Path("text.txt").write_text("Is this the text, or is it another one? " * 20)
    assert main(["say", "-f", "text.txt", "--bundle", bundle, "-o", "b.wav"]) == 0
    assert soundfile.info("a.wav").frames == soundfile.info("b.wav").frames


@pytest.mark.parametrize(("command", "message"), rows(__file__, "refusals_of_models.tsv", "KittenTTS"))
def test_what_cannot_be_done_is_refused(complain: Complain, command: str, message: str) -> None:
    output = ["-o", "a.wav"] if command.startswith("say") and "explain" not in command else []
    assert message in complain(*command.split(), *output)


def test_pauses_and_the_lexicon_are_heeded(bundle: str) -> None:
    Path("words.tsv").write_text("you\tme and him\n")
    assert main(["say", "Is it me and him?", "--bundle", bundle, "-o", "a.wav"]) == 0
    assert main(["say", "Is it you? [pause:1s]", "--lexicon", "words.tsv", "--bundle", bundle, "-o", "b.wav"]) == 0
    assert soundfile.info("b.wav").frames == soundfile.info("a.wav").frames + 24000
