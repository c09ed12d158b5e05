"""Entries of an official checkpoint: their names, weight norm, and checks of single tensors."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ane.bundles.weights import FLOATS, shape_text
from ane.system.errors import UserError

SHOWN = 6           # kinds of keys in a message, at most
Entries = Mapping[str, torch.Tensor]        # the state dict in a checkpoint


def pattern(key: str) -> str:
    """The key without its layer numbers: gpt.h.3.ln_1.weight → gpt.h.N.ln_1.weight."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "N", key)


def summarise_keys(keys: Iterable[str], most: int = sys.maxsize) -> str:
    """A short list of keys, at most ``most``: "30 × gpt.h.N.attn.bias, text_head.weight"."""
    counts = Counter(pattern(key) for key in keys)
    names = [f"{count} × {name}" if count > 1 else name for name, count in counts.items()]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


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


def match_entries(shapes: Mapping[str, tuple[int, ...]], entries: Entries, path: Path,
                  why_missing: Callable[[str], str], why_misshapen: Callable[[], str],
                  prefix: str = "") -> dict[str, tuple[str, ...]]:
    """For every key of a network, the entries of the file at ``path`` that it is computed from (``sources``).

    Args:
        shapes: of the network's state dict. prefix: its keys start with this in the file.
        why_missing: (first missing key) → the end of a message about it. why_misshapen: about a wrong shape.

    Raises:
        UserError: a key is missing, is not a float tensor, or has another shape than in the network.
    """
    found = {key: sources(prefix + key, entries) for key in shapes}
    missing = [prefix + key for key, source in found.items() if source is None]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UserError(f"{path}: key {missing[0]} is missing{more}: {why_missing(missing[0])}")
    for key, source in found.items():
        shape = shapes[key]
        gain = (shape[:1] + (1,) * (len(shape) - 1),) if len(source) == 2 else ()
        for part, wanted in zip(source, (*gain, shape), strict=True):
            check_entry(part, entries[part], wanted, path, why_misshapen)
    return found


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


def folded_key(key: str) -> str:
    """The key of the tensor after weight norm is folded in: X.weight_g → X.weight."""
    return re.sub(r"(weight_[gv]|parametrizations\.weight\.original[01])$", "weight", key)


def check_entry(key: str, entry: Any, shape: tuple[int, ...], path: Path, why: Callable[[], str]) -> None:
    """Check that an entry is a plain tensor of floats of this shape; ``why`` ends the message about another shape.

    Raises:
        UserError: it is not.
    """
    if not isinstance(entry, torch.Tensor) or entry.layout != torch.strided or entry.dtype not in FLOATS:
        kind = entry.dtype if isinstance(entry, torch.Tensor) else type(entry).__name__
        raise UserError(f"{path}: {key} is {kind} where a plain tensor of floats belongs; is it a quantised copy?")
    if entry.numel() * entry.element_size() > entry.untyped_storage().nbytes():     # a copy would fill the memory
        raise UserError(f"{path}: {key} claims the shape {shape_text(tuple(entry.shape))}, more than is stored for it; "
                        "the file is damaged")
    if tuple(entry.shape) != shape:
        raise UserError(f"{path}: {key} has shape {shape_text(tuple(entry.shape))}, the network has "
                        f"{shape_text(shape)}: {why()}")
