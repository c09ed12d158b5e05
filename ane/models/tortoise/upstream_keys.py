"""Matches the entries of an official checkpoint to a network's state dict; errors explain a mismatch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ane.bundles.entries import Entries, folded_key, match_entries, pattern, sources, summarise_keys
from ane.bundles.weights import layout
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError


def networks_of(file: str) -> list[str]:
    """Names of the networks whose parameters upstream keeps in ``file``."""
    return [name for name, network in NETWORKS.items() if network.file == file]


def match(name: str, configs: Mapping[str, Any], entries: Entries, path: Path) -> dict[str, tuple[str, ...]]:
    """For every key of network ``name``, the entries of the file at ``path`` that it is computed from (``sources``).

    Raises:
        UserError: a key is missing, is not a float tensor, or has another shape than in the network.
    """
    return match_entries(layout(NETWORKS[name], configs[name]).shapes, entries, path,
                         lambda key: _why_missing(key, entries, path, configs),
                         lambda: _why_misshapen(entries, path, configs), NETWORKS[name].prefix)


def check_surplus(entries: Entries, used: set[str], path: Path) -> None:
    """Check that no layer in the file is left unused, which would load only a part of a larger model.

    Raises:
        UserError: the file has more layers than the config.
    """
    used_keys = {folded_key(key) for key in used}
    patterns = {pattern(key) for key in used_keys}
    surplus = sorted(key for key in entries
                     if folded_key(key) not in used_keys and pattern(folded_key(key)) in patterns)
    if surplus:
        raise UserError(f"{path}: {surplus[0]} is beyond the network that the config describes (surplus: "
                        f"{summarise_keys(surplus)}): {_size_hint(path)}")


def looks_like(entries: Entries, file: str, configs: Mapping[str, Any]) -> str | None:
    """The other official file whose keys, ignoring layer numbers, are all among ``entries``; None: there is none.

    Of several, the one with the most keys; of equals, one whose shapes with ``configs`` match too.
    """
    present = {pattern(folded_key(key)) for key in entries}
    best: tuple[int, bool, str | None] = (0, False, None)
    for other in {network.file for network in NETWORKS.values()} - {file}:
        names = networks_of(other)
        wanted = {pattern(NETWORKS[name].prefix + key) for name in names
                  for key in layout(NETWORKS[name], configs[name]).shapes}
        if wanted <= present:
            best = max(best, (len(wanted), all(_fits(name, configs[name], entries) for name in names), other))
    return best[2]


def _why_missing(key: str, entries: Entries, path: Path, configs: Mapping[str, Any]) -> str:
    if not any(isinstance(entry, torch.Tensor) for entry in entries.values()):
        found = summarise_keys(map(str, entries)) or "nothing"
        return f"the file has no tensors, only {found}; it must be a plain state dict"
    other = looks_like(entries, path.name, configs)
    if other:
        return f"its keys are those of {other}; the file is misnamed"
    if pattern(key) in {pattern(folded_key(present)) for present in entries}:
        return f"other layers have it, so the file has fewer layers than its config, or is damaged; {_size_hint(path)}"
    return f"this is not upstream's {path.name}, or a damaged copy of it"


def _why_misshapen(entries: Entries, path: Path, configs: Mapping[str, Any]) -> str:
    other = looks_like(entries, path.name, configs)
    if other and all(_fits(name, configs[name], entries) for name in networks_of(other)):
        return f"it fits {other}; the file is misnamed"
    return _size_hint(path)


def _fits(name: str, config: Any, entries: Entries) -> bool:
    for key, shape in layout(NETWORKS[name], config).shapes.items():
        source = sources(NETWORKS[name].prefix + key, entries)
        if source is None or tuple(entries[source[-1]].shape) != shape:
            return False
    return True


def _size_hint(path: Path) -> str:
    return (f"if it is another size of the model, state its constructor arguments in {path.parent / 'config.json'} "
            "or with config=FILE")
