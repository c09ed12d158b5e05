"""Locate the folders of this program: the cache, the user's voices and bundles, and the file with the user's defaults.

The functions only return paths: they create and read nothing. The library platformdirs chooses the folders. On macOS
they are in ``~/Library/Caches`` and ``~/Library/Application Support``, and on Linux in the XDG base directories. If the
environment variable ``ANE_HOME`` is set, everything is in that folder instead.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import platformdirs

from ane.system.errors import UserError

_APPLICATION = "tortoise-ane"
CACHE_ADVICE = "set ANE_HOME to a folder that can be written"


def cache_dir() -> Path:
    """Return the folder for data that the program can make or download again, such as compiled models and latents."""
    home = _ane_home()
    return home / "cache" if home else _of_platform(platformdirs.user_cache_dir)


def data_dir() -> Path:
    """Return the folder for data that the program cannot make again: voices and bundles."""
    return _ane_home() or _of_platform(platformdirs.user_data_dir)


def voices_dir() -> Path:
    """Return the folder with the user's voices."""
    return data_dir() / "voices"


def bundles_dir() -> Path:
    """Return the folder with converted and downloaded models."""
    return data_dir() / "bundles"


def config_file() -> Path:
    """Return the path of the file with the user's defaults for commands. The file need not exist."""
    return (_ane_home() or _of_platform(platformdirs.user_config_dir)) / "config.toml"


def _ane_home() -> Path | None:
    home = os.environ.get("ANE_HOME")
    return Path(os.path.expanduser(home)) if home else None


def _of_platform(folder_of: Callable[..., str]) -> Path:
    with suppress(RuntimeError):
        folder = Path(folder_of(_APPLICATION, appauthor=False))
        if folder.is_absolute():
            return folder
    # this happens in a container if HOME is not set and the user database does not have the user
    raise UserError("this user has no home directory: set ANE_HOME to a folder for voices, bundles and the cache")


def check_working_directory() -> None:
    """Raise UserError if the working directory was deleted.

    In this case, libraries such as oneMKL would end the process.
    """
    try:
        os.getcwd()
    except OSError:
        raise UserError("the working directory does not exist any more: change to another one") from None
