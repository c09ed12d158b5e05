"""Install the npm packages that tests use, once, in pytest's cache."""

import shutil
import subprocess
from pathlib import Path

import pytest

TRIES, SECONDS = 2, 30
# npm's own cache comes first, and a registry that does not answer is not asked for minutes
INSTALL = "npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=0", "--fetch-timeout=15000"


def node_modules(config: pytest.Config, temporary: pytest.TempPathFactory, package: str) -> Path:
    """The folder node_modules with a package, "name@version"; skips without npm or its registry."""
    if shutil.which("npm") is None:
        pytest.skip("needs Node: apt-get install nodejs npm")
    cache = getattr(config, "cache", None)  # None if pytest runs without a cache
    folder = cache.mkdir(package) if cache else temporary.mktemp("node")
    if not (folder / "node_modules" / package.partition("@")[0]).exists():
        command = [*INSTALL, "--prefix", str(folder), package]
        if not any(installs(command) for _ in range(TRIES)):
            pytest.skip(f"needs {package}, once, from the registry of npm: {' '.join(command)}")
    return folder / "node_modules"


def installs(command: list[str]) -> bool:
    try:
        return (
            subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=SECONDS, check=False
            ).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return False
