"""List Whisper's alignment heads: cross-attention heads that follow the sound from word to word, and so time words.

The lists here are for OpenAI's published weights (openai/whisper __init__.py, ``_ALIGNMENT_HEADS``). Hugging Face
stores the same lists in generation_config.json, and CTranslate2 in config.json.
"""

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ane.system.errors import UserError
from ane.system.files import read_json

Heads = tuple[tuple[int, int], ...]  # (layer, head) pairs

GENERATION, CTRANSLATE2_CONFIG = "generation_config.json", "config.json"
LARGE_V3: Heads = ((7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1), (25, 6))
TURBO: Heads = ((2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14))
# The keys are the names of OpenAI's .pt files.
PUBLISHED = MappingProxyType(
    {
        "tiny.en": ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)),
        "tiny": ((2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)),
        "base.en": ((3, 3), (4, 7), (5, 1), (5, 5), (5, 7)),
        "base": ((3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)),
        "small.en": (
            (6, 6),
            (7, 0),
            (7, 3),
            (7, 8),
            (8, 2),
            (8, 5),
            (8, 7),
            (9, 0),
            (9, 4),
            (9, 8),
            (9, 10),
            (10, 0),
            (10, 1),
            (10, 2),
            (10, 3),
            (10, 6),
            (10, 11),
            (11, 2),
            (11, 4),
        ),
        "small": ((5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5)),
        "medium.en": (
            (11, 4),
            (14, 1),
            (14, 12),
            (14, 14),
            (15, 4),
            (16, 0),
            (16, 4),
            (16, 9),
            (17, 12),
            (17, 14),
            (18, 7),
            (18, 10),
            (18, 15),
            (20, 0),
            (20, 3),
            (20, 9),
            (20, 14),
            (21, 12),
        ),
        "medium": ((13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4)),
        "large-v1": ((9, 19), (11, 2), (11, 4), (11, 17), (22, 7), (22, 11), (22, 17), (23, 2), (23, 15)),
        "large-v2": (
            (10, 12),
            (13, 17),
            (16, 11),
            (16, 12),
            (16, 13),
            (17, 15),
            (17, 16),
            (18, 4),
            (18, 11),
            (18, 19),
            (19, 11),
            (21, 2),
            (21, 3),
            (22, 3),
            (22, 9),
            (22, 12),
            (23, 5),
            (23, 7),
            (23, 13),
            (25, 5),
            (26, 1),
            (26, 12),
            (27, 15),
        ),
        "large-v3": LARGE_V3,
        "large": LARGE_V3,
        "large-v3-turbo": TURBO,
        "turbo": TURBO,
    }
)


def find_alignment_heads(weights: Path, layers: int, heads: int) -> Heads:
    """Find the alignment heads of a checkpoint. Returns () if they are unknown.

    The heads come from Hugging Face's generation_config.json or CTranslate2's config.json. For a .pt file of OpenAI,
    they come from ``PUBLISHED``, by the file's name.

    Args:
        weights: OpenAI's .pt file, CTranslate2's model.bin, or a Hugging Face folder.
        layers: Number of layers of the decoder.
        heads: Number of heads per layer.

    Raises:
        UserError: The JSON file is damaged, or names a head that the decoder lacks.
    """
    if weights.suffix == ".pt":
        named = PUBLISHED.get(weights.stem, ())  # a file with this name may hold another model
        return named if all(layer < layers and head < heads for layer, head in named) else ()
    path = weights / GENERATION if weights.is_dir() else weights.parent / CTRANSLATE2_CONFIG
    content = read_json(path) if path.is_file() else {}
    found = content.get("alignment_heads") if isinstance(content, dict) else None
    if found is None:
        return ()
    check_alignment_heads(found, layers, heads, str(path))
    return tuple((layer, head) for layer, head in found)


def check_alignment_heads(value: Any, layers: float, heads: float, where: str) -> None:
    """Raise UserError unless the JSON value is a list of [layer, head] pairs that a decoder of this size has.

    Args:
        value: JSON value to check.
        layers: Number of layers of the decoder.
        heads: Number of heads per layer.
        where: Name of the file, with which the message begins.
    """

    def is_index(index: Any, count: float) -> bool:
        return isinstance(index, int) and not isinstance(index, bool) and 0 <= index < count

    if not isinstance(value, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and is_index(pair[0], layers) and is_index(pair[1], heads)
        for pair in value
    ):
        raise UserError(
            f"{where}: alignment_heads must be a list of [layer, head] pairs that the decoder has, not {value!r}"
        )


def alignment_heads(stated: Sequence[tuple[int, int]], layers: int, heads: int) -> Heads:
    """Return the heads ``stated``. If there are none, return all heads in the upper half of the layers."""
    return tuple(stated) or tuple((layer, head) for layer in range(layers // 2, layers) for head in range(heads))
