"""The protobuf messages of Core ML, without the rest of coremltools."""

import importlib
import sys
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

from ane.system.errors import UserError

ALIAS = f"{__name__}_of_coremltools"


@cache
def model_messages() -> ModuleType:
    """The module that coremltools generated from Model.proto. Raises UserError when coremltools is not installed.

    ``import coremltools.proto`` would first run ``coremltools/__init__.py``: 1 s beyond torch, and eight warnings off
    macOS. Importing the folder under another name takes 0.06 s. Both copies may be loaded in either order, since
    protobuf keeps one class for each message.
    """
    found = PathFinder.find_spec("coremltools")
    if found is None or not found.submodule_search_locations:
        raise UserError("reading a Core ML package needs coremltools; install it with: pip install coremltools==9.0")
    spec = ModuleSpec(ALIAS, None, is_package=True)
    spec.submodule_search_locations = [str(Path(found.submodule_search_locations[0]) / "proto")]
    sys.modules[ALIAS] = module_from_spec(spec)
    return importlib.import_module(f"{ALIAS}.Model_pb2")
