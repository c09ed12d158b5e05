"""Text to chunks of phonemes, by their ids, which are Kokoro's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ane.speech.chunks import Chunk, split_to_fit
from ane.text.passages import Passage
from ane.text.phonemes import PhonemeWord, phonemise

PAD = 0  # before and after the phonemes of a chunk: silence
IDS = {
    symbol: number
    for symbols, numbers in {
        ";:,.!?—…()“” ": (1, 2, 3, 4, 5, 6, 9, 10, 12, 13, 14, 15, 16),
        "AIOQSTWYᵊ": (24, 25, 31, 33, 35, 36, 39, 41, 42),
        "abcdefhijklmnopqrstuvwxyz": (*range(43, 49), *range(50, 69)),
        "ɑɐɒæɔðʤəɚɛɜɡɪ": (69, 70, 71, 72, 76, 81, 82, 83, 85, 86, 87, 92, 102),
        "ŋθɹɾʃʧʊʌʒʔˈˌːᵻ": (112, 119, 123, 125, 131, 133, 135, 138, 147, 148, 156, 157, 158, 177),
    }.items()
    for symbol, number in zip(symbols, numbers, strict=True)
}


def symbol_ids(
    words: Sequence[PhonemeWord], known: Mapping[str, int] = IDS
) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    """The ids of words and marks, (T,) int64, and each word with its first id and the one after its last.

    Args:
        known: the ids of the phonemes; others are left out.
    """
    ids, spans = [PAD], []
    for word in words:
        first = len(ids)
        ids += [known[phoneme] for phoneme in word.phonemes if phoneme in known]
        if any(map(str.isalpha, word.text)) and len(ids) > first:
            spans.append((word.text, first, len(ids)))
        if word.spaced:
            ids.append(known[" "])
    if ids[-1] == known[" "]:
        ids.pop()
    return np.array([*ids, PAD], np.int64), spans


@dataclass(eq=False)
class PhonemeChunk(Chunk):
    """A piece of text spoken in one pass."""

    ids: np.ndarray  # (T,) int64
    spans: Sequence[tuple[str, int, int]]  # each word with its first id and the one after its last

    @property
    def length(self) -> int:
        return len(self.ids)


def split_into_phonemes(
    passages: Sequence[Passage],
    lengths: tuple[int, int] | None,
    most: int,
    pause: Callable[[str], float] = lambda text: 0.0,
    british: bool = False,
) -> list[PhonemeChunk]:
    """The chunks of passages, of at most ``most`` ids. Others: ``split_to_fit``, ``symbol_ids``, ``phonemise``."""

    def make(piece: str, passage: Passage) -> PhonemeChunk | None:
        ids, spans = symbol_ids(phonemise(piece, british))
        return PhonemeChunk(piece, ids, spans) if spans else None

    return split_to_fit(passages, make, lengths, most, "phonemes", pause)
