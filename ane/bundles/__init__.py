"""A model on disk: configs, weights, tokenizer and mel norms in a bundle.

Read in this order: ``bundle`` (the only model on disk), ``family`` (what a kind of model declares), ``opening`` (names
and paths), ``manifest``, ``packages``, ``hashes`` and ``weights``; then ``contents`` and ``writing``; then ``entries``,
``surplus`` and ``hub`` for official checkpoints.
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
