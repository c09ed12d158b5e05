"""Split text into chunks, and convert each chunk to phoneme ids. The ids are Kokoro's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ane.speech.chunks import Chunk, split_to_fit
from ane.text.passages import Passage
from ane.text.phonemes import PhonemeWord, cut_words, phonemise
from ane.text.phonemes.unknown_words import LONGEST

PAD = 0  # the id that stands for silence, before and after the phonemes of a chunk
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
    """Convert words and punctuation marks to phoneme ids.

    Args:
        words: Words and punctuation marks, with their phonemes.
        known: Id of each phoneme. Phonemes without an id are left out.

    Returns:
        The ids, (T,) int64. Then a triple for each word: the word, the index of its first id, and the index after its
        last id.
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


def notes_on_words(words: Sequence[PhonemeWord]) -> list[str]:
    """Return a note for each unknown word that is too long for the network that makes its phonemes."""
    return [
        f"the word '{word[:LONGEST]}…' is cut after {LONGEST} letters: respell it, or put spaces in it"
        for word in cut_words(words)
    ]


@dataclass(eq=False)
class PhonemeChunk(Chunk):
    """A piece of text that the model speaks in one pass, as phonemes.

    Attributes:
        ids: Ids of the phonemes, (T,) int64.
        spans: A triple for each word: the word, the index of its first id, and the index after its last id.
    """

    ids: np.ndarray
    spans: Sequence[tuple[str, int, int]]

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
    """Split passages (stretches of text with one voice) into chunks of at most ``most`` phoneme ids.

    Args:
        passages: Passages of a text.
        lengths: Desired and maximum number of characters in a chunk, as for ``split_to_fit``.
        most: Largest number of ids in a chunk.
        pause: Function from a chunk's text to the seconds of silence after it, as for ``split_to_fit``.
        british: Whether to pronounce words as in British English.
    """

    def make(piece: str, passage: Passage) -> PhonemeChunk | None:
        ids, spans = symbol_ids(words := phonemise(piece, british))
        return PhonemeChunk(piece, ids, spans, notes=notes_on_words(words)) if spans else None

    return split_to_fit(passages, make, lengths, most, "phonemes", pause)
