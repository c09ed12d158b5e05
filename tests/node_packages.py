"""Packages of npm that tests use, installed once into pytest's cache."""

import shutil
import subprocess
from pathlib import Path

import pytest


def node_modules(config: pytest.Config, temporary: pytest.TempPathFactory, package: str) -> Path:
    """The folder node_modules with a package, "name@version"; skips without npm or its registry."""
    if shutil.which("npm") is None:
        pytest.skip("needs Node: apt-get install nodejs npm")
    cache = getattr(config, "cache", None)              # None: pytest was told to have no cache
    folder = cache.mkdir(package) if cache else temporary.mktemp("node")
    if not (folder / "node_modules" / package.partition("@")[0]).exists():
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", package]
        if subprocess.run(command, capture_output=True, timeout=240, check=False).returncode:
            pytest.skip(f"needs {package}, once, from the registry of npm: {' '.join(command)}")
    return folder / "node_modules"
