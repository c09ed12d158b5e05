"""Report the version of tortoise-ane."""

import importlib.metadata


def version() -> str:
    """Return the installed version, or "(not installed)" in a checkout that is not installed."""
    try:
        return importlib.metadata.version("tortoise-ane")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
