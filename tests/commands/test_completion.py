"""Test completion as shells ask for it, and the manual page with the programs that read such pages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ane.cli import SUMMARIES, main

INSTALL = "apt-get install {}"
# shell → how it completes a line, after reading the script as the example in the help says
ASK = {
    "bash": 'eval "$(ane completion bash)"; COMP_LINE="$1"; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9; COMP_WORDS=($1); '
    'COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _python_argcomplete ane; printf "%s\\n" "${{COMPREPLY[@]}}"',
    "fish": 'ane completion fish | source; complete -C "$argv[1]"',
    "zsh": 'autoload -Uz compinit; compinit -u -d "$HOME/dump"; eval "$(ane completion zsh)"; '
    "compadd() {{ :; }}; _describe() {{ print -l -- ${{(P)2}}; }}; words=(${{=1}}); CURRENT=${{#words}}; "
    'BUFFER="$1"; CURSOR=${{#BUFFER}}; service=ane; _python_argcomplete ane',
}


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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_flags_bundles_voices_and_presets(ane, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}: {INSTALL.format(shell)}")
    stored = Path(ane["ANE_HOME"]) / "voices" / "anna.safetensors"
    stored.parent.mkdir(parents=True)
    stored.touch()
    for line, word, default in (
        ("ane tra", "transcribe", ""),
        ("ane say --follo", "--follow", ""),
        ("ane say --bundle hea", "heart", ""),
        ("ane read --bundle demo --voice mich", "michael", "heart"),
        ("ane say --voice mich", "michael", "demo"),
        ("ane voices rem", "remove", "nobody"),
        ("ane voices remove ann", "anna", ""),
        ("ane say --preset ultra", "ultra_fast", ""),
    ):
        name = ["argument"] if shell == "fish" else ["-"]
        asked = subprocess.run(
            [shell, "-c", ASK[shell].format(), *(name[:0] if shell == "fish" else ["shell"]), line],
            env=ane | {"ANE_BUNDLE": default},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        found = [one.split("\t")[0].split(":")[0].strip() for one in asked.stdout.splitlines()]
        assert word in found, (line, asked.stdout, asked.stderr)


def test_the_manual_page_has_every_command_and_its_readers_find_no_fault(capsys, tmp_path):
    assert main(["completion", "man"]) == 0
    page = tmp_path / "ane.1"
    page.write_text(capsys.readouterr().out, encoding="utf-8")
    assert {f".SS ane {name}".replace("-", "\\-") for name in SUMMARIES} <= set(page.read_text().splitlines())
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
