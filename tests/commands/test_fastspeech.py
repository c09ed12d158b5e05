"""`ane import` and `ane say` with FastSpeech checkpoints, as a user runs them."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import ane
from ane.backends.torch.backend import TorchBackend
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import sha256_of
from ane.cli import main
from tests.fastspeech_files import write_fastspeech, write_hifigan


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with checkpoint.pt and generator.pth."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.chdir(tmp_path)
    write_fastspeech(tmp_path / "checkpoint.pt")
    write_hifigan(tmp_path / "generator.pth")
    return tmp_path


@pytest.fixture
def bundle(files: Path, capsys: pytest.CaptureFixture) -> Path:
    assert main(["import", "checkpoint.pt", "--vocoder", "generator.pth", "-o", "./bundle"]) == 0
    capsys.readouterr()
    return files / "bundle"


def test_import_and_say_in_processes_of_their_own(files, python):
    for command in (["import", "checkpoint.pt", "--vocoder", "generator.pth", "-o", "./bundle"],
                    ["say", "Hello, world.", "--bundle", "./bundle", "--speed", "1.2", "-o", "x.wav"]):
        result = subprocess.run([python, "-m", "ane", *command], cwd=files, capture_output=True, text=True,
                                timeout=300, check=False)
        assert result.returncode == 0, result.stderr
    assert "speed 1.2" in result.stderr
    assert "Griffin-Lim" not in result.stderr
    info = soundfile.info(files / "x.wav")
    assert (info.samplerate, info.frames % 256) == (22050, 0)
    assert info.frames > 0


def test_what_the_bundle_states(bundle):
    manifest = Bundle(bundle).manifest
    assert manifest.family == "fastspeech"
    assert set(manifest.source["files"]) == {"checkpoint.pt", "generator.pth"}
    assert "tokenizer" not in json.loads((bundle / "bundle.json").read_text())


def test_a_vocoder_with_the_name_of_the_checkpoint_keeps_its_hash(files):
    (files / "sub").mkdir()
    (files / "generator.pth").rename(files / "sub" / "checkpoint.pt")
    assert main(["import", "checkpoint.pt", "--vocoder", "sub/checkpoint.pt", "-o", "./bundle"]) == 0
    assert Bundle(files / "bundle").manifest.source["files"] == {
        "checkpoint.pt": sha256_of(files / "checkpoint.pt"),
        "vocoder/checkpoint.pt": sha256_of(files / "sub" / "checkpoint.pt")}


@pytest.mark.parametrize("name", ["checkpoint.pt", "weights.bin"])
def test_a_checkpoint_is_known_by_its_content(files, name):
    (files / "checkpoint.pt").rename(files / name)
    assert ane.load(name).model.family.name == "fastspeech"


@pytest.mark.parametrize("command", [("import", "foreign.pt", "-o", "./b"),
                                     ("say", "Hi.", "--checkpoints", "foreign.pt", "-o", "x.wav")])
def test_a_checkpoint_of_no_known_model_is_one_clear_line(files, capsys, command):
    torch.save({"layer.weight": torch.zeros(2)}, "foreign.pt")
    assert main(list(command)) == 1
    line = capsys.readouterr().err
    assert "foreign.pt is a checkpoint of no model that this version knows" in line
    assert line.count("\n") == 1


def test_without_a_vocoder_a_line_says_how_to_add_one(files, capsys):
    assert main(["import", "checkpoint.pt", "-o", "./bundle", "--precision", "fp16"]) == 0
    assert main(["say", "Hello.", "--bundle", "./bundle", "-o", "x.wav"]) == 0
    assert "import the model again with --vocoder" in capsys.readouterr().err


def test_from_python(bundle, files):
    speech = ane.load(bundle).speak("Hello.", speed=1.1)
    assert (speech.sample_rate, speech.speed) == (22050, 1.1)
    assert ane.load(files / "checkpoint.pt").speak("Hello.").notes


def test_lines_and_json(bundle, files, capsys):
    (files / "text.txt").write_text("One line.\n\nAnother line.\n", encoding="utf-8")
    assert main(["say", "-f", "text.txt", "--lines", "--json", "--bundle", "./bundle", "-o", "x.wav"]) == 0
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [fact["chunks"] for fact in facts] == [["One line."], ["Another line."]]
    assert facts[0]["speed"] == 1.0
    assert not {"seed", "voice", "codes", "preset"} & set(facts[0])
    assert (files / "x-2.wav").is_file()


def test_lines_share_passes(bundle, files, monkeypatch):
    """Nine lines take two calls of each side of FastSpeech, of eight lines and of one, and sound as each does alone."""
    lines = [f"This is line {number}." for number in range(9)]
    (files / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    calls, run = [], TorchBackend.run

    def counted(self, stage, **inputs):
        calls.append((stage, len(next(iter(inputs.values())))))
        return run(self, stage, **inputs)

    monkeypatch.setattr(TorchBackend, "run", counted)
    assert main(["say", "-f", "text.txt", "--lines", "--bundle", "./bundle", "-o", "x.wav"]) == 0
    assert [call for call in calls if call[0] != "vocoder"] == [("text", 8), ("text", 1), ("mel", 8), ("mel", 1)]
    assert main(["say", lines[3], "--bundle", "./bundle", "-o", "alone.wav"]) == 0
    together, alone = (soundfile.read(files / name)[0] for name in ("x-4.wav", "alone.wav"))
    assert len(together) == len(alone)
    assert np.abs(together - alone).max() < 1e-3


def test_stream_to_a_file(bundle, files, capsys):
    text = "This sentence is one of several. " * 6
    assert main(["say", text, "--stream", "--bundle", "./bundle", "--speed", "1.5", "-o", "x.wav"]) == 0
    assert "the first sound after" in capsys.readouterr().err
    whole = ane.load(bundle).speak(text, speed=1.5)
    assert soundfile.info(files / "x.wav").frames == len(whole.audio)


def test_padding_is_chosen_at_import(files):
    (files / "padding.json").write_text('{"padding": "published"}')
    assert main(["import", "checkpoint.pt", "--config", "padding.json", "-o", "./bundle"]) == 0
    assert Bundle(files / "bundle").config("fastspeech").padding == "published"


@pytest.mark.parametrize("flags", [
    ("-v", "rms"), ("--preset", "fast"), ("--candidates", "2"), ("--temperature", "0"),
    ("--normaliser", "english"), ("--lanes", "2"), ("--noise", "1"), ("--seed", "0")])
def test_an_option_of_other_models_is_refused(bundle, capsys, flags):
    assert main(["say", "Hello.", "--bundle", str(bundle), "-o", "x.wav", *flags]) == 1
    line = capsys.readouterr().err
    flag = "--voice" if flags[0] == "-v" else flags[0]
    assert f"{flag} has no effect on FastSpeech models, and bundle is one; leave it out" in line
    assert line.count("\n") == 1


@pytest.mark.parametrize("value", ["0", "nan", "9"])
def test_a_speed_out_of_range_is_refused(bundle, capsys, value):
    assert main(["say", "Hello.", "--bundle", str(bundle), "-o", "x.wav", "--speed", value]) == 1
    assert "--speed must be from 0.25 to 4" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "fault"), [
    (("import", "generator.pth", "-o", "./b"), "is a vocoder, not a FastSpeech checkpoint"),
    (("say", "x", "--checkpoints", "generator.pth", "-o", "x.wav"), "import both, with `ane import CHECKPOINT.pt"),
    (("convert", "checkpoint.pt", "--to", "coreml", "-o", "./c"), "it is a file; import a checkpoint first"),
    (("import", "checkpoint.pt", "--vocoder", "none.pth", "-o", "./b"), "cannot read none.pth"),
    (("import", "checkpoint.pt", "--vocoder", "checkpoint.pt", "-o", "./b"), "is not a HiFi-GAN generator"),
    (("import", "checkpoint.pt", "--revision", "main", "-o", "./b"), "--revision is for the hub; checkpoint.pt is a"),
    (("import", "none.pt", "-o", "./b"), "neither a directory, a file nor a repository"),
    (("say", "x", "--precision", "int8", "--bundle", "./bundle", "-o", "x.wav"), "precision int8 packs the layers"),
    (("say", "--preset", "?", "--bundle", "./bundle"), "has no presets: add --bundle with a Tortoise model"),
    (("say", "x", "--backend", "onnx", "--bundle", "./bundle", "-o", "x.wav"), "no ONNX packages"),
    (("say", "x", "--backend", "mil", "--bundle", "./bundle", "-o", "x.wav"), "`ane convert bundle --to coreml"),
    (("verify", "--bundle", "./bundle"), "make them with `ane convert bundle --to coreml -o DIR`"),
    (("plan", "--bundle", "./bundle"), "make them with `ane convert bundle --to coreml -o DIR`")])
def test_what_cannot_be_done_is_one_line(bundle, capsys, command, fault):
    assert main(list(command)) == 1
    line = capsys.readouterr().err
    assert fault in line
    assert line.count("\n") == 1


def test_a_book_is_narrated(bundle, files, capsys):
    (files / "book.txt").write_text("One line.\n\nAnother line.\n", encoding="utf-8")
    command = ["read", "book.txt", "-o", "book.wav", "--bundle", "./bundle", "--speed", "1.1"]
    assert main(command) == 0
    assert soundfile.info("book.wav").samplerate == 22050
    assert main(command) == 0
    assert "0 of 2 chunks spoken now" in capsys.readouterr().err
    assert main([*command, "--voice", "slt"]) == 1
    assert "--voice has no effect on FastSpeech models" in capsys.readouterr().err
