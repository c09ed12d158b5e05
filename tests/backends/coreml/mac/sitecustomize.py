"""On PYTHONPATH, this makes child processes believe that they run on the Mac of ``tests.backends.coreml.native``."""

import coremltools  # noqa: F401  imported before the platform changes: urllib, which torch imports, would be another

from tests.backends.coreml.native import install_in_process

install_in_process()
