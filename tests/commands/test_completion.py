"""Test completion as shells ask for it, and the manual page with the programs that read such pages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ane.cli import SUMMARIES, main
from tools.campaigns.kill import in_child

INSTALL = "apt-get install {}"
# shell → how it completes pairs of a default bundle and a line, after it reads the script as the help's example does
ASK = {
    "bash": """eval "$(ane completion bash)"
        while [ $# -gt 0 ]; do
            export ANE_BUNDLE="$1"; COMP_LINE="$2"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; COMP_WORDS=($2)
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _python_argcomplete ane; printf "%s\\n" "${COMPREPLY[@]}" "== end"
            shift 2
        done""",
    "fish": """ane completion fish | source
        while test (count $argv) -gt 0
            set -x ANE_BUNDLE $argv[1]; complete -C "$argv[2]"; echo "== end"; set argv $argv[3..-1]
        end""",
    "zsh": """autoload -Uz compinit; compinit -u -d "$HOME/dump"; eval "$(ane completion zsh)"
        compadd() { :; }; _describe() { print -l -- ${(P)2}; }
        while [ $# -gt 0 ]; do
            export ANE_BUNDLE="$1"; words=(${=2}); CURRENT=${#words}; BUFFER="$2"; CURSOR=${#BUFFER}; service=ane
            _python_argcomplete ane; print "== end"; shift 2
        done""",
}
LINES = [  # the bundle of the user's defaults, the line, and a word that completes it
    ("", "ane tra", "transcribe"),
    ("demo", "ane say --voice mich", "michael"),
    ("", "ane say --follo", "--follow"),
    ("", "ane say --bundle hea", "heart"),
    ("heart", "ane read --bundle demo --voice mich", "michael"),
    ("nobody", "ane voices rem", "remove"),
    ("", "ane voices remove ann", "anna"),
    ("", "ane say --preset ultra", "ultra_fast"),
    ("", "ane say --file-format FL", "FLAC"),
    ("", "ane say --data-format UI", "UI8"),
]


@pytest.fixture
def ane(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds this ``ane`` by its name."""
    program = tmp_path / "bin" / "ane"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ane "$@"\n')
    program.chmod(0o755)
    root = str(Path(__file__).parents[2])
    path = f"{program.parent}:{os.environ['PATH']}"
    home = {"HOME": str(tmp_path), "ANE_HOME": str(tmp_path / "home")}
    return os.environ | {"PATH": path, "PYTHONPATH": root} | home


@pytest.mark.parametrize(("bundle", "line", "word"), LINES)
def test_commands_flags_bundles_voices_and_presets_are_completed(workplace, monkeypatch, bundle, line, word):
    """As the script of a shell asks for them."""
    stored = workplace / "home" / "voices" / "anna.safetensors"
    stored.parent.mkdir(parents=True)
    stored.touch()
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": "answer"}
    for name, value in {**asked, "ANE_BUNDLE": bundle, "COMP_LINE": line, "COMP_POINT": str(len(line))}.items():
        monkeypatch.setenv(name, value)
    assert in_child(lambda: main([])) == 0  # argcomplete ends the process
    assert word in map(str.strip, Path("answer").read_text().splitlines())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_a_command_and_a_value(ane, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}: {INSTALL.format(shell)}")
    arguments = [word for default, line, _ in LINES[:2] for word in (default, line)]
    command = [shell, "-c", ASK[shell], *(["shell"] if shell != "fish" else []), *arguments]
    asked = subprocess.run(command, env=ane, capture_output=True, text=True, timeout=120, check=False)
    answers = asked.stdout.split("== end\n")[:-1]
    for answer, (_, line, word) in zip(answers, LINES[:2], strict=True):
        found = [one.split("\t")[0].split(":")[0].strip() for one in answer.splitlines()]
        assert word in found, (line, answer, asked.stderr)


def test_the_manual_page_has_every_command_and_its_readers_find_no_fault(capsys, tmp_path):
    assert main(["completion", "man"]) == 0
    page = tmp_path / "ane.1"
    page.write_text(capsys.readouterr().out, encoding="utf-8")
    assert {f".SS ane {name}".replace("-", "\\-") for name in SUMMARIES} <= set(page.read_text().splitlines())
    assert {".SH FILES", ".SH ENVIRONMENT", ".B ANE_HOME", ".SH EXIT STATUS", ".B 130, 143"} <= set(
        page.read_text().splitlines()
    )
    for reader in (["man", "--warnings", "-l"], ["mandoc", "-T", "lint", "-W", "error"]):
        if shutil.which(reader[0]) is None:
            pytest.skip(f"needs {reader[0]}: {INSTALL.format('man-db mandoc')}")
        read = subprocess.run(
            [*reader, page],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"MANPAGER": "cat"},
        )
        assert (read.returncode, read.stderr) == (0, ""), reader
