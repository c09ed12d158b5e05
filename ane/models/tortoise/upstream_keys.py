"""Matches the entries of an official checkpoint to a network's state dict; errors explain a mismatch."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ane.bundles.weights import FLOATS, layout, shape_text
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError

Entries = Mapping[str, torch.Tensor]        # the state dict in a checkpoint


def pattern(key: str) -> str:
    """The key without its layer numbers: gpt.h.3.ln_1.weight → gpt.h.N.ln_1.weight."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "N", key)


def summarise_keys(keys: Iterable[str]) -> str:
    """A short list of keys: "30 × gpt.h.N.attn.bias, text_head.weight"."""
    counts = Counter(pattern(key) for key in keys)
    return ", ".join(f"{count} × {name}" if count > 1 else name for name, count in counts.items())


def networks_of(file: str) -> list[str]:
    """Names of the networks whose parameters upstream keeps in ``file``."""
    return [name for name, network in NETWORKS.items() if network.file == file]


def sources(key: str, entries: Entries) -> tuple[str, ...] | None:
    """The entries that ``key`` is computed from: itself, or the gain and direction of its weight norm; None: missing.

    Weight norm is stored as X.weight_g and X.weight_v by torch.nn.utils.weight_norm (in the official files), and as
    X.parametrizations.weight.original0 and 1 by torch.nn.utils.parametrizations.weight_norm.
    """
    if key in entries:
        return (key,)
    if key.endswith(".weight"):
        parametrized = f"{key.removesuffix('weight')}parametrizations.weight.original"
        for pair in ((f"{key}_g", f"{key}_v"), (f"{parametrized}0", f"{parametrized}1")):
            if all(part in entries for part in pair):
                return pair
    return None


def match(name: str, configs: Mapping[str, Any], entries: Entries, path: Path) -> dict[str, tuple[str, ...]]:
    """For every key of network ``name``, the entries of the file at ``path`` that it is computed from (``sources``).

    Raises:
        UserError: a key is missing, is not a float tensor, or has another shape than in the network.
    """
    prefix, shapes = NETWORKS[name].prefix, layout(NETWORKS[name], configs[name]).shapes
    found = {key: sources(prefix + key, entries) for key in shapes}
    missing = [prefix + key for key, source in found.items() if source is None]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        why = _why_missing(missing[0], entries, path, configs)
        raise UserError(f"{path}: key {missing[0]} is missing{more}: {why}")
    for key, source in found.items():
        shape = shapes[key]
        gain = (shape[:1] + (1,) * (len(shape) - 1),) if len(source) == 2 else ()
        for part, wanted in zip(source, (*gain, shape), strict=True):
            _check_entry(part, entries[part], wanted, path, lambda: _why_misshapen(entries, path, configs))
    return found


def check_surplus(entries: Entries, used: set[str], path: Path) -> None:
    """Check that no layer in the file is left unused, which would load only a part of a larger model.

    Raises:
        UserError: the file has more layers than the config.
    """
    used_keys = {_folded_key(key) for key in used}
    patterns = {pattern(key) for key in used_keys}
    surplus = sorted(key for key in entries
                     if _folded_key(key) not in used_keys and pattern(_folded_key(key)) in patterns)
    if surplus:
        raise UserError(f"{path}: {surplus[0]} is beyond the network that the config describes (surplus: "
                        f"{summarise_keys(surplus)}): {_size_hint(path)}")


def assemble(source: tuple[str, ...], entries: Entries) -> torch.Tensor:
    """A tensor from the entries named in ``source``, with weight norm folded in; float64 is converted to float32."""
    if len(source) == 2:
        return fold_weight_norm(*(entries[part] for part in source))
    tensor = entries[source[0]].detach()
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def fold_weight_norm(gain: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """w = g · v / ‖v‖, the norm over all dimensions but the first (Salimans and Kingma 2016, arXiv 1602.07868)."""
    v = direction.detach().float()
    norm = torch.linalg.vector_norm(v, dim=tuple(range(1, v.dim())), keepdim=True)
    result = v * (gain.detach().float() / norm)
    return result if direction.dtype == torch.float64 else result.to(direction.dtype)


def looks_like(entries: Entries, file: str, configs: Mapping[str, Any]) -> str | None:
    """The other official file whose keys, ignoring layer numbers, are all among ``entries``; None: there is none.

    Of several, the one with the most keys; of equals, one whose shapes with ``configs`` match too.
    """
    present = {pattern(_folded_key(key)) for key in entries}
    best: tuple[int, bool, str | None] = (0, False, None)
    for other in {network.file for network in NETWORKS.values()} - {file}:
        names = networks_of(other)
        wanted = {pattern(NETWORKS[name].prefix + key) for name in names
                  for key in layout(NETWORKS[name], configs[name]).shapes}
        if wanted <= present:
            best = max(best, (len(wanted), all(_fits(name, configs[name], entries) for name in names), other))
    return best[2]


def _folded_key(key: str) -> str:
    """The key of the tensor after weight norm is folded in: X.weight_g → X.weight."""
    return re.sub(r"(weight_[gv]|parametrizations\.weight\.original[01])$", "weight", key)


def _check_entry(key: str, entry: Any, shape: tuple[int, ...], path: Path, why: Callable[[], str]) -> None:
    if not isinstance(entry, torch.Tensor) or entry.layout != torch.strided or entry.dtype not in FLOATS:
        kind = entry.dtype if isinstance(entry, torch.Tensor) else type(entry).__name__
        raise UserError(f"{path}: {key} is {kind} where a plain tensor of floats belongs; is it a quantised copy?")
    if entry.numel() * entry.element_size() > entry.untyped_storage().nbytes():     # a copy would fill the memory
        raise UserError(f"{path}: {key} claims the shape {shape_text(tuple(entry.shape))}, more than is stored for it; "
                        "the file is damaged")
    if tuple(entry.shape) != shape:
        raise UserError(f"{path}: {key} has shape {shape_text(tuple(entry.shape))}, the network has "
                        f"{shape_text(shape)}: {why()}")


def _why_missing(key: str, entries: Entries, path: Path, configs: Mapping[str, Any]) -> str:
    if not any(isinstance(entry, torch.Tensor) for entry in entries.values()):
        found = summarise_keys(map(str, entries)) or "nothing"
        return f"the file has no tensors, only {found}; it must be a plain state dict"
    other = looks_like(entries, path.name, configs)
    if other:
        return f"its keys are those of {other}; the file is misnamed"
    if pattern(key) in {pattern(_folded_key(present)) for present in entries}:
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
