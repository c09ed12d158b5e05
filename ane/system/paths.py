"""Where the package keeps what it downloads, computes and stores. Nothing here creates a folder.

``ANE_HOME`` puts everything into one folder. Without it macOS has its Library, every other system the XDG base
directories (XDG_CACHE_HOME, XDG_DATA_HOME).
"""

import os
import sys
from pathlib import Path

from ane.system.errors import UserError

_APPLICATION = "tortoise-ane"


def cache_dir() -> Path:
    """What can be computed or downloaded again: compiled models, latents of clips."""
    return _place("cache", "Library/Caches", "XDG_CACHE_HOME", ".cache")


def data_dir() -> Path:
    """What the user would miss."""
    return _place("", "Library/Application Support", "XDG_DATA_HOME", ".local/share")


def voices_dir() -> Path:
    """The user's own voices."""
    return data_dir() / "voices"


def bundles_dir() -> Path:
    """Converted and downloaded models."""
    return data_dir() / "bundles"


def _place(inside_home: str, on_macos: str, xdg_variable: str, elsewhere: str) -> Path:
    home = os.environ.get("ANE_HOME")
    if home:
        return Path(os.path.expanduser(home)) / inside_home
    if sys.platform == "darwin":
        return _user_home() / on_macos / _APPLICATION
    xdg = os.environ.get(xdg_variable, "")
    base = Path(xdg) if os.path.isabs(xdg) else _user_home() / elsewhere      # XDG: relative paths are to be ignored
    return base / _APPLICATION


def _user_home() -> Path:
    home = os.path.expanduser("~")
    if home == "~":         # a container's user, say, whom neither HOME nor the system's list of users knows
        raise UserError("this user has no home directory: set ANE_HOME to a folder for voices, bundles and the cache")
    return Path(home)
