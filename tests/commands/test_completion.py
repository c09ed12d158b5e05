"""`ane completion` prints what a shell can load."""

import shutil
import subprocess

import pytest

from ane.cli import main


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_script_knows_the_commands_and_flags(capsys, shell):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "doctor" in script
    assert "compute-units" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash: install it with your package manager")
def test_bash_can_load_its_script(capsys):
    pytest.importorskip("shtab")
    main(["completion", "bash"])
    subprocess.run(["bash", "-c", capsys.readouterr().out + "\ncomplete -p ane"], check=True, timeout=60)
