"""Convert text to symbol ids as NVIDIA's FastSpeech example does.

The rules are in its fastspeech/text_norm, which is by Keith Ito (MIT). The text can have English letters, punctuation,
and ARPAbet phonemes in braces, as in "{HH AH0 L OW1} there". Other characters are dropped.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ane.models.alignment import joined_pieces
from ane.speech.chunks import Chunk, halves, split_to_fit
from ane.text import normalise_upstream
from ane.text.passages import Passage

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
VOWELS = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
CONSONANTS = (
    "B",
    "CH",
    "D",
    "DH",
    "F",
    "G",
    "HH",
    "JH",
    "K",
    "L",
    "M",
    "N",
    "NG",
    "P",
    "R",
    "S",
    "SH",
    "T",
    "TH",
    "V",
    "W",
    "Y",
    "Z",
    "ZH",
)
PHONEMES = tuple(sorted([*CONSONANTS, *(vowel + stress for vowel in VOWELS for stress in ("", "0", "1", "2"))]))
SYMBOLS = ("_", "-", *"!'(),.:;? ", *LETTERS, *(f"@{phoneme}" for phoneme in PHONEMES))
IDS = {symbol: index for index, symbol in enumerate(SYMBOLS)}
BRACES = re.compile(r"(.*?)\{(.+?)\}(.*)", re.DOTALL)


def text_to_ids(text: str) -> list[int]:
    """Convert a text to symbol ids. Text in braces is read as ARPAbet. The English cleaners normalise other text."""
    ids: list[int] = []
    while match := BRACES.match(text):
        before, phonemes, text = match.groups()
        ids += _letter_ids(before) + [IDS[f"@{phoneme}"] for phoneme in phonemes.split() if f"@{phoneme}" in IDS]
    return ids + _letter_ids(text)


def is_speakable(ids: list[int]) -> bool:
    """Return whether the ids contain a letter or a phoneme."""
    return any(index >= IDS["A"] for index in ids)


def unknown_phonemes(text: str) -> list[str]:
    """List the words in braces that are not ARPAbet phonemes and so are not spoken."""
    return [
        phoneme
        for inside in re.findall(r"\{(.+?)\}", text, re.DOTALL)
        for phoneme in inside.split()
        if f"@{phoneme}" not in IDS
    ]


def _letter_ids(text: str) -> list[int]:
    return [IDS[character] for character in normalise_upstream(text) if character in IDS]


@dataclass(eq=False)
class SymbolChunk(Chunk):
    """A piece of text that the model speaks in one pass, with the ids of its symbols."""

    ids: np.ndarray  # (T,) int64, T ≥ 1

    @property
    def length(self) -> int:
        return len(self.ids)


def split_into_symbols(
    text: str | Sequence[Passage], lengths: tuple[int, int] | None, most: int, pause: float = 0.0
) -> list[SymbolChunk]:
    """Split a text, or its passages, into chunks of at most ``most`` symbols (see ``split_to_fit``).

    Between two chunks, there are ``pause`` seconds of silence.
    """

    def make(piece: str, passage: Passage) -> SymbolChunk | None:
        ids = text_to_ids(piece)
        return SymbolChunk(piece, np.array(ids, np.int64)) if is_speakable(ids) else None

    return split_to_fit(text, make, lengths, most, "symbols", lambda text: pause)


def halve(chunk: SymbolChunk, most: int, pause: float = 0.0) -> list[SymbolChunk]:
    """Split a chunk into parts of about half its length. If this is impossible, return only the chunk."""
    parts = split_into_symbols(chunk.text, halves(len(chunk.text)), most, pause)
    if len(parts) < 2:
        return [chunk]
    for part in parts:
        part.named, part.voice, part.speed, part.gain = chunk.named, chunk.voice, chunk.speed, chunk.gain
    parts[0].before, parts[-1].after, parts[-1].final = chunk.before, chunk.after, chunk.final
    return parts


def symbol_words(ids: Sequence[int] | np.ndarray) -> Iterator[tuple[str, int, int]]:
    """Yield each word without punctuation, with the index of its first symbol and the index after its last symbol."""
    symbols = (SYMBOLS[number] for number in ids)
    return joined_pieces((symbol.removeprefix("@"), IDS[symbol] >= IDS["A"]) for symbol in symbols)
