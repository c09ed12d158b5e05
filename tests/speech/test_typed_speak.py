"""`speak` takes the fields of a request, and type checkers know each of them."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ane
from ane.speech.calls import SpeechCall
from ane.speech.speaker import Speaker
from ane.system.errors import UserError

ROOT = Path(__file__).parents[2]
PROGRAM = """
from ane.speech.speaker import Speaker

def programs(speaker: Speaker) -> None:
    speaker.speak("a", "heart", seed=1, speed=2, progress=print)
    speaker.speak(text="a", cast={"narrator": "x"})
    speaker.stream("a", sed=1)
    speaker.speak("a", seed="a")
    speaker.feed(["a"], voice="x", speed="fast")
    list(speaker.speak_all(["a"], lexicn=None))
"""
FAULTY = [7, 8, 9, 10]       # lines of the program


def faulty_lines(command: list[str], folder: Path) -> list[int]:
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run([*command, "program.py"], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)})
    found = {int(line.split("program.py:")[1].split(":")[0]) for line in done.stdout.splitlines()
             if "program.py:" in line and "error" in line}
    assert done.returncode == 1, done.stdout + done.stderr
    return sorted(found)


def test_mypy_refuses_wrong_fields(tmp_path: Path) -> None:
    assert faulty_lines([sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent", "--python-version",
                         "3.11", "--ignore-missing-imports"], tmp_path) == FAULTY


def test_pyright_refuses_wrong_fields(tmp_path: Path) -> None:
    assert faulty_lines([sys.executable, "-m", "basedpyright", "--level", "error", "--pythonpath", sys.executable],
                        tmp_path) == FAULTY


def test_what_a_type_checker_refuses_is_one_clear_line_without_one() -> None:
    speaker = ane.load()
    with pytest.raises(UserError, match=r"^sed is unknown$"):
        speaker.speak("a", sed=1)       # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"^seed must be a whole number, got 'a'$"):
        speaker.speak("a", seed="a")    # type: ignore[arg-type]


def test_every_way_to_speak_takes_the_same_fields() -> None:
    fields = set(inspect.signature(SpeechCall).parameters)
    assert {"text", "voice", "seed", "speed", "progress"} <= fields
    for method in (Speaker.speak, Speaker.stream, Speaker.speak_in_chunks, Speaker.speak_async, Speaker.stream_async):
        assert list(inspect.signature(inspect.unwrap(method)).parameters) == ["self", "call"]
