"""Test that control characters in texts, voices and jobs from strangers never reach the terminal."""

import json
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile
from rich.console import Console

from ane.books.store import JobStore
from ane.cli import main
from ane.commands.read_report import print_acx
from ane.system.terminal import printable
from tests.books.stand_in import StandInSpeaker, book, plan_for
from tests.commands.conftest import RATE

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.\r"
TEXT = f"Hello {EVIL} there."


def test_the_levels_for_acx_stay_whole_in_a_narrow_terminal(capsys):
    console = Console(width=80)
    names = ("book 01 One.mp3", f"book 02 {'A very long title of a chapter ' * 3}.mp3")
    print_acx(console, dict.fromkeys(names, (1234.5, -20.1, -3.25, -71.5)))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for figure in ("1234.5", "-20.1", "-3.2", "-71.5"):
        assert sum(figure in line for line in lines) == 2


def clean(text: str) -> bool:
    return not any(character in text for character in "\x1b\x07\x9b\u202e\r")


@pytest.mark.parametrize("text", ["a\nb\tc", "Grüße, “Anna” — 中文 🙂"])
def test_text_without_control_characters_is_as_it_is(text):
    assert printable(text) == text
    assert printable(f"{text}{EVIL}") == f"{text}" + r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.\r"


@pytest.mark.parametrize(
    "command",
    [
        ["say", TEXT, "--explain"],
        ["say", f"{TEXT} [[rate 200]]", "-o", "x.wav"],
        ["say", "hello", "-o", f"x{EVIL}.xyz"],
        ["say", "hello", "-v", f"voice{EVIL}", "--bundle", "demo", "-o", "x.wav"],
        ["read", "--list", "book.md"],
        ["read", "--cast-report", "book.md"],
        ["read", "--status", "evil.wav"],
        ["voices", "list", "--bundle", "demo"],
        ["transcribe", f"no{EVIL}.wav"],
        ["read", "book.md", f"--{EVIL}"],
    ],
    ids=lambda command: " ".join(command[:2]).split("\x1b")[0],
)
def test_no_command_prints_control_characters(workplace, speech, capfd, command):
    Path("book.md").write_text(f'# One {EVIL}\n\n"Hello {EVIL}," said Anna{EVIL}.\n\n![{EVIL}](x.png)\n')
    folder = Path("home/voices") / f"voice{EVIL.replace('/', '')}"
    folder.mkdir(parents=True)
    soundfile.write(folder / "one.wav", speech, RATE)
    with closing(JobStore(Path("evil.wav.job"))) as store:
        document = book(4)
        document.chapters[0].title = f"Chapter {EVIL}"
        document.chapters[0].blocks[1] = replace(document.chapters[0].blocks[1], text=TEXT)
        store.adopt(plan_for(StandInSpeaker(), document, store.seed(7)))
        store.set_fact("title", EVIL)
        with store._transaction() as run:
            run(
                "UPDATE sounds SET samples = 5, rate = 24000, notes = ?, flac = '' WHERE rowid = 1",
                (json.dumps([f"a note {EVIL}"]),),
            )
    with suppress(SystemExit):  # exits because the flag does not exist
        main(command)
    out, err = capfd.readouterr()
    assert out + err
    assert clean(out + err), (out, err)
