"""A model on disk: configs, weights, tokenizer and mel norms, from a bundle or from official checkpoints.

Read in this order: ``interface`` (what every model gives), ``opening`` (names and paths); then ``bundle`` with
``manifest``, ``hashes`` and ``weights``; then ``checkpoints`` with ``pickles``, ``upstream_keys`` and
``upstream_config``; last ``hub``, which fetches them.
"""

from ane.bundles.model import Model
from ane.bundles.opening import DEMO, add_model_arguments, bundle_names, demo_bundle, find_bundle, is_path, open_model

__all__ = ["DEMO", "Model", "add_model_arguments", "bundle_names", "demo_bundle", "find_bundle", "is_path",
           "open_model"]
