"""Provide the conversions that tests share. The first worker that needs a conversion makes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from ane.bundles import Bundle
from converters.conversion import COREML_TARGET, ConversionTarget, convert, fingerprint_of
from converters.function_table import chosen_networks


def converted(
    shared: Path,
    model: Bundle,
    options: Sequence[Any],
    networks: Sequence[str] | None = None,
    target: ConversionTarget = COREML_TARGET,
) -> Bundle:
    """The model with packages, read-only. ``shared``: the fixture of this name."""
    fingerprint = fingerprint_of(model, options, chosen_networks(model, networks, target.name), target)
    path = shared / "conversions" / fingerprint[:16]
    path.parent.mkdir(exist_ok=True)
    with FileLock(f"{path}.lock"):
        return Bundle(path) if path.exists() else convert(model, path, options, networks, target=target)
