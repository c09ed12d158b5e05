"""Run sessions: commands as a user types them, with the text that each prints and the files that it writes.

Files that end in .session, next to the tests, hold them. A line is one of:

    # TITLE                 A case begins. The lines before the first case belong to every case.
    ## TEXT                 a comment
    NAME = WORDS            In commands, $NAME stands for these words.
                            {NAME} and {NAME.path} are the value of a fixture. Both also stand in lines of TEXT.
    $ WORDS                 `ane WORDS` must succeed. `$1` must fail with one line, as the fixture `complain` checks.
                            `$2` must end with the status of wrong usage, and `?1` with status 1 whatever it prints.
    % WORDS                 A shell must run this without an error, where `ane` is a process of its own that starts at
                            once, and `$PYTHON -m ane` a real one. `%1` must end with that status.

what the user does before a command:

    write: FILE TEXT        Write a file. \\n, \\t and \\uXXXX stand for characters, as in tests/tables.py.
    folder: NAME            also copy: FILE FILE, link: NAME TARGET and remove: FILE
    set: VARIABLE VALUE     Set an environment variable.
    input: TEXT             This is the standard input of the next command.
    fixture: NAME           The case needs this fixture. needs: PATH says that it needs this file of the system.

and what must be true after a command:

    TEXT                    It printed this. The number of spaces does not matter. Lines of checks are indented.
    not: TEXT               It did not print this. once: TEXT says that it printed this once.
    out: TEXT               Its standard output is exactly this, errors: TEXT its standard error, printed: TEXT both.
    width: NUMBER           The lines of its standard output are no longer.
    line: TEXT              A line of standard output begins so. lines: NUMBER is the number of lines that it printed.
    row: CELL | * | CELL    A row of a table begins with these cells. rows: ROW; ROW says that it has these rows alone.
    json: FILE PATH = X     The value at a path such as chapters.*.title, in a file or in standard output (-), is X.
                            Where several lines are printed, each is a value, and the path begins with its number or *.
    found: PATTERN = A, B   The files of these names match the pattern, and no others.
    content: FILE = TEXT    The file holds exactly this. has:, lacks: and starts: FILE TEXT look for a part.
    same: FILE FILE         also differ: FILE FILE, and refers: LINK TARGET
    frames: FILE = FILE + N A sound has the samples of another and N more. FILE / SPEED + N divides the other's first.
    frames: FILE > 0        A sound has samples. rate: FILE = N is their number in a second.
"""

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile

from ane.cli import main
from tests.tables import unescaped


def cases(beside: str) -> list[Any]:
    """The cases of all such files in the folder of the test ``beside``, its __file__, for ``parametrize``."""
    found = []
    for file in sorted(Path(beside).parent.glob("*.session")):
        start, *parts = re.split(r"^# ", file.read_text(encoding="utf-8"), flags=re.M)
        for title, _, lines in (part.partition("\n") for part in parts):
            found.append(pytest.param((start + lines).splitlines(), id=f"{file.stem}: {title}"))
    return found


def value_at(content: Any, path: str) -> Any:
    """The value at a path of keys, of numbers of items, and of * for every item. A key that is not there has None."""
    key, _, rest = path.partition(".")
    if key == "*":
        return [value_at(item, rest) for item in content]
    if isinstance(content, list) and key:
        return value_at(content[int(key)], rest)
    return value_at(content.get(key), rest) if key else content


def table_rows(out: str) -> list[list[str]]:
    """The cells of every row of the tables in an output, as a terminal and as other programs get them."""
    rows = [re.split(r"[│\t]", line.strip("│")) for line in out.splitlines()]
    return [[cell.strip() for cell in row] for row in rows if len(row) > 1]


def folded(text: str) -> str:
    return " ".join(text.split())


class Session:
    """A case that runs: the names of words, and what the last command printed."""

    def __init__(self, request: pytest.FixtureRequest):
        self.value = request.getfixturevalue
        self.names: dict[str, str] = {}
        self.out = self.printed = ""

    def run(self, lines: list[str]) -> None:
        for line in map(str.strip, lines):
            word, _, rest = line.partition(" ")
            if word.isupper() and rest.startswith("= "):
                self.names[word] = rest[2:]
            elif re.fullmatch(r"[$?]\d?", word):
                self.command(int(word[1:] or 0), self.filled(rest), strict=word[0] == "$")
            elif re.fullmatch(r"%\d*", word):
                self.shell(int(word[1:] or 0), self.filled(rest))
            elif word.endswith(":") and word[:-1] in STEPS:
                STEPS[word[:-1]](self, rest)
            elif word.endswith(":") and word[:-1] in CHECKS:
                assert CHECKS[word[:-1]](self, rest), (line, self.printed)
            elif word and word != "##":
                assert folded(self.filled(line)) in folded(self.printed), (line, self.printed)

    def filled(self, words: str) -> str:
        """The words of a command with the values of names and fixtures."""
        words = re.sub(r"\$([A-Z]+)", lambda found: self.names.get(found[1], found[0]), words)
        return re.sub(
            r"\{(\w+)((?:\.path)?)\}", lambda found: str(attribute(self.value(found[1]), found[2][1:])), words
        )

    def shell(self, status: int, words: str) -> None:
        path = f"{self.value('ane_program')}:{os.environ['PATH']}"
        more = {"PATH": path, "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command, options = ["bash", "-o", "pipefail", "-c", words], {"errors": "replace", "timeout": 300}
        done = subprocess.run(command, capture_output=True, env=os.environ | more, check=False, **options)
        self.out, self.printed = done.stdout, done.stdout + done.stderr
        assert done.returncode == status, self.printed

    def command(self, status: int, words: str, strict: bool) -> None:
        arguments = [unescaped(word) for word in shlex.split(words)]
        if status == 1 and strict:
            self.out, self.printed = "", self.value("complain")(*arguments)
            return
        self.value("capsys").readouterr()
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
        self.out, errors = self.value("capsys").readouterr()
        self.printed = self.out + errors
        assert code == status, (words, self.printed)


def attribute(value: Any, name: str) -> Any:
    return getattr(value, name) if name else value


def write(session: Session, rest: str) -> None:
    name, _, content = rest.partition(" ")
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(unescaped(content), encoding="utf-8")


def copy(session: Session, rest: str) -> None:
    source, destination = map(Path, shlex.split(rest))
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, destination)


def set_input(session: Session, rest: str) -> None:
    content = io.TextIOWrapper(io.BytesIO(unescaped(rest).encode()))
    session.value("monkeypatch").setattr("sys.stdin", content)


def has_row(session: Session, rest: str) -> bool:
    cells = [cell.strip() for cell in rest.split("|")]
    return any(
        len(row) >= len(cells) and all(cell in ("*", found) for cell, found in zip(cells, row, strict=False))
        for row in table_rows(session.out)
    )


def has_value(session: Session, rest: str) -> bool:
    place, _, expected = rest.partition(" = ")
    file, _, path = place.partition(" ")
    content = session.out if file == "-" else Path(file).read_text(encoding="utf-8")
    documents = [
        json.loads(one) for one in (content.splitlines() if content.count("\n") > 1 and file == "-" else [content])
    ]
    assert value_at(documents if len(documents) > 1 else documents[0], path) == json.loads(expected)
    return True


def matches(session: Session, rest: str) -> bool:
    pattern, _, names = rest.partition(" =")
    found = {path.as_posix() for path in Path().glob(pattern) if path.name != "home"}
    return found == {name.strip() for name in names.split(",") if name.strip()}


def in_file(compare: Callable[[bytes, bytes], bool]) -> Callable[[Session, str], bool]:
    """The check that compares the content of the file that is named first with the text after it."""

    def check(session: Session, rest: str) -> bool:
        name, text = re.fullmatch(r"(\S+)(?: =)? ?(.*)", rest).groups()
        return compare(Path(name).read_bytes(), unescaped(text).encode())

    return check


def has_frames(session: Session, rest: str) -> bool:
    file, sign, other, speed, more = re.fullmatch(r"(\S+) ([=>]) (\S+)(?: / (\S+))?(?: \+ (\d+))?", rest).groups()
    count = 0 if other == "0" else soundfile.info(other).frames
    wanted, found = round(count / float(speed or 1)) + int(more or 0), soundfile.info(file).frames
    return found == wanted if sign == "=" else found > wanted


def needs(session: Session, rest: str) -> None:
    if not Path(rest).exists():
        pytest.skip(f"needs {rest}: run it on Linux")


def contents(rest: str) -> set[bytes]:
    return {Path(name).read_bytes() for name in shlex.split(rest)}


STEPS: dict[str, Callable[[Session, str], Any]] = {
    "write": write,
    "folder": lambda session, rest: Path(rest).mkdir(parents=True),
    "copy": copy,
    "link": lambda session, rest: Path(rest.split()[0]).symlink_to(rest.split()[1]),
    "remove": lambda session, rest: Path(rest).unlink(),
    "set": lambda session, rest: session.value("monkeypatch").setenv(*rest.split(" ", 1)),
    "input": set_input,
    "needs": needs,
    "fixture": lambda session, rest: session.value(rest),
}
CHECKS: dict[str, Callable[[Session, str], bool]] = {
    "not": lambda session, rest: rest not in folded(session.printed),
    "once": lambda session, rest: folded(session.printed).count(rest) == 1,
    "out": lambda session, rest: session.out == unescaped(rest),
    "printed": lambda session, rest: session.printed == unescaped(rest),
    "line": lambda session, rest: any(line.strip().startswith(rest) for line in session.out.splitlines()),
    "errors": lambda session, rest: session.printed.removeprefix(session.out) == unescaped(rest),
    "width": lambda session, rest: max(map(len, session.out.splitlines())) <= int(rest),
    "lines": lambda session, rest: session.printed.count("\n") == int(rest),
    "row": has_row,
    "rows": lambda session, rest: (
        table_rows(session.out) == [[cell.strip() for cell in row.split("|")] for row in rest.split(";")]
    ),
    "json": has_value,
    "found": matches,
    "content": in_file(bytes.__eq__),
    "has": in_file(bytes.__contains__),
    "lacks": in_file(lambda content, text: text not in content),
    "starts": in_file(bytes.startswith),
    "same": lambda session, rest: len(contents(rest)) == 1,
    "differ": lambda session, rest: len(contents(rest)) > 1,
    "frames": has_frames,
    "rate": lambda session, rest: soundfile.info(rest.split()[0]).samplerate == int(rest.split()[2]),
    "refers": lambda session, rest: Path(rest.split()[0]).readlink() == Path(rest.split()[1]),
}
