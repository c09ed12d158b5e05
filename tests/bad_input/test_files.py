"""A name that no file can have, and a file that cannot be written, are one clear line."""

import os
import resource
import signal
import subprocess
import sys
import time

import pytest
import soundfile

from tests.bad_input.conftest import tortoise

RATE = 22050
LONG = "n" * 300


@pytest.mark.parametrize("arguments", [
    ("-o", f"{LONG}.wav"), ("-o", f"{LONG}/out.wav"), ("-v", LONG), ("-v", f"./{LONG}"), ("-v", f"{LONG}.safetensors"),
    ("-v", f"{LONG}.wav"), ("-v", f"rms&{LONG}"), ("-f", LONG), ("--bundle", LONG), ("--bundle", f"./{LONG}"),
    ("--checkpoints", LONG), ("--checkpoints", f"{LONG}/x")])
def test_a_name_longer_than_names_can_be(complain, arguments):
    text = () if "-f" in arguments else ("hello",)
    output = () if "-o" in arguments else ("-o", "out.wav")
    assert LONG in complain("say", *text, *tortoise(arguments), "--preset", "fastest", *output, *arguments)


@pytest.mark.parametrize("arguments", [("add", "clip.wav", "-o", LONG), ("mix", "random", "-o", f"{LONG}.pth"),
                                       ("export", "random", "-o", f"{LONG}.pth"), ("show", f"./{LONG}")])
def test_a_name_longer_than_names_can_be_for_a_voice(complain, tmp_path, speech, arguments):
    soundfile.write(tmp_path / "work" / "clip.wav", speech, RATE)
    assert LONG in complain("voices", *arguments, "--bundle", "demo")


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
    process = ane("say", "hello", "--bundle=demo", "--preset=fastest", "--seed", "1", "-o", output, cwd=tmp_path,
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
