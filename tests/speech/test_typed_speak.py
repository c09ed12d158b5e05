"""Test that type checkers know the arguments of the Python API, and that a wrong argument gives one clear line."""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_type_hints

import pytest

import ane
from ane.commands.speech_options import OPTIONS
from ane.speech.calls import SpeechCall
from ane.speech.options import SpeechOptions
from ane.speech.speaker import Speaker
from ane.system.errors import UserError

ROOT = Path(__file__).parents[2]
PROGRAM = """
import ane

async def program(speaker: ane.Speaker) -> None:
    speaker.speak("a", "heart", seed=1, speed=2, progress=print, lexicon={"a": "b"}, settings=ane.Settings(steps=9))
    speaker.speak(text="a", cast={"narrator": "x"}, voice=speaker.voice_of_clips([], 24000), lexicon=ane.Lexicon())
    with speaker.stream("a") as stream:
        speech: ane.Speech = stream.collect()
        known = speech.seed + stream.tokens, speech.voice.title(), speech.mels[0].shape
    words = [word.start for word in ane.transcribe("a.wav", model="whisper", word_times=True).words]
    speaker.stream("a", sed=1)  # wrong
    speaker.speak("a", seed="a")  # wrong
    speaker.feed(["a"], voice="x", speed="fast")  # wrong
    list(speaker.speak_all(["a"], lexicn=None))  # wrong
    speaker.speak("a", settings={"candidates": 4})  # wrong
    speaker.speak("a", voice=1)  # wrong
    ane.Settings(candidats=4)  # wrong
    ane.Settings(sampler="euler")  # wrong
    ane.transcribe("a.wav", modle="whisper")  # wrong
    ane.load("demo", threads="2")  # wrong
    ane.Lexicon({"a": 1})  # wrong
    (await speaker.speak_async("a")).to_bytes(3)  # wrong
    speaker.speak("a").to_byte("mp3")  # wrong
    speaker.stream("a").sead  # wrong
    ane.Lexicon(unreadable="foo")  # wrong
    ane.read_lexicon("a.tsv", "foo")  # wrong
    ane.transcribe("a.wav").segment  # wrong
    ane.Speeker  # wrong
"""
FAULTY = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")]


def faulty_lines(command: list[str], folder: Path) -> list[int]:
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [*command, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)},
    )
    found = {
        int(line.split("program.py:")[1].split(":")[0])
        for line in done.stdout.splitlines()
        if "program.py:" in line and "error" in line
    }
    assert done.returncode == 1, done.stdout + done.stderr
    return sorted(found)


def test_mypy_refuses_wrong_fields(tmp_path: Path) -> None:
    assert (
        faulty_lines(
            [
                sys.executable,
                "-m",
                "mypy",
                "--strict",
                "--follow-imports",
                "silent",
                "--python-version",
                "3.11",
                "--ignore-missing-imports",
            ],
            tmp_path,
        )
        == FAULTY
    )


def test_pyright_refuses_wrong_fields(tmp_path: Path) -> None:
    assert (
        faulty_lines(
            [sys.executable, "-m", "basedpyright", "--level", "error", "--pythonpath", sys.executable], tmp_path
        )
        == FAULTY
    )


def test_what_a_type_checker_refuses_is_one_clear_line_without_one() -> None:
    speaker = ane.load()
    with pytest.raises(UserError, match=r"^sed is unknown: do you mean seed\?$"):
        speaker.speak("a", sed=1)  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"^seed must be a whole number, got 'a'$"):
        speaker.speak("a", seed="a")  # type: ignore[arg-type]


def test_every_way_to_speak_takes_the_same_fields() -> None:
    fields = set(inspect.signature(SpeechCall).parameters)
    assert {"text", "voice", "seed", "speed", "progress"} <= fields
    for method in (Speaker.speak, Speaker.stream, Speaker.speak_in_chunks, Speaker.speak_async, Speaker.stream_async):
        assert list(inspect.signature(inspect.unwrap(method)).parameters) == ["self", "call"]


def test_settings_at_the_top_level_are_the_options_of_say() -> None:
    hints = get_type_hints(SpeechOptions)
    for name, option in OPTIONS.items():
        kind = tuple[int, int] if option.type is tuple else option.type
        assert hints.pop(name) == (Literal[option.choices] if option.choices else kind) | None, name
    assert hints.keys() == {"no_split"}
