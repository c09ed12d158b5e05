"""The phonemes that the model knows, by its ids, which are Kokoro's."""

from collections.abc import Sequence

import numpy as np

from ane.text.phonemes import PhonemeWord

PAD = 0                 # before and after the phonemes of a chunk: silence
IDS = {symbol: number for symbols, numbers in {
    ";:,.!?—…()“” ": (1, 2, 3, 4, 5, 6, 9, 10, 12, 13, 14, 15, 16),
    "AIOQSTWYᵊ": (24, 25, 31, 33, 35, 36, 39, 41, 42),
    "abcdefhijklmnopqrstuvwxyz": (*range(43, 49), *range(50, 69)),
    "ɑɐɒæɔðʤəɚɛɜɡɪ": (69, 70, 71, 72, 76, 81, 82, 83, 85, 86, 87, 92, 102),
    "ŋθɹɾʃʧʊʌʒʔˈˌːᵻ": (112, 119, 123, 125, 131, 133, 135, 138, 147, 148, 156, 157, 158, 177),
}.items() for symbol, number in zip(symbols, numbers, strict=True)}


def symbol_ids(words: Sequence[PhonemeWord]) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    """The ids of words and marks, (T,) int64, and each word with its first id and the one after its last."""
    ids, spans = [PAD], []
    for word in words:
        first = len(ids)
        ids += [IDS[phoneme] for phoneme in word.phonemes if phoneme in IDS]
        if any(map(str.isalpha, word.text)) and len(ids) > first:
            spans.append((word.text, first, len(ids)))
        if word.spaced:
            ids.append(IDS[" "])
    if ids[-1] == IDS[" "]:
        ids.pop()
    return np.array([*ids, PAD], np.int64), spans
