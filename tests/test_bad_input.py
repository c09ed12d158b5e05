"""Whatever a user gets wrong: one clear line, a non-zero exit, and nothing half-written."""

import io
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from ane.cli import main

RATE = 22050


@pytest.fixture
def complain(capsys, tmp_path, monkeypatch):
    """``complain(*arguments)``: run the command, check that it fails by the rules, return the line it prints."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    workplace = tmp_path / "work"
    workplace.mkdir(exist_ok=True)
    monkeypatch.chdir(workplace)

    def run(*arguments: str) -> str:
        before = files(tmp_path)
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if line.startswith("ane: error:")]
        assert code == 1
        assert len(lines) == 1, err
        assert err.splitlines()[-1] == lines[0]
        assert "Traceback" not in err
        assert out == ""
        assert files(tmp_path) == before
        return lines[0]

    return run


def files(directory: Path) -> set[Path]:
    """All files except the cache's, which may change at any time."""
    return {path for path in directory.rglob("*") if path.is_file() and "cache" not in path.parts}


@pytest.fixture
def speech() -> np.ndarray:
    """A second of a buzzing tone at 22050 Hz."""
    t = np.arange(RATE) / RATE
    return (0.3 * np.sin(2 * np.pi * 140 * t) * np.sin(2 * np.pi * 3 * t)).astype(np.float32)


@pytest.fixture
def say(complain):
    """``say(...)``: `ane say` with the fastest preset, a seed and a file to write."""
    return lambda *arguments: complain("say", "--preset", "fastest", "--seed", "1", "-o", "out.wav", *arguments)


# --- text


@pytest.mark.parametrize("text", ["", "   \n"])
def test_empty_text(say, text):
    assert "nothing to say" in say(text)


def test_text_of_only_symbols(say):
    assert "*** --- ***" in say("*** --- ***")


def test_text_over_the_decoders_limit_with_splitting_off(say):
    line = say("--no-split", "several thousand words and more " * 60)
    assert "tokens" in line
    assert "--no-split" in line


def test_text_file_that_is_not_there_or_not_text(say, tmp_path):
    assert "missing.txt" in say("-f", "missing.txt")
    (tmp_path / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    assert "UTF-8" in say("-f", tmp_path / "latin.txt")


def test_bytes_that_are_not_text_on_standard_input_or_the_command_line(tmp_path):
    """Through a real process: what Python makes of such bytes is decided before the command runs."""
    for arguments, given, where in ((("-f", "-"), b"h\xff", "standard input"),
                                    ((b"h\xff",), b"", "the text on the command line")):
        result = subprocess.run([sys.executable, "-m", "ane", "say", *arguments, "-o", "x.wav"], input=given,
                                cwd=tmp_path, capture_output=True, timeout=60, check=False)
        assert result.returncode == 1
        assert f"ane: error: {where} is not text in UTF-8 (byte 1)" in result.stderr.decode()
        assert b"Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_lone_surrogate_is_not_text(say):
    assert "not text in UTF-8" in say("hello \ud800")


def test_two_texts_or_none(complain, monkeypatch):
    assert "either TEXT or -f FILE" in complain("say", "hello", "-f", "x.txt", "-o", "out.wav")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert "no text given: pass TEXT, -f FILE or pipe it in" in complain("say", "-o", "out.wav")


def test_nothing_piped_in(complain, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "no text given" in complain("say", "--preset", "fastest", "-o", "out.wav")


# --- voices and clips


def test_unknown_voice_names_near_ones(say):
    assert "rms" in say("hello", "-v", "rmss")


@pytest.mark.parametrize(("name", "samples", "word"), [
    ("empty", 0, "empty"), ("three", 3, "at least 0.5 s")])
def test_clip_that_is_empty_or_three_samples_long(say, speech, tmp_path, name, samples, word):
    clip = tmp_path / f"{name}.wav"
    soundfile.write(clip, speech[:samples], RATE)
    line = say("hello", "-v", clip)
    assert clip.name in line
    assert word in line


def test_silent_clip(say, speech, tmp_path):
    soundfile.write(tmp_path / "silent.wav", 0 * speech, RATE)
    assert "silent" in say("hello", "-v", tmp_path / "silent.wav")


def test_truncated_clip(say, speech, tmp_path):
    clip = tmp_path / "cut.wav"
    soundfile.write(clip, speech, RATE)
    clip.write_bytes(clip.read_bytes()[:20000])
    assert "cut.wav" in say("hello", "-v", clip)


def test_clip_with_nan(say, speech, tmp_path):
    speech[500] = np.nan
    soundfile.write(tmp_path / "nan.wav", speech, RATE, subtype="FLOAT")
    assert "NaN" in say("hello", "-v", tmp_path / "nan.wav")


def test_text_file_posing_as_wav(say, tmp_path):
    (tmp_path / "note.wav").write_text("this is a letter, not a sound\n" * 50)
    assert "note.wav" in say("hello", "-v", tmp_path / "note.wav")


def test_an_empty_voice_name_is_refused(say):
    assert "a name is missing" in say("hello", "-v", "")


def test_clip_without_a_header(say, speech, tmp_path):
    (tmp_path / "x.raw").write_bytes(speech.tobytes())
    line = say("hello", "-v", tmp_path / "x.raw")
    assert "x.raw" in line
    assert "wav" in line


# --- models


@pytest.fixture
def checkpoints(golden_checkpoints, golden_config, tmp_path) -> Path:
    """A writable copy of tiny official-layout checkpoints."""
    directory = tmp_path / "checkpoints"
    shutil.copytree(golden_checkpoints, directory, copy_function=shutil.copyfile)
    shutil.copyfile(golden_config, directory / "config.json")
    return directory


def test_unknown_bundle(say):
    assert "demo" in say("hello", "--bundle", "dmo")


def test_truncated_checkpoint(say, checkpoints):
    file = checkpoints / "autoregressive.pth"
    file.write_bytes(file.read_bytes()[:100_000])
    assert "autoregressive.pth" in say("hello", "-v", "random", "--checkpoints", checkpoints)


def test_checkpoint_of_another_model(say, checkpoints):
    shutil.copyfile(checkpoints / "clvp2.pth", checkpoints / "autoregressive.pth")
    line = say("hello", "-v", "random", "--checkpoints", checkpoints)
    assert "autoregressive.pth" in line


class Malice:
    """Unpickling this makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_malicious_checkpoint_is_refused_and_not_run(say, checkpoints, tmp_path):
    trap = tmp_path / "sprung"
    torch.save({"mel_head.bias": Malice(trap)}, checkpoints / "autoregressive.pth")
    assert "autoregressive.pth" in say("hello", "-v", "random", "--checkpoints", checkpoints)
    assert not trap.exists()


def test_malicious_voice_is_refused_and_not_run(say, tmp_path):
    trap = tmp_path / "sprung"
    (tmp_path / "voice.pth").write_bytes(pickle.dumps(Malice(trap)))
    assert "voice.pth" in say("hello", "-v", tmp_path / "voice.pth")
    assert not trap.exists()


def test_voice_of_another_model(say, tmp_path, random_bundle):
    torch.save((torch.zeros(1, 1024), torch.zeros(1, 2048)), tmp_path / "wide.pth")
    line = say("hello", "-v", tmp_path / "wide.pth", "--bundle", random_bundle)
    assert "1024" in line
    assert "64" in line


# --- names of files that cannot be

LONG = "n" * 300


@pytest.mark.parametrize("arguments", [
    ("-o", f"{LONG}.wav"), ("-o", f"{LONG}/out.wav"), ("-v", LONG), ("-v", f"./{LONG}"), ("-v", f"{LONG}.safetensors"),
    ("-v", f"{LONG}.wav"), ("-v", f"rms&{LONG}"), ("-f", LONG), ("--bundle", LONG), ("--bundle", f"./{LONG}"),
    ("--checkpoints", LONG), ("--checkpoints", f"{LONG}/x")])
def test_a_name_longer_than_names_can_be(complain, arguments):
    text = () if "-f" in arguments else ("hello",)
    output = () if "-o" in arguments else ("-o", "out.wav")
    assert LONG in complain("say", *text, "--preset", "fastest", *output, *arguments)


@pytest.mark.parametrize("arguments", [("add", "clip.wav", "-o", LONG), ("mix", "random", "-o", f"{LONG}.pth"),
                                       ("export", "random", "-o", f"{LONG}.pth"), ("show", f"./{LONG}")])
def test_a_name_longer_than_names_can_be_for_a_voice(complain, tmp_path, speech, arguments):
    soundfile.write(tmp_path / "work" / "clip.wav", speech, RATE)
    assert LONG in complain("voices", *arguments)


def test_a_name_longer_than_names_can_be_for_a_bundle(complain, checkpoints):
    assert LONG in complain("import", checkpoints, "-o", f"./{LONG}")
    assert LONG in complain("import", LONG, "-o", "./bundle")


@pytest.mark.parametrize("arguments", [
    ("-v", "~nobody-of-that-name/x"), ("--bundle", "~nobody-of-that-name/x"),
    ("--checkpoints", "~nobody-of-that-name/x")])
def test_the_home_of_nobody(say, arguments):
    assert "~nobody-of-that-name" in say("hello", *arguments)


def test_the_home_of_nobody_has_no_checkpoints(complain):
    assert "~nobody-of-that-name" in complain("import", "~nobody-of-that-name/x", "-o", "./bundle")


def test_an_empty_name_of_a_voice_to_show_is_not_the_folder_one_is_in(complain, tmp_path, speech):
    soundfile.write(tmp_path / "work" / "clip.wav", speech, RATE)
    assert "empty" in complain("voices", "show", "")


# --- files to write


@pytest.mark.parametrize("output", ["out.docx", "out", "/proc/out.wav"])
def test_output_that_cannot_be_written_is_refused_before_the_work(complain, output):
    assert output in complain("say", "hello", "-o", output)


@pytest.mark.parametrize("best", [(), ("--candidates", "2", "--best", "2")])
@pytest.mark.parametrize("output", [".", "..", "/"])
def test_output_without_a_name(complain, output, best):
    assert f"cannot write {output}" in complain("say", "hello", "-o", output, *best)


def test_output_that_is_a_directory(complain, tmp_path):
    (tmp_path / "work" / "out.wav").mkdir(parents=True)
    assert "directory" in complain("say", "hello", "-o", "out.wav")


def ane(*arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "ane", *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **options)


def test_a_disk_that_fills_up_leaves_the_old_file_and_no_temporary_files(tmp_path):
    """The process may write files of 4 KB at most, which fails in mid-write as a full disk does."""
    output = tmp_path / "out.wav"
    output.write_bytes(b"precious")
    process = ane("say", "hello", "--preset", "fastest", "--seed", "1", "-o", output, cwd=tmp_path,
                  env=os.environ | {"ANE_HOME": str(tmp_path / "home")},
                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "ane: error: cannot write" in err
    assert "Traceback" not in err
    assert output.read_bytes() == b"precious"
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["out.wav"]


def test_ctrl_c_ends_the_run_at_once_and_writes_nothing(tmp_path, random_bundle):
    process = ane("say", "hello there, this will take a while", "--candidates", "10000", "-o", tmp_path / "out.wav",
                  "--bundle", random_bundle, cwd=tmp_path, env=os.environ | {"ANE_HOME": str(tmp_path / "home")},
                  preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))      # a background job ignores it
    try:
        assert process.stderr is not None
        assert "random weights" in process.stderr.readline()        # the model is open, work begins
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not list(tmp_path.glob("*out*"))


# --- machines


def test_no_space_of_gpu_memory(say, monkeypatch):
    """The CUDA allocator's error, raised where it would be: inside a network."""
    from ane.models.tortoise.networks.hifigan import Hifigan

    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Hifigan, "forward", full)
    assert "memory" in say("hello")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test wants missing")
def test_device_that_is_not_there(say):
    assert "torch:cpu" in say("hello", "--backend", "torch:cuda")


def test_more_threads_than_cores(say):
    assert "cores" in say("hello", "--threads", "100000")


@pytest.mark.parametrize("name", ["tensorflow", "torch:", "torch:cpu:x", "torch:cpu:", "torch::", "torch:cpu:0:0"])
def test_unknown_backend(say, name):
    assert "torch" in say("hello", "--backend", name)


# --- flags


@pytest.mark.parametrize("flags", [
    ("--steps", "10"), ("--sampler", "ddim"), ("--guidance", "1"), ("--noise", "0.5"), ("--cvvp-amount", "0.5"),
    ("--no-split", "--split", "100,200")])
def test_a_flag_without_effect_is_refused(say, flags):
    line = say("hello", *flags)
    assert "no effect" in line
    assert any(flag in line for flag in flags if flag.startswith("--"))


@pytest.mark.parametrize("flags", [
    ("--temperature", "0"), ("--top-p", "1.5"), ("--repetition-penalty", "0"), ("--typical-mass", "2"),
    ("--max-codes", "9999"), ("--candidates", "2", "--best", "3"), ("--split", "300,200"),
    ("--candidates", "2", "--cvvp-amount", "2"), ("--temperature", "nan"), ("--preset", "fast", "--guidance", "nan"),
    ("--preset", "fast", "--guidance=-1"), ("--preset", "fast", "--noise", "inf"),
    ("--preset", "fast", "--steps", "5000")])
def test_a_value_out_of_range_is_refused(say, flags):
    line = say("hello", *flags)
    assert any(flag.split("=")[0] in line for flag in flags if flag.startswith("--") and flag != "--preset")


def test_an_immense_number_of_best_candidates_is_refused_at_once(say):
    assert "--best must be from 1 to 10000, got 1000000000000" in say("hello", "--best", "1000000000000")


@pytest.mark.parametrize("command", [("plan",), ("verify",), ("say", "hello", "--backend", "mil", "-o", "x.wav")])
def test_a_home_that_is_not_a_folder_is_one_line(complain, monkeypatch, command):
    monkeypatch.setenv("ANE_HOME", "/dev/null")
    assert "set ANE_HOME to a folder that can be written" in complain(*command)


def test_a_home_that_is_not_a_folder_does_not_stop_torch(complain, tmp_path, monkeypatch, capsys):
    from ane.bundles import open_model
    from ane.commands import packages

    monkeypatch.setenv("ANE_HOME", "/dev/null")
    assert main(["say", "hello", "--preset", "fastest", "--max-codes", "20", "-o", str(tmp_path / "a.wav")]) == 0
    monkeypatch.setattr(packages, "core_ml_runs", lambda: True)         # as on a Mac, where auto wants packages
    model = open_model()
    assert packages.with_packages(model, "auto", None) is model


@pytest.mark.parametrize("flag", ["--network", "--networks", "--units", "--force-build", "--candidate"])
def test_flags_have_one_spelling_without_abbreviations(flag):
    for command in (["say", "hello"], ["convert", "demo", "--to", "onnx", "-o", "x"], ["verify"]):
        with pytest.raises(SystemExit, match="2"):
            main([*command, flag, "1"])


def test_json_goes_alone_to_standard_output(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    assert main(["say", "hello", "--preset", "fastest", "--seed", "1", "--json", "-o", str(tmp_path / "a.wav")]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["files"] == [str(tmp_path / "a.wav")]
    assert err == ""
