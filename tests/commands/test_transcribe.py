"""Test `ane transcribe`, and `ane import` of a Whisper checkpoint, as a user runs them."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ane.bundles.bundle import Bundle
from ane.cli import main
from ane.models.whisper.checkpoints import is_whisper
from ane.models.whisper.decoding import DecodedWindow, WindowDecoder
from ane.models.whisper.transcription import Transcriber, TranscriptionOptions
from tests.imported import imported
from tests.models.whisper.random_whisper import write_hugging_face, write_openai
from tests.tables import rows

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def whisper_file(tmp_path_factory) -> Path:
    return write_openai(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="session")
def whisper(whisper_file, tmp_path_factory) -> Path:
    """The same model as a bundle; tests must not change it."""
    return imported(whisper_file, tmp_path_factory.mktemp("bundles") / "whisper").path


@pytest.fixture(autouse=True)
def decoded_once(monkeypatch) -> None:
    """What random weights write down is unclear at every temperature, of which the first is enough here."""
    monkeypatch.setattr(TranscriptionOptions, "must_retry", lambda *_: False)


@pytest.fixture
def recording(tmp_path) -> Path:
    """2 s of noise at 22.05 kHz, in stereo."""
    path = tmp_path / "talk.flac"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.5, 0.5, (44100, 2)), 22050)
    return path


def run(capsys, *arguments) -> tuple[int, str, str]:
    status = main(list(map(str, arguments)))
    return status, *capsys.readouterr()


@pytest.mark.parametrize("write", [write_openai, write_hugging_face], ids=["openai", "hugging face"])
def test_import_and_transcribe_in_processes_of_their_own(tmp_path, recording, write, python):
    source = write(tmp_path / "source")

    def ane(*arguments) -> subprocess.CompletedProcess:
        return subprocess.run(
            [python, "-m", "ane", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    done = ane("import", source, "-o", "whisper", "--precision", "fp16")
    assert done.returncode == 0, done.stderr
    assert "Use it with ane transcribe FILE --model whisper" in done.stdout
    done = ane("transcribe", recording, "--format", "json", "--language", "en", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["language"] == "en"
    assert found["duration"] == pytest.approx(2.0)


def test_an_imported_bundle_states_its_family_and_files(capsys, whisper_file):
    assert run(capsys, "import", whisper_file, "-o", "./out")[0] == 0
    bundle = Bundle("out")
    bundle.verify()
    assert bundle.family.name == "whisper"
    assert bundle.manifest.source["files"].keys() == {"random.pt"}
    status, _, err = run(capsys, "import", whisper_file, "-o", "./out")
    assert (status, "--force" in err) == (1, True)


def test_a_checkpoint_is_imported_first(complain, whisper_file, recording):
    for model in (whisper_file, whisper_file.parent):
        assert f"`ane import {model} -o NAME`" in complain("transcribe", recording, "--model", model)


def test_a_converted_bundle_writes_down_what_the_bundle_does_and_is_verified(capsys, whisper, recording):
    """Of few functions, since each takes a second to build and compare."""
    few = ["--precision", "fp32", "--lanes", "1", "--cache", "io", "--buckets", "prefill=16"]
    status, out, _ = run(capsys, "convert", whisper, "--to", "coreml", "-o", "./packages", *few)
    assert (status, "Use it with ane transcribe FILE --model" in out) == (0, True)
    found = []
    for model, backend in ((whisper, "torch:cpu"), ("./packages", "mil")):
        status, out, _ = run(
            capsys,
            "transcribe",
            recording,
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
    status, _, err = run(capsys, "transcribe", recording, "--model", whisper, "--backend", "onnx")
    assert (status, "has no ONNX packages" in err) == (1, True)


@pytest.mark.parametrize(("arguments", "message"), rows(__file__, "refusals_of_models.tsv", "conversions of Whisper"))
def test_what_a_whisper_model_lacks_is_not_converted(complain, succeed, whisper_file, arguments, message):
    succeed("import", whisper_file, "-o", "./imported")
    assert message in complain("convert", "./imported", "--to", "coreml", "-o", "./packages", *arguments.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config", "x.json"], "--config has no effect on Whisper checkpoints"),
        (["--revision", "main"], "--revision is for the hub"),
    ],
)
def test_import_flags_that_do_not_apply_are_refused(complain, whisper_file, flags, message):
    assert message in complain("import", whisper_file, "-o", "./out", *flags)


def test_the_suffix_of_the_output_is_the_format_and_beams_are_searched(capsys, whisper, recording):
    assert run(capsys, "transcribe", recording, "--model", whisper, "-o", "talk.vtt", "-q") == (0, "", "")
    assert Path("talk.vtt").read_text(encoding="utf-8").startswith("WEBVTT\n")
    assert (
        run(
            capsys,
            "transcribe",
            recording,
            "--model",
            whisper,
            "-o",
            "x.vtt",
            "--format",
            "json",
            "--language",
            "en",
            "--beam-size",
            "3",
        )[0]
        == 0
    )
    assert json.loads(Path("x.vtt").read_text(encoding="utf-8"))["duration"] == 2


def test_words_are_timed_in_json_and_subtitles(capsys, whisper, recording, monkeypatch):
    window = DecodedWindow((50364, 39, 68, 50464), -0.1, 0.0, 0.0)
    monkeypatch.setattr(WindowDecoder, "decode", lambda *arguments: window)
    flags = ("--model", whisper, "--language", "en", "--word-times", "-q")
    status, out, _ = run(capsys, "transcribe", recording, *flags, "--format", "json")
    words = [word for segment in json.loads(out)["segments"] for word in segment["words"]]
    assert status == 0
    assert words[0].keys() == {"word", "start", "end", "probability"}
    assert "<u>" in run(capsys, "transcribe", recording, *flags, "--format", "srt")[1]
    status, _, err = run(capsys, "transcribe", recording, *flags)
    assert status != 0
    assert "--word-times has no effect on plain text: add --format json, srt or vtt" in err


def test_several_files_are_written_into_a_folder(capsys, whisper, recording, tmp_path):
    other = tmp_path / "other.wav"
    soundfile.write(other, np.zeros(1000), 16000)
    status, out, _ = run(
        capsys, "transcribe", recording, other, "--model", whisper, "--format", "srt", "-o", "subtitles", "-q"
    )
    assert (status, out) == (0, "")
    assert sorted(path.name for path in Path("subtitles").iterdir()) == ["other.srt", "talk.srt"]
    assert Path("subtitles/other.srt").read_text() == ""


def test_silence_and_no_samples_print_nothing(capsys, whisper):
    for samples in (0, 32000):
        soundfile.write("quiet.wav", np.zeros(samples), 16000)
        assert run(capsys, "transcribe", "quiet.wav", "--model", whisper) == (0, "", "")


def test_several_files_are_printed_under_their_names(capsys, whisper):
    for name in ("a.wav", "b.wav"):
        soundfile.write(name, np.zeros(1600), 16000)
    several = ("transcribe", "a.wav", "b.wav", "--model", whisper)
    assert run(capsys, *several)[1] == "a.wav:\nb.wav:\n"
    status, out, _ = run(capsys, *several, "--format", "json", "-o", "-")
    assert status == 0
    assert [json.loads(line)["file"] for line in out.splitlines()] == ["a.wav", "b.wav"]
    assert not Path("-").exists()
    status, _, err = run(capsys, *several, "--format", "srt")
    assert (status, "add -o FOLDER" in err) == (1, True)


def test_a_directory_of_tortoise_is_not_taken_for_whisper(tmp_path):
    (tmp_path / "autoregressive.pth").write_bytes(b"")
    (tmp_path / "notes.pt").write_bytes(b"not a checkpoint")
    assert not is_whisper(tmp_path)


@pytest.mark.parametrize(("arguments", "message"), rows(__file__, "refusals_of_models.tsv", "recordings"))
def test_faults_are_one_line(complain, whisper, recording, arguments, message):
    assert message in complain("transcribe", *arguments.split(), "--model", whisper)


def test_texts_that_a_folder_has_already_are_replaced_by_force_alone(capsys, complain, whisper, recording):
    soundfile.write("a.wav", np.zeros(1600), 16000)
    Path("a.txt").write_text("the user's notes")
    several = ("transcribe", "a.wav", recording, "--model", whisper, "-o", ".")
    assert "a.txt exists: add --force to replace it, or choose another folder" in complain(*several)
    assert Path("a.txt").read_text() == "the user's notes"
    assert run(capsys, *several, "--force", "-q")[0] == 0
    assert Path("a.txt").read_text() == ""


def test_a_text_that_appears_while_a_recording_is_transcribed_is_kept(capsys, whisper, recording, monkeypatch):
    def with_the_user(self, *arguments):
        Path("talk.txt").write_text("the user's notes")
        return transcribe(self, *arguments)

    transcribe = Transcriber.transcribe
    monkeypatch.setattr(Transcriber, "transcribe", with_the_user)
    soundfile.write("a.wav", np.zeros(1600), 16000)
    status, _, err = run(capsys, "transcribe", "a.wav", recording, "--model", whisper, "-o", ".", "-q")
    assert (status, "talk.txt exists" in err) == (1, True)
    assert Path("talk.txt").read_text() == "the user's notes"
    assert Path("a.txt").exists()
