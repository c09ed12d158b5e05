"""Test `ane transcribe`, and `ane import` of a Whisper checkpoint, as a user runs them."""

import json
from pathlib import Path

from ane.cli import main
from ane.models.whisper.checkpoints import is_whisper
from ane.models.whisper.decoding import DecodedWindow, WindowDecoder
from ane.models.whisper.transcription import Transcriber


def test_a_converted_bundle_writes_down_what_the_bundle_does_and_is_verified(succeed, complain, whisper, recordings):
    """Of few functions, since each takes a second to build and compare."""
    few = ["--precision", "fp32", "--lanes", "1", "--cache", "io", "--buckets", "prefill=16"]
    printed = succeed("convert", whisper, "--to", "coreml", "-o", "./packages", *few)
    assert "Use it with ane transcribe FILE --model" in printed
    flags = ("--language", "en", "--word-times", "--format", "json", "-q")
    documents = [
        json.loads(succeed("transcribe", recordings, "--model", model, "--backend", backend, *flags))
        for model, backend in ((whisper, "torch:cpu"), ("./packages", "mil"))
    ]
    found, expected = (
        [(one["tokens"], [(word["word"], word["start"]) for word in one["words"]]) for one in document["segments"]]
        for document in documents
    )
    assert found == expected != []
    printed = succeed("verify", "--bundle", "./packages", "--networks", "decoder", "--layers")
    assert "memory_200" in printed
    assert "cross_attn" in printed, "values inside are compared too"
    assert "has no ONNX packages" in complain("transcribe", recordings, "--model", whisper, "--backend", "onnx")


def test_words_are_timed_in_json_and_subtitles(succeed, complain, whisper, recordings, monkeypatch):
    window = DecodedWindow((50364, 39, 68, 50464), -0.1, 0.0, 0.0)
    monkeypatch.setattr(WindowDecoder, "decode", lambda *arguments: window)
    command = ("transcribe", recordings, "--model", whisper, "--language", "en", "--word-times", "-q")
    [first, *_] = json.loads(succeed(*command, "--format", "json"))["segments"]
    assert first["words"][0].keys() == {"word", "start", "end", "probability"}
    assert "<u>" in succeed(*command, "--format", "srt")
    assert "--word-times has no effect on plain text: add --format json, srt or vtt" in complain(*command)


def test_a_directory_of_tortoise_is_not_taken_for_whisper(tmp_path):
    (tmp_path / "autoregressive.pth").write_bytes(b"")
    (tmp_path / "notes.pt").write_bytes(b"not a checkpoint")
    assert not is_whisper(tmp_path)


def test_a_text_that_appears_while_a_recording_is_transcribed_is_kept(capsys, whisper, recordings, monkeypatch):
    def with_the_user(self, *arguments):
        Path("talk.txt").write_text("the user's notes")
        return transcribe(self, *arguments)

    transcribe = Transcriber.transcribe
    monkeypatch.setattr(Transcriber, "transcribe", with_the_user)
    assert main(["transcribe", "a.wav", str(recordings), "--model", str(whisper), "-o", ".", "-q"]) == 1
    assert "talk.txt exists" in capsys.readouterr().err
    assert Path("talk.txt").read_text() == "the user's notes"
    assert Path("a.txt").exists()
