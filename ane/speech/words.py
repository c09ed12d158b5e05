"""When each word of a text is spoken."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

Span = tuple[float, float]
WORDS = re.compile(r"\{[^{}]+\}\S*|\S+")  # phonemes in braces are a word


@dataclass(frozen=True)
class SpokenWord:
    """A word of a text and when it is heard.

    Attributes:
        word: as it is written, with its punctuation.
        start, end: seconds from the beginning of the sound.
        estimated: whether the times are shares of a longer stretch by the number of letters, because the model does not
            state them.
        voice: who speaks it, as the text or its cast names the voice; "": the voice of the whole speech.
    """

    word: str
    start: float
    end: float
    estimated: bool = False
    voice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON; without a voice that is ""."""
        return {name: value for name, value in vars(self).items() if name != "voice" or value}


def matched_words(text: str, spoken: Sequence[tuple[str, Span]]) -> list[SpokenWord]:
    """The words of a text, from the times of the words that were spoken for it.

    What the normaliser read differently ("$5": "five dollars") has the time from the first to the last of its spoken
    words; several words that it read as others in common share that time by their letters.

    Args:
        spoken: each spoken word with its start and end, in order.
    """
    written = WORDS.findall(text)
    if not written or not spoken:
        return []
    found: list[SpokenWord] = []
    matcher = SequenceMatcher(None, [bare(word) for word in written], [bare(word) for word, _ in spoken], False)
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind == "equal":
            found += [
                SpokenWord(word, *span) for word, (_, span) in zip(written[first:last], spoken[begin:end], strict=True)
            ]
        elif first < last:
            before = found[-1].end if found else spoken[0][1][0]
            between = (spoken[begin][1][0], spoken[end - 1][1][1]) if begin < end else (before, before)
            found += interpolate_words(written[first:last], between, estimated=begin < end and last - first > 1)
        elif found:  # spoken, and not written: part of the word before
            found[-1] = replace(found[-1], end=spoken[end - 1][1][1])
    return found


def timed_words(text: str, spans: Iterable[tuple[str, int, int]], times: np.ndarray) -> list[SpokenWord]:
    """``matched_words`` for spoken words, each with its first symbol and the one after its last.

    Args:
        times: (T + 1,) seconds: where each symbol begins, and the last one ends.
    """
    return matched_words(text, [(word, (float(times[first]), float(times[last]))) for word, first, last in spans])


def interpolate_words(words: Sequence[str], span: Span, estimated: bool = True) -> Iterator[SpokenWord]:
    """Words that share a stretch of time by their letters."""
    start, end = span
    ends = [0, *accumulate(len(bare(word)) + 1 for word in words)]
    for word, (first, last) in zip(words, pairwise(ends), strict=True):
        yield SpokenWord(
            word, start + (end - start) * first / ends[-1], start + (end - start) * last / ends[-1], estimated
        )


def bare(word: str) -> str:
    """A word in lower case without punctuation around it."""
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
    """Return the words of a chunk in the time of the whole speech.

    Args:
        words: Words in the time of the chunk's sound as the network made it.
        removed: Seconds of silence that were removed before that sound.
        seconds: Length of the chunk as it is heard; inf while that is not known.
        offset: Second at which the chunk begins.
        speed: Factor by which the sound was stretched.
        before: Seconds of silence that were added before the sound.
        voice: Name of the voice, where the text gives one.
    """

    def moved(time: float) -> float:
        return offset + min(max(0.0, (time - removed) / speed + before), seconds)

    return [replace(word, start=moved(word.start), end=moved(word.end), voice=voice or word.voice) for word in words]


def words_until(seconds: float, words: Sequence[SpokenWord]) -> list[SpokenWord]:
    """Return the words, none of which ends later than ``seconds``."""
    return [
        word if word.end <= seconds else replace(word, start=min(word.start, seconds), end=seconds) for word in words
    ]
