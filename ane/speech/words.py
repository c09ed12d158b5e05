"""Work out when each word of a text is heard, from the times of the words or symbols that were spoken."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

Span = tuple[float, float]
WORDS = re.compile(r"\{[^{}]+\}\S*|\S+")  # a word, or phonemes in braces, which count as one word


@dataclass(frozen=True)
class SpokenWord:
    """A word of a text, and when it is heard.

    Attributes:
        word: The word as written, with its punctuation.
        start: Second at which the word begins, from the beginning of the sound.
        end: Second at which the word ends.
        estimated: Whether the times are an estimate. In that case the model timed only several words together, and
            their time was divided by their numbers of letters.
        voice: Name of the voice that speaks the word, from the text or its cast. "" means the voice of the whole
            speech.
    """

    word: str
    start: float
    end: float
    estimated: bool = False
    voice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON. An empty ``voice`` is left out."""
        return {name: value for name, value in vars(self).items() if name != "voice" or value}


def matched_words(text: str, spoken: Sequence[tuple[str, Span]]) -> list[SpokenWord]:
    """Match the words of a written text with the spoken words, and return the written words with their times.

    The normaliser may spell out a word: "$5" becomes "five dollars". A written word begins with its first spoken word
    and ends with its last spoken word. If the normaliser spelled out several written words together, their time is
    divided in proportion to their numbers of letters.

    Args:
        text: The text as written.
        spoken: Spoken words in order. Each has the second at which it begins and the second at which it ends.
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
        elif timed:  # these spoken words match no written word: give their time to the word before them
            timed[-1] = replace(timed[-1], end=spoken[end - 1][1][1])
    return timed


def timed_words(text: str, spans: Iterable[tuple[str, int, int]], times: np.ndarray) -> list[SpokenWord]:
    """Return the words of a written text with their times, from the times of the network's input symbols.

    Args:
        text: The text as written.
        spans: Spoken words, each with the index of its first symbol and the index after its last symbol.
        times: Second at which each symbol begins, then the second at which the last symbol ends, (T symbols + 1,).
    """
    return matched_words(text, [(word, (float(times[first]), float(times[last]))) for word, first, last in spans])


def interpolate_words(words: Sequence[str], span: Span, estimated: bool = True) -> Iterator[SpokenWord]:
    """Divide a span of time among words, in proportion to their numbers of letters, and yield the timed words."""
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
    """Convert the times of words from seconds of the network's sound to seconds of the whole speech.

    Args:
        words: Words of the chunk. Their times count from the beginning of the sound that the network made.
        removed: Seconds of silence that were removed from the beginning of the network's sound.
        seconds: Length of the chunk as a listener hears it, in seconds. ``inf`` means that it is not known yet.
        offset: Second of the whole speech at which the chunk begins.
        speed: Factor by which the sound was sped up.
        before: Seconds of silence that were added before the sound.
        voice: Name of the voice, if the text names one. Otherwise "".
    """

    def moved(time: float) -> float:
        return offset + min(max(0.0, (time - removed) / speed + before), seconds)

    return [replace(word, start=moved(word.start), end=moved(word.end), voice=voice or word.voice) for word in words]


def words_until(seconds: float, words: Sequence[SpokenWord]) -> list[SpokenWord]:
    """Limit the times of the words, so that no word begins or ends after ``seconds``."""
    return [
        word if word.end <= seconds else replace(word, start=min(word.start, seconds), end=seconds) for word in words
    ]
