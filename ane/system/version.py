"""The version of this package, for people and for the files it writes."""

import importlib.metadata


def version() -> str:
    try:
        return importlib.metadata.version("tortoise-ane")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"        # run from a checkout
