"""Open a model on disk: its configs, weights, tokenizer and mel norms, stored as a bundle.

Read in this order: ``bundle`` (the only form of a model on disk), ``family`` (the declarations of a kind of model),
``opening`` (names and paths), ``manifest``, ``packages``, ``hashes`` and ``weights``. Then read ``contents`` and
``writing``. For official checkpoints, read ``torch_checkpoint``, ``surplus`` and ``hub``.
"""

from ane.bundles.bundle import Bundle
from ane.bundles.opening import (
    EMBEDDED,
    add_model_arguments,
    bundle_names,
    demo_bundle,
    find_bundle,
    is_path,
    open_model,
)

Model = Bundle

__all__ = [
    "EMBEDDED",
    "Bundle",
    "Model",
    "add_model_arguments",
    "bundle_names",
    "demo_bundle",
    "find_bundle",
    "is_path",
    "open_model",
]
