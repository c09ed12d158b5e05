"""Work out when each word of a text is heard, from the times of the words or symbols that were spoken."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

Span = tuple[float, float]
WORDS = re.compile(r"\{[^{}]+\}\S*|\S+")  # phonemes in braces are one word


@dataclass(frozen=True)
class SpokenWord:
    """A word of a text, and when it is heard.

    Attributes:
        word: The word as written, with its punctuation.
        start: Second at which it begins, from the beginning of the sound.
        end: Second at which it ends.
        estimated: Whether the times are interpolated by the number of letters, because the model times only the whole
            stretch of words.
        voice: Name of the voice that speaks it, from the text or its cast. "" is the voice of the whole speech.
    """

    word: str
    start: float
    end: float
    estimated: bool = False
    voice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, without ``voice`` if it is ""."""
        return {name: value for name, value in vars(self).items() if name != "voice" or value}


def matched_words(text: str, spoken: Sequence[tuple[str, Span]]) -> list[SpokenWord]:
    """Return the words of a written text with their times, from the times of the spoken words.

    A word that the normaliser spells out ("$5" is spoken as "five dollars") gets the time from the first to the last of
    its spoken words. If several written words were spelled out together, they divide that time by their letters.

    Args:
        text: The text as written.
        spoken: The spoken words in order, with the second at which each begins and ends.
    """
    written = WORDS.findall(text)
    if not written or not spoken:
        return []
    timed: list[SpokenWord] = []
    matcher = SequenceMatcher(None, [bare(word) for word in written], [bare(word) for word, _ in spoken], False)
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind == "equal":
            timed += [
                SpokenWord(word, *span) for word, (_, span) in zip(written[first:last], spoken[begin:end], strict=True)
            ]
        elif first < last:
            before = timed[-1].end if timed else spoken[0][1][0]
            between = (spoken[begin][1][0], spoken[end - 1][1][1]) if begin < end else (before, before)
            timed += interpolate_words(written[first:last], between, estimated=begin < end and last - first > 1)
        elif timed:  # these words were spoken but not written: they prolong the word before
            timed[-1] = replace(timed[-1], end=spoken[end - 1][1][1])
    return timed


def timed_words(text: str, spans: Iterable[tuple[str, int, int]], times: np.ndarray) -> list[SpokenWord]:
    """Return the words of a written text with their times, from the times of the symbols that were spoken.

    Args:
        text: The text as written.
        spans: The spoken words, with the index of their first symbol and of the symbol after their last.
        times: Second at which each symbol begins, and at which the last one ends, (T + 1,).
    """
    return matched_words(text, [(word, (float(times[first]), float(times[last]))) for word, first, last in spans])


def interpolate_words(words: Sequence[str], span: Span, estimated: bool = True) -> Iterator[SpokenWord]:
    """Divide a stretch of time among words, in proportion to their letters."""
    start, end = span
    ends = [0, *accumulate(len(bare(word)) + 1 for word in words)]
    for word, (first, last) in zip(words, pairwise(ends), strict=True):
        yield SpokenWord(
            word, start + (end - start) * first / ends[-1], start + (end - start) * last / ends[-1], estimated
        )


def bare(word: str) -> str:
    """Return a word in lower case, without the punctuation around it."""
    return re.sub(r"^\W+|\W+$", "", word.lower())


def delivered_words(
    words: Sequence[SpokenWord],
    removed: float,
    seconds: float,
    offset: float,
    speed: float = 1.0,
    before: float = 0.0,
    voice: str = "",
) -> list[SpokenWord]:
    """Convert the word times of a chunk to the time of the whole speech.

    Args:
        words: Words, timed in the sound that the network made for the chunk.
        removed: Seconds of silence that were removed before that sound.
        seconds: Length of the chunk as it is heard, or inf while it is not known.
        offset: Second at which the chunk begins.
        speed: Factor by which the sound was sped up.
        before: Seconds of silence that were added before the sound.
        voice: Name of the voice, if the text names one.
    """

    def moved(time: float) -> float:
        return offset + min(max(0.0, (time - removed) / speed + before), seconds)

    return [replace(word, start=moved(word.start), end=moved(word.end), voice=voice or word.voice) for word in words]


def words_until(seconds: float, words: Sequence[SpokenWord]) -> list[SpokenWord]:
    """Limit the words' times to a sound of ``seconds`` seconds."""
    return [
        word if word.end <= seconds else replace(word, start=min(word.start, seconds), end=seconds) for word in words
    ]
