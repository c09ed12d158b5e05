"""Open and write bundles. A bundle is a directory with one model: its configs, weights, tokenizer and mel norms.

Read the modules in this order: ``bundle`` (an open bundle), ``family`` (what is the same for all models of a kind),
``opening`` (finds a bundle by name or path), ``manifest``, ``package_records``, ``hashes`` and ``weights``. Then read
``contents`` and ``writing``. For the import of official checkpoints, read ``torch_checkpoint``, ``state_dicts``,
``surplus`` and ``hub``.
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
