"""Backends run the stages that a model declares: ``base`` is the contract, ``choosing`` opens one by name."""

from ane.backends.choosing import NAMES, PACKAGED, core_ml_is_chosen, core_ml_runs, load_backend, resolve

__all__ = ["NAMES", "PACKAGED", "core_ml_is_chosen", "core_ml_runs", "load_backend", "resolve"]
