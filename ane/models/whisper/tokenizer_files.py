"""Read Whisper's tokenizer from the files of a checkpoint, and convert it to a tokenizer.json of Hugging Face.

The module looks for tokenizer.json, then for vocab.json with merges.txt, then for openai-whisper's rank file
(multilingual.tiktoken or gpt2.tiktoken). It reads the first of these that exists.
"""

import base64
import math
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import tokenizers

from ane.bundles.tokenizer_json import read_tokenizer
from ane.system.errors import UserError
from ane.system.file_gate import read_regular
from ane.system.files import MAX_JSON, read_json

MULTILINGUAL_RANKS, ENGLISH_RANKS = "multilingual.tiktoken", "gpt2.tiktoken"


def find_tokenizer(folder: Path, multilingual: bool) -> str:
    """Read the tokenizer in ``folder``, and return it as JSON.

    Raises:
        UserError: The folder has no tokenizer, or it is damaged.
    """
    if os.path.isfile(folder / "tokenizer.json"):
        return read_tokenizer(folder / "tokenizer.json")
    if os.path.isfile(folder / "vocab.json") and os.path.isfile(folder / "merges.txt"):
        return from_merges(folder / "vocab.json", folder / "merges.txt")
    ranks = MULTILINGUAL_RANKS if multilingual else ENGLISH_RANKS
    if os.path.isfile(folder / ranks):
        return from_ranks(folder / ranks)
    raise UserError(
        f"{folder} has no tokenizer: add tokenizer.json (or vocab.json and merges.txt) from the model's "
        f"Hugging Face repository, or {ranks} from openai-whisper"
    )


def from_merges(vocabulary: Path, merges: Path) -> str:
    """Convert vocab.json and merges.txt, which have GPT-2's format, to a tokenizer as JSON."""
    ids = read_json(vocabulary)
    try:
        lines = read_regular(merges, MAX_JSON).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {merges}: {error}") from error
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    return _as_json(ids, pairs, vocabulary)


def from_ranks(path: Path) -> str:
    """Convert a rank file to a tokenizer as JSON.

    A line of the file has a token's bytes in base64, and its rank, which is also its id. The file does not list the
    merges of the BPE, so this function computes them. If all merges of lower rank are applied to a token's bytes, two
    parts are left, and the token's merge joins these parts.
    """
    ranks: dict[bytes, int] = {}
    try:
        for line in read_regular(path, MAX_JSON).decode("ascii").splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        ranks.pop(b"", None)  # the multilingual file has an empty token, which texts do not need
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a rank file of openai-whisper ({error}): get the file again") from error
    letters = byte_letters()

    def spell(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    pairs = [
        tuple(map(spell, merge_parts(token, ranks))) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1
    ]
    return _as_json({spell(token): rank for token, rank in ranks.items()}, pairs, path)


def merge_parts(token: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """Apply all merges of lower rank to a token's bytes, the lowest rank first. Returns the parts that are left."""
    parts = [token[index : index + 1] for index in range(len(token))]
    while len(parts) > 2:
        candidates = [ranks.get(left + right, math.inf) for left, right in pairwise(parts)]
        index = min(range(len(candidates)), key=candidates.__getitem__)
        if candidates[index] >= ranks[token]:
            break
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    return parts


def byte_letters() -> list[str]:
    """Return the characters that stand for bytes 0 to 255 in GPT-2's BPE.

    A printable byte stands for itself. The other bytes become U+0100, U+0101 and so on.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _as_json(ids: Mapping[str, int], pairs: list[tuple[str, ...]], path: Path) -> str:
    try:
        return tokenizers.Tokenizer(tokenizers.models.BPE(dict(ids), pairs)).to_str()
    except Exception as error:  # the library raises nothing more specific
        raise UserError(f"{path} does not describe a tokenizer ({error}): get the file again") from error
