"""The syntax of mixes, and the weighted mean of voices.

``a&b`` mixes voices in equal parts, ``a:0.3&b:0.7`` by weight. Weights need not sum to 1.
"""

import math
import os
from collections.abc import Sequence

import numpy as np

from ane.system.errors import UserError
from ane.voices.voice import Voice


def parse_mix(spec: str) -> tuple[list[str], list[float] | None]:
    """Split a mix into names or paths, and weights if it has any. A text that is an existing path is one path.

    Raises:
        UserError: an empty name; weights for some voices only; a weight below zero or not finite; all weights zero.
    """
    if os.path.exists(os.path.expanduser(spec)):
        return [spec], None
    parts = [_name_and_weight(part.strip()) for part in spec.split("&")]
    names = [name for name, _ in parts]
    weights = [weight for _, weight in parts if weight is not None]
    if not all(names):
        raise UserError(f"voice {spec!r}: a name is missing; write a, a&b or a:0.3&b:0.7")
    if weights and len(weights) < len(names):
        raise UserError(f"voice {spec!r}: give every voice a weight or none, as in a:0.3&b:0.7")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise UserError(f"voice {spec!r}: a weight must be a finite number of at least 0")
    if weights and not sum(weights):
        raise UserError(f"voice {spec!r}: all weights are zero; at least one must be positive")
    return names, weights or None


def mix_voices(voices: Sequence[Voice], weights: Sequence[float] | None = None, name: str = "") -> Voice:
    """Return the weighted mean of voices, with equal weights by default. CVVP gets the clips of all of them.

    Args:
        voices: at least one, all of the same widths.
        weights: one per voice, not negative, not all zero; they are divided by their sum.
    """
    shares = np.asarray(weights if weights is not None else [1.0] * len(voices), np.float64)
    shares = shares / shares.max()          # first, so that the sum neither overflows nor underflows
    shares = shares / shares.sum()
    ar, diffusion = (np.sum([share * row.astype(np.float64) for share, row in zip(shares, rows, strict=True)], axis=0)
                     for rows in ([voice.ar for voice in voices], [voice.diffusion for voice in voices]))
    mels = tuple(mel for share, voice in zip(shares, voices, strict=True) if share > 0 for mel in voice.clip_mels)
    source = "mix of " + ", ".join(f"{share:.0%} {voice.name}" for share, voice in zip(shares, voices, strict=True))
    return Voice(ar.astype(np.float32), diffusion.astype(np.float32), name or "mix", source, mels)


def _name_and_weight(part: str) -> tuple[str, float | None]:
    """"a:0.3" → ("a", 0.3); "a" → ("a", None)."""
    name, colon, tail = part.rpartition(":")
    if not colon:
        return part, None
    try:
        return name.strip(), float(tail)
    except ValueError:
        return part, None           # the colon is part of a path
