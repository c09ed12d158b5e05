"""Make child processes believe that they run on the fake Mac of ``tests.backends.coreml.native``, if on PYTHONPATH."""

import sys
from pathlib import Path

import coremltools  # noqa: F401  imported before the platform changes: urllib, which torch imports, would be another

sys.path.insert(0, str(Path(__file__).parents[4]))  # use this checkout, even if another one is installed

from tests.backends.coreml.native import install_in_process

install_in_process()
