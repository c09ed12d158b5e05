"""Run a model's networks on an engine such as PyTorch, Core ML or ONNX Runtime, through a common interface.

``base`` defines this interface, ``Backend``. ``choosing`` opens a backend by its name.
"""

from ane.backends.choosing import NAMES, core_ml_is_chosen, core_ml_runs, load_backend, resolve
from ane.backends.engines import PACKAGED

__all__ = ["NAMES", "PACKAGED", "core_ml_is_chosen", "core_ml_runs", "load_backend", "resolve"]
