"""Report the version of this package."""

import importlib.metadata


def version() -> str:
    """Return the installed version, or "(not installed)" in a checkout."""
    try:
        return importlib.metadata.version("tortoise-ane")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
