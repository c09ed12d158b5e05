"""Test `ane import` and `ane say` with KittenTTS models."""

import json
from pathlib import Path

import pytest
import soundfile

from ane.bundles.hashes import sha256_of
from ane.bundles.hub import Snapshot
from ane.cli import main
from ane.models.kitten import family
from ane.models.styletts.settings import KittenSettings
from tests.commands.conftest import Complain
from tests.models.kitten.kitten_model import kitten_speaker
from tests.tables import rows


@pytest.fixture(autouse=True)
def bundle(kitty: str) -> str:
    return kitty


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


@pytest.mark.parametrize(("command", "message"), rows(__file__, "refusals_of_models.tsv", "KittenTTS"))
def test_what_cannot_be_done_is_refused(complain: Complain, command: str, message: str) -> None:
    output = ["-o", "a.wav"] if command.startswith("say") and "explain" not in command else []
    assert message in complain(*command.split(), *output)
