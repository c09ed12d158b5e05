"""Locate the package's folders: its cache, the user's voices, bundles, defaults. Nothing here creates or reads one.

The library platformdirs chooses them: ``~/Library/Caches`` and ``~/Library/Application Support`` on macOS, the XDG base
directories on Linux. If ``ANE_HOME`` is set, everything is in that one folder instead.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import platformdirs

from ane.system.errors import UserError

_APPLICATION = "tortoise-ane"


def cache_dir() -> Path:
    """Return the folder for data that can be computed or downloaded again: compiled models, latents of clips."""
    home = _ane_home()
    return home / "cache" if home else _of_platform(platformdirs.user_cache_dir)


def data_dir() -> Path:
    """Return the folder for data that cannot be computed again: voices and bundles."""
    return _ane_home() or _of_platform(platformdirs.user_data_dir)


def voices_dir() -> Path:
    """Return the folder of the user's voices."""
    return data_dir() / "voices"


def bundles_dir() -> Path:
    """Return the folder of converted and downloaded models."""
    return data_dir() / "bundles"


def config_file() -> Path:
    """Return the file with the user's defaults for commands, which need not exist."""
    return (_ane_home() or _of_platform(platformdirs.user_config_dir)) / "config.toml"


def _ane_home() -> Path | None:
    home = os.environ.get("ANE_HOME")
    return Path(os.path.expanduser(home)) if home else None


def _of_platform(folder_of: Callable[..., str]) -> Path:
    with suppress(RuntimeError):
        folder = Path(folder_of(_APPLICATION, appauthor=False))
        if folder.is_absolute():
            return folder
    # for example in a container whose user has neither HOME nor an entry in the user database
    raise UserError("this user has no home directory: set ANE_HOME to a folder for voices, bundles and the cache")


def check_working_directory() -> None:
    """Raise UserError if the working directory was deleted. There, oneMKL, for one, ends the process."""
    try:
        os.getcwd()
    except OSError:
        raise UserError("the working directory does not exist any more: change to another one") from None
