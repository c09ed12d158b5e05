"""Text to symbol ids as NVIDIA's FastSpeech example does it (fastspeech/text_norm, Keith Ito's, MIT).

English letters and punctuation, or ARPAbet phonemes in braces: "{HH AH0 L OW1} there". What has no symbol is dropped.
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
    """The symbol ids of ``text``; text in braces is ARPAbet, the rest is normalised by the English cleaners."""
    ids: list[int] = []
    while found := BRACES.match(text):
        before, phonemes, text = found.groups()
        ids += _letter_ids(before) + [IDS[f"@{phoneme}"] for phoneme in phonemes.split() if f"@{phoneme}" in IDS]
    return ids + _letter_ids(text)


def is_speakable(ids: list[int]) -> bool:
    """Whether a letter or a phoneme is among the ids."""
    return any(index >= IDS["A"] for index in ids)


def unknown_phonemes(text: str) -> list[str]:
    """What stands in braces in ``text`` and is no ARPAbet phoneme; it is not spoken."""
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
    """A piece of text spoken in one pass."""

    ids: np.ndarray  # (T,) int64, at least one

    @property
    def length(self) -> int:
        return len(self.ids)


def split_into_symbols(
    text: str | Sequence[Passage], lengths: tuple[int, int] | None, most: int, pause: float = 0.0
) -> list[SymbolChunk]:
    """The chunks of a text, or of its passages, of at most ``most`` symbols. Arguments, errors: ``split_to_fit``."""

    def make(piece: str, passage: Passage) -> SymbolChunk | None:
        ids = text_to_ids(piece)
        return SymbolChunk(piece, np.array(ids, np.int64)) if is_speakable(ids) else None

    return split_to_fit(text, make, lengths, most, "symbols", lambda text: pause)


def halve(chunk: SymbolChunk, most: int, pause: float = 0.0) -> list[SymbolChunk]:
    """The parts of a chunk, about half as long each; the chunk itself when it is a single word."""
    parts = split_into_symbols(chunk.text, halves(len(chunk.text)), most, pause)
    if len(parts) < 2:
        return [chunk]
    for part in parts:
        part.named, part.voice, part.speed, part.gain = chunk.named, chunk.voice, chunk.speed, chunk.gain
    parts[0].before, parts[-1].after, parts[-1].final = chunk.before, chunk.after, chunk.final
    return parts


def symbol_words(ids: Sequence[int] | np.ndarray) -> Iterator[tuple[str, int, int]]:
    """Each word with its first symbol and the one after its last, without punctuation."""
    symbols = (SYMBOLS[number] for number in ids)
    return joined_pieces((symbol.removeprefix("@"), IDS[symbol] >= IDS["A"]) for symbol in symbols)
