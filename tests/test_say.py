"""`ane say` as a user runs it."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

from ane.cli import main

QUICK = ("--preset", "fastest", "--seed", "1", "--max-codes", "20")


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_on_the_readmes_first_screen_works(workplace):
    command = [sys.executable, "-m", "ane", "say", "The turtle was first, after all.", "-o", "turtle.wav"]
    result = subprocess.run(command, cwd=workplace, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert "random weights" not in result.stderr
    assert "real-time factor" in result.stderr
    assert soundfile.info(workplace / "turtle.wav").samplerate == 24000


def test_random_weights_are_announced(workplace, random_bundle, capsys):
    assert main(["say", "hello", *QUICK, "--bundle", str(random_bundle), "-o", "noise.wav"]) == 0
    assert "random weights" in capsys.readouterr().err


@pytest.mark.parametrize(("suffix", "kind"), [(".wav", "WAV"), (".flac", "FLAC"), (".mp3", "MP3"), (".ogg", "OGG")])
def test_the_suffix_chooses_the_format(workplace, suffix, kind):
    assert main(["say", "hello", *QUICK, "-o", f"out{suffix}"]) == 0
    info = soundfile.info(workplace / f"out{suffix}")
    assert info.format == kind or kind in info.format
    assert info.samplerate == 24000


def test_a_name_with_brackets_is_written_and_told_as_it_is(workplace, capsys):
    assert main(["say", "hello", *QUICK, "-o", "take[bold].wav"]) == 0
    assert "take[bold].wav" in capsys.readouterr().err
    assert (workplace / "take[bold].wav").is_file()


def test_text_comes_from_a_file_or_standard_input(workplace, monkeypatch):
    (workplace / "text.txt").write_text("hello", encoding="utf-8")
    assert main(["say", "-f", "text.txt", *QUICK, "-o", "file.wav"]) == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
    assert main(["say", "-f", "-", *QUICK, "-o", "stdin.wav"]) == 0
    assert main(["say", "hello", *QUICK, "-o", "argument.wav"]) == 0
    files = [(workplace / f"{name}.wav").read_bytes() for name in ("file", "stdin", "argument")]
    assert files[0] == files[1] == files[2]


def test_several_readings_are_written_best_first(workplace):
    assert main(["say", "hello", "--preset", "fastest", "--seed", "1", "--max-codes", "20", "--candidates", "3",
                 "--best", "2", "-o", "out.wav"]) == 0
    assert sorted(path.name for path in workplace.glob("*.wav")) == ["out-1.wav", "out-2.wav"]


def test_json_tells_scripts_all_that_the_closing_line_tells_people(capsys):
    assert main(["say", "hello", *QUICK, "-o", "out.wav", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["seed"] == 1
    assert result["trained"] is True
    assert result["voice"] == "rms"
    assert {"voice", "decode", "vocode"} <= set(result["spent"])
    assert result["real_time_factor"] == pytest.approx(sum(result["spent"].values()) / result["seconds"])
    assert result["peak_rss_bytes"] > 10**8


def test_without_a_file_it_is_played(workplace, monkeypatch):
    """A stand-in player on the PATH keeps what it was given to play."""
    player = workplace / "bin" / "afplay"
    player.parent.mkdir()
    player.write_text(f'#!/bin/sh\nfor last; do :; done\ncp "$last" {workplace}/heard.wav\n')
    player.chmod(0o755)
    monkeypatch.setenv("PATH", f"{player.parent}{os.pathsep}{os.environ['PATH']}")
    assert main(["say", "hello", *QUICK]) == 0
    assert soundfile.info(workplace / "heard.wav").frames > 0
    assert [path.name for path in workplace.glob("*.wav")] == ["heard.wav"]


@pytest.mark.parametrize("flags", [(), ("--play", "-o", "out.wav")])
def test_a_machine_without_a_player_says_so_before_the_work(workplace, monkeypatch, capsys, flags):
    (workplace / "bin").mkdir()
    monkeypatch.setenv("PATH", str(workplace / "bin"))
    assert main(["say", "hello", *QUICK, "--bundle", "./not-even-looked-for", *flags]) == 1
    assert "no program to play sound with" in capsys.readouterr().err
    assert not list(workplace.glob("*.wav"))


def test_a_folder_of_clips_is_a_voice(workplace, golden_checkpoints, capsys):
    clips = golden_checkpoints.parent / "audio"
    (workplace / "anna").mkdir()
    for name in ("mono16_48000", "stereo16_22050"):
        audio, rate = soundfile.read(clips / f"{name}.wav", dtype="float32")
        audio = audio if audio.ndim == 1 else audio.mean(axis=1)
        soundfile.write(workplace / "anna" / f"{name}.wav", list(audio) * 4, rate)
    assert main(["say", "hello", *QUICK, "-v", "./anna", "-o", "anna.wav"]) == 0
    assert "anna is not a clone of its clips: demo knows the voices rms, slt alone" in capsys.readouterr().err
    assert main(["say", "hello", *QUICK, "-v", "rms", "-o", "rms.wav"]) == 0
    assert "not a clone" not in capsys.readouterr().err
    assert (workplace / "anna.wav").read_bytes() != (workplace / "rms.wav").read_bytes()


def test_help_names_every_command_and_comes_without_loading_an_engine():
    script = ("import sys, ane.cli\n"
              "try: ane.cli.main(['--help'])\n"
              "except SystemExit: pass\n"
              "assert 'torch' not in sys.modules, 'torch was imported'\n")
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert {"say", "voices", "import", "classify"} <= set(result.stdout.split())
