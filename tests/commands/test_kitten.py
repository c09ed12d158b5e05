"""`ane import` and `ane say` with KittenTTS models."""

import io
import json
from pathlib import Path

import pytest
import soundfile

from ane.cli import main
from ane.models.kitten import synthesizer
from tests.models.kitten.kitten_model import VOICES, letters, write_kitten_model


@pytest.fixture(autouse=True)
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an imported bundle; espeak-ng is replaced by the letters of the text."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(synthesizer, "load_espeak", lambda: letters)
    write_kitten_model(tmp_path / "published")
    assert main(["import", "published", "-o", "kitty"]) == 0
    return "kitty"


def test_import_states_the_hashes(tmp_path: Path) -> None:
    manifest = json.loads(next((tmp_path / "home").rglob("bundle.json")).read_text())
    assert (manifest["model"], manifest["name"]) == ("kitten", "kitty")
    hashes = {record["file"]: record["sha256"] for record in manifest["files"].values()}
    assert manifest["source"]["files"] == hashes


def test_say_writes_a_file(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "Hello. Is it you?", "--bundle", bundle, "-v", "Bella", "--speed", "1.2", "-o", "a.wav"]) == 0
    assert "s of audio → a.wav" in capsys.readouterr().err
    assert soundfile.info("a.wav").samplerate == 24000


def test_say_prints_json(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "Hello.", "--bundle", bundle, "--json", "-o", "a.wav"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["voice"], facts["chunks"], facts["backend"]) == (VOICES[1], ["hello."], "onnx:cpu")


def test_a_streamed_text_is_as_long_as_a_whole_one(bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Is this the text, or is it another one? " * 20)))
    assert main(["say", "-f", "-", "--bundle", bundle, "--stream", "-o", "a.wav"]) == 0
    Path("text.txt").write_text("Is this the text, or is it another one? " * 20)
    assert main(["say", "-f", "text.txt", "--bundle", bundle, "-o", "b.wav"]) == 0
    assert soundfile.info("a.wav").frames == soundfile.info("b.wav").frames


def test_a_question_mark_lists_the_voices(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["say", "-v", "?", "--bundle", bundle]) == 0
    assert capsys.readouterr().out == f"Bella, {VOICES[0]}, {VOICES[1]}\n"


@pytest.mark.parametrize(("flags", "message"), [
    (("--seed", "1"), "--seed has no effect on a KittenTTS model"), (("--lines",), "--lines has no effect"),
    (("--backend", "torch"), "--backend has no effect"), (("--speed", "0"), "--speed must be from 0.1 to 10"),
    (("-v", "Luna"), "no voice is named 'Luna'"), (("--steps", "4"), "--steps has no effect"),
])
def test_flags_without_effect_are_refused(bundle: str, flags: tuple[str, ...], message: str,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "hello", "--bundle", bundle, "-o", "a.wav", *flags]) == 1
    assert message in capsys.readouterr().err


def test_flags_of_import_without_effect_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "published", "-o", "other", "--precision", "fp16"]) == 1
    assert "--precision has no effect on a KittenTTS model" in capsys.readouterr().err


def test_a_bundle_is_replaced_on_request_only(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "published", "-o", bundle]) == 1
    assert "add --force to replace it" in capsys.readouterr().err
    assert main(["import", "published", "-o", bundle, "--force"]) == 0


def test_a_damaged_model_is_not_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "published" / "voices.npz").write_bytes(b"damaged")
    assert main(["import", "published", "-o", "other"]) == 1
    assert "cannot be read as voices" in capsys.readouterr().err
    assert not list((tmp_path / "home").rglob("other"))


def test_pauses_and_the_lexicon_are_heeded(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("words.tsv").write_text("you\tme and him\n")
    assert main(["say", "Is it me and him?", "--bundle", bundle, "-o", "a.wav"]) == 0
    assert main(["say", "Is it you? [pause:1s]", "--lexicon", "words.tsv", "--bundle", bundle, "-o", "b.wav"]) == 0
    assert soundfile.info("b.wav").frames == soundfile.info("a.wav").frames + 24000
    assert main(["say", "Is it you?", "--explain", "--bundle", bundle]) == 1
    assert "has no effect on a KittenTTS model" in capsys.readouterr().err



def test_plan_refuses_the_bundle(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--bundle", bundle]) == 1
    assert "is a bundle of KittenTTS, which this command or function cannot use" in capsys.readouterr().err
