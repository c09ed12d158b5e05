"""Test `ane import` and `ane say` with KittenTTS models."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

from ane.bundles.hashes import sha256_of
from ane.bundles.hub import Snapshot
from ane.cli import main
from ane.models.kitten import family
from ane.models.styletts.settings import KittenSettings
from tests.models.kitten.kitten_model import kitten_speaker


@pytest.fixture(autouse=True)
def bundle(kitty: str) -> str:
    return kitty


def test_import_states_the_hashes(tmp_path: Path) -> None:
    manifest = json.loads(next((tmp_path / "home").rglob("bundle.json")).read_text())
    assert (manifest["model"], manifest["name"]) == ("kitten", "kitty")
    hashes = {record["file"]: record["sha256"] for record in manifest["files"].values()}
    assert manifest["source"]["files"] == hashes


def test_the_json_document_is_that_of_every_family(bundle: str, succeed: Callable[..., str]) -> None:
    say = ("say", "Hello.", "--json", "-q", "-o", "a.wav", "--bundle")
    kitten = json.loads(succeed(*say, bundle))
    tortoise = json.loads(succeed(*say, "demo", "--preset=fastest", "--max-codes", "10"))
    assert kitten.keys() - {"voice", "speed", "tokens"} == tortoise.keys() - {"seed", "voice", "codes", "preset"}


def test_published_is_what_the_library_speaks(bundle: str) -> None:
    text = "Is it 3.14? It is!"
    assert main(["say", text, "--published", "--bundle", bundle, "-v", "Bella", "-o", "a.wav"]) == 0
    expected = kitten_speaker(Path("published")).speak(text, "Bella", settings=KittenSettings(published=True))
    assert expected.chunks == ["is it three point one four,", "it is,"]
    assert soundfile.info("a.wav").frames == len(expected.audio)


def test_a_commit_that_was_imported_before_must_have_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complain: Callable[..., str]
) -> None:
    def download(repository: str, required: tuple[str, ...], **options: object) -> Snapshot:
        folder = tmp_path / "published"
        return Snapshot("1" * 40, folder, {name: sha256_of(folder / name) for name in required})

    monkeypatch.setattr(family, "download_files", download)
    command = ["import", "KittenML/tiny", "-o", "hub", "--force"]
    assert main(command) == 0
    (tmp_path / "published" / "config.json").write_text((tmp_path / "published" / "config.json").read_text() + "\n")
    assert "config.json has SHA-256" in complain(*command)
