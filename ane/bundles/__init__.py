"""A model on disk: configs, weights, tokenizer and mel norms, from a bundle or from official checkpoints.

Read in this order: ``model`` (the interface), ``family`` (what a kind of model declares), ``opening`` (names and
paths); then ``bundle`` with ``manifest``, ``packages``, ``hashes`` and ``weights``; then ``entries`` and ``hub`` for
official checkpoints.
"""

from ane.bundles.model import Model
from ane.bundles.opening import (
    EMBEDDED,
    add_model_arguments,
    bundle_names,
    demo_bundle,
    find_bundle,
    is_path,
    open_model,
)

__all__ = ["EMBEDDED", "Model", "add_model_arguments", "bundle_names", "demo_bundle", "find_bundle", "is_path",
           "open_model"]
