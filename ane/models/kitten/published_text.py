"""KittenTTS's own text side: markup removed, contractions and numbers in words, lower case, and its chunks.

The result equals that of TextPreprocessor(remove_punctuation=False) of KittenTTS 0.8.1 (kittentts/preprocess.py), where
that returns one; where it raises ValueError, as on "$,", the text in question stays as it is.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from ane.models.kitten.spoken_forms import (
    currency_words,
    decade_words,
    digits_of_groups,
    fraction_words,
    grouped_number_words,
    ip_address_words,
    ordinal_number_words,
    percent_words,
    range_words,
    scale_words,
    scientific_words,
    time_words,
    unit_words,
)
from ane.system.errors import UserError
from ane.text import shorten

MAX_WORD = 1000             # characters: some patterns take quadratic time within a word
MAXIMUM = 400               # characters of a chunk, before a comma is added
MARKS = ".!?,;:"            # a chunk that ends in one of these gets no comma

NUMBER = r"\d+(?:\.\d+)?"
GROUPED = r"[\d,]+(?:\.\d+)?"                           # with thousands separators; also commas alone
NO_DIGIT_BEFORE = r"(?<!\d-)(?<!\d)\b"
NO_DIGIT_AFTER = r"\b(?!-\d)"
UNITS = r"km|kg|mg|ml|gb|mb|kb|tb|hz|khz|mhz|ghz|mph|kph|°[cf]|[cf]°|ms|ns|µs"

URL = re.compile(r"(?:https?://|www\.)\S+")
EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+\.[a-z]{2,}\b", re.IGNORECASE)
TAG = re.compile(r"<[^>]+>")


@dataclass(frozen=True)
class SpokenRule:
    """Replaces what a pattern matches by words; where ``words`` raises ValueError the text is unchanged."""

    pattern: re.Pattern[str]
    words: Callable[[re.Match[str]], str]

    def __call__(self, text: str) -> str:
        return self.pattern.sub(self._replacement, text)

    def _replacement(self, match: re.Match[str]) -> str:
        try:
            return self.words(match)
        except ValueError:
            return match[0]


def contraction(pattern: str, words: str) -> SpokenRule:
    return SpokenRule(re.compile(rf"\b{pattern}\b", re.IGNORECASE), lambda match: match.expand(words))


CONTRACTIONS = tuple(contraction(pattern, words) for pattern, words in (
    ("can't", "cannot"), ("won't", "will not"), ("shan't", "shall not"), ("ain't", "is not"), ("let's", "let us"),
    (r"(\w+)n't", r"\1 not"), (r"(\w+)'re", r"\1 are"), (r"(\w+)'ve", r"\1 have"), (r"(\w+)'ll", r"\1 will"),
    (r"(\w+)'d", r"\1 would"), (r"(\w+)'m", r"\1 am"), ("it's", "it is")))

# In this order: a form must be replaced before the rule for a part of it sees it.
NUMBER_RULES = tuple(SpokenRule(re.compile(pattern), words) for pattern, words in (
    (r"\b(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})\b", ip_address_words),
    (r"(?<!\d)-\.(\d)", lambda match: f"-0.{match[1]}"),
    (r"(?<!\d)\.(\d)", lambda match: f"0.{match[1]}"),
    (rf"([$€£¥₹₩₿])\s*({GROUPED})\s*([KMBT])?(?![a-zA-Z\d])", currency_words),
    (rf"(-?{GROUPED})\s*%", percent_words),
    (rf"(?<![a-zA-Z\d])(-?{NUMBER})[eE]([+-]?\d+)(?![a-zA-Z\d])", scientific_words),
    (r"(?i)\b(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(am|pm)?\b", time_words),
    (r"(?i)\b(\d+)(?:st|nd|rd|th)\b", ordinal_number_words),
    (rf"(?i)({NUMBER})\s*({UNITS})\b", unit_words),
    (rf"(?<![a-zA-Z])({NUMBER})\s*([KMBT])(?![a-zA-Z\d])", scale_words),
    (r"\b(\d+)\s*/\s*(\d+)\b", fraction_words),
    (r"\b(\d{1,3})0s\b", decade_words),
    (rf"{NO_DIGIT_BEFORE}(\d{{1,2}})-(\d{{3}})-(\d{{3}})-(\d{{4}}){NO_DIGIT_AFTER}", digits_of_groups),
    (rf"{NO_DIGIT_BEFORE}(\d{{3}})-(\d{{3}})-(\d{{4}}){NO_DIGIT_AFTER}", digits_of_groups),
    (rf"(?<!\d-)\b(\d{{3}})-(\d{{4}}){NO_DIGIT_AFTER}", digits_of_groups),
    (r"(?<!\w)(\d+)-(\d+)(?!\w)", range_words),
    (r"\b([a-zA-Z][a-zA-Z0-9]*)-(\d[\d.]*)(?=[^\d.]|$)", lambda match: f"{match[1]} {match[2]}"),
    (rf"(?<![a-zA-Z])-?{GROUPED}", grouped_number_words)))


def preprocess(text: str) -> str:
    """The text as the published model gets it, on one line, in lower case; may be empty.

    Characters are composed (NFC), HTML tags, URLs and e-mail addresses removed, contractions and numbers written as
    words. Raises UserError for a word of more than ``MAX_WORD`` characters.
    """
    longest = max(text.split(), key=len, default="")
    if len(longest) > MAX_WORD:
        raise UserError(f"{shorten(longest)!r} is a word of {len(longest)} characters, at most {MAX_WORD} can be "
                        "spoken: insert spaces")
    before, end, after = unicodedata.normalize("NFC", text).rpartition(">")     # no tag can begin after the last ">"
    text = URL.sub("", TAG.sub(" ", before + end) + after)
    text = EMAIL.sub("", text) if "@" in text else text
    for rule in (*CONTRACTIONS, *NUMBER_RULES):
        text = rule(text)
    return " ".join(text.lower().split())


def split_published(text: str, maximum: int = MAXIMUM) -> list[str]:
    """The chunks that KittenTTS 0.8.1 speaks of a preprocessed text (chunk_text of kittentts/onnx_model.py); none of
    full stops, "!" and "?" only.

    Every run of ".", "!" and "?" ends a chunk and is dropped, also in "3.14". A longer sentence is filled up word by
    word; a word above ``maximum`` stays whole. A chunk without a mark at its end gets a comma.
    """
    sentences = [sentence for part in re.split("[.!?]+", text) if (sentence := part.strip())]
    return [chunk if chunk.endswith(tuple(MARKS)) else f"{chunk}," for sentence in sentences
            for chunk in _fill(sentence, maximum)]


def _fill(sentence: str, maximum: int) -> list[str]:
    """The sentence, or its words in lines. A line's first word counts one character more, as published."""
    if len(sentence) <= maximum:
        return [sentence]
    lines = [""]
    for word in sentence.split():
        if len(lines[-1]) + len(word) + 1 <= maximum:
            lines[-1] += f" {word}" if lines[-1] else word
        else:
            lines.append(word)
    return [line for line in lines if line]
