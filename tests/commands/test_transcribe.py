"""Test `ane transcribe`, and `ane import` of a Whisper checkpoint, as a user runs them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ane.bundles.bundle import Bundle
from ane.cli import main
from ane.models.whisper.checkpoints import is_whisper
from ane.models.whisper.decoding import DecodedWindow, WindowDecoder
from ane.models.whisper.transcription import Transcriber
from tests.tables import rows

ROOT = Path(__file__).parents[2]


def run(capsys, *arguments) -> tuple[int, str, str]:
    status = main(list(map(str, arguments)))
    return status, *capsys.readouterr()


def test_an_imported_bundle_states_its_family_and_files(capsys, whisper_file):
    assert run(capsys, "import", whisper_file, "-o", "./out")[0] == 0
    bundle = Bundle("out")
    bundle.verify()
    assert bundle.family.name == "whisper"
    assert bundle.manifest.source["files"].keys() == {"random.pt"}
    status, _, err = run(capsys, "import", whisper_file, "-o", "./out")
    assert (status, "--force" in err) == (1, True)


def test_a_checkpoint_is_imported_first(complain, whisper_file, recordings):
    for model in (whisper_file, whisper_file.parent):
        assert f"`ane import {model} -o NAME`" in complain("transcribe", recordings, "--model", model)


def test_a_converted_bundle_writes_down_what_the_bundle_does_and_is_verified(capsys, whisper, recordings):
    """Of few functions, since each takes a second to build and compare."""
    few = ["--precision", "fp32", "--lanes", "1", "--cache", "io", "--buckets", "prefill=16"]
    status, out, _ = run(capsys, "convert", whisper, "--to", "coreml", "-o", "./packages", *few)
    assert (status, "Use it with ane transcribe FILE --model" in out) == (0, True)
    found = []
    for model, backend in ((whisper, "torch:cpu"), ("./packages", "mil")):
        status, out, _ = run(
            capsys,
            "transcribe",
            recordings,
            "--model",
            model,
            "--backend",
            backend,
            "--language",
            "en",
            "--word-times",
            "--format",
            "json",
            "-q",
        )
        assert status == 0
        found.append(
            [
                (segment["tokens"], [(word["word"], word["start"]) for word in segment["words"]])
                for segment in json.loads(out)["segments"]
            ]
        )
    assert found[0] == found[1]
    assert found[0]
    status, out, _ = run(capsys, "verify", "--bundle", "./packages", "--networks", "decoder", "--layers")
    assert status == 0
    assert "memory_200" in out
    assert "cross_attn" in out, "values inside are compared too"
    status, _, err = run(capsys, "transcribe", recordings, "--model", whisper, "--backend", "onnx")
    assert (status, "has no ONNX packages" in err) == (1, True)


@pytest.mark.parametrize(("arguments", "message"), rows(__file__, "refusals_of_models.tsv", "conversions of Whisper"))
def test_what_a_whisper_model_lacks_is_not_converted(complain, whisper, arguments, message):
    shutil.copytree(whisper, "imported")
    assert message in complain("convert", "./imported", "--to", "coreml", "-o", "./packages", *arguments.split())


def test_words_are_timed_in_json_and_subtitles(capsys, whisper, recordings, monkeypatch):
    window = DecodedWindow((50364, 39, 68, 50464), -0.1, 0.0, 0.0)
    monkeypatch.setattr(WindowDecoder, "decode", lambda *arguments: window)
    flags = ("--model", whisper, "--language", "en", "--word-times", "-q")
    status, out, _ = run(capsys, "transcribe", recordings, *flags, "--format", "json")
    words = [word for segment in json.loads(out)["segments"] for word in segment["words"]]
    assert status == 0
    assert words[0].keys() == {"word", "start", "end", "probability"}
    assert "<u>" in run(capsys, "transcribe", recordings, *flags, "--format", "srt")[1]
    status, _, err = run(capsys, "transcribe", recordings, *flags)
    assert status != 0
    assert "--word-times has no effect on plain text: add --format json, srt or vtt" in err


def test_a_directory_of_tortoise_is_not_taken_for_whisper(tmp_path):
    (tmp_path / "autoregressive.pth").write_bytes(b"")
    (tmp_path / "notes.pt").write_bytes(b"not a checkpoint")
    assert not is_whisper(tmp_path)


@pytest.mark.parametrize(("arguments", "message"), rows(__file__, "refusals_of_models.tsv", "recordings"))
def test_faults_are_one_line(complain, whisper, recordings, arguments, message):
    assert message in complain("transcribe", *arguments.split(), "--model", whisper)


def test_a_text_that_appears_while_a_recording_is_transcribed_is_kept(capsys, whisper, recordings, monkeypatch):
    def with_the_user(self, *arguments):
        Path("talk.txt").write_text("the user's notes")
        return transcribe(self, *arguments)

    transcribe = Transcriber.transcribe
    monkeypatch.setattr(Transcriber, "transcribe", with_the_user)
    soundfile.write("a.wav", np.zeros(1600), 16000)
    status, _, err = run(capsys, "transcribe", "a.wav", recordings, "--model", whisper, "-o", ".", "-q")
    assert (status, "talk.txt exists" in err) == (1, True)
    assert Path("talk.txt").read_text() == "the user's notes"
    assert Path("a.txt").exists()
