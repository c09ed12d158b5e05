"""Give a Linux process the limits of a Mac, if on PYTHONPATH: ``sys.platform``, and no RLIMIT_AS."""

import resource
import sys

import numpy  # noqa: F401  imported before the platform changes, as the others: their files depend on it
import pypdfium2  # noqa: F401
import soundfile  # noqa: F401

set_limit = resource.setrlimit


def setrlimit(kind: int, limits: tuple[int, int]) -> None:
    """Refuse what macOS on Apple Silicon does (EINVAL becomes a ValueError in Python)."""
    if kind == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    set_limit(kind, limits)


resource.setrlimit = setrlimit
sys.platform = "darwin"
