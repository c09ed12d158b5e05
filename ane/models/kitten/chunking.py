"""Text to chunks, each spoken in one run of the graph, preprocessed and with its marks."""

import re

from ane.models.kitten.preprocessing import preprocess, remove_markup, spell
from ane.models.kitten.spoken_forms import cardinal_words, digit_words, time_words
from ane.system.errors import UserError
from ane.text import nothing_to_say_error, shorten, split

MAXIMUM = 400           # characters of a chunk, before a comma is added
MARKS = ".!?,;:"        # a chunk that ends in one of these gets no comma
DESIRED = 200           # characters
MAX_WORD = 1000         # characters: some patterns of the preprocessing take quadratic time within a word
LONG_NUMBER = re.compile(r"\d(?:,?\d){15,}")
ROUND_ORDINAL = re.compile(r"\b(\d{0,14}[2-9]0)th\b", re.IGNORECASE)
TIME = re.compile(r"\b(\d{1,2}):(\d{2})(?::(\d{2}))?(?:\s*(am|pm))?\b", re.IGNORECASE)
CLOSING = "\"'”’»)]}"


def split_for_speech(text: str, published: bool = False) -> list[str]:
    """The preprocessed chunks of a text, each of at most ``MAXIMUM`` characters and a mark, unless it is one long word.

    Sentences are joined to chunks of about ``DESIRED`` characters and keep their punctuation; "3.14" and "U.S.A." do
    not end one.

    Args:
        published: preprocess and split exactly as KittenTTS 0.8.1, where sentences are not joined and end in a comma.

    Raises:
        UserError: nothing to say, or a word of more than ``MAX_WORD`` characters.
    """
    chunks = spoken_chunks(text, published)
    if not chunks:
        raise nothing_to_say_error(text)
    return chunks


def spoken_chunks(text: str, published: bool = False) -> list[str]:
    """Like ``split_for_speech``, but returns an empty list where there is nothing to say."""
    longest = max(text.split(), key=len, default="")
    if len(longest) > MAX_WORD:
        raise UserError(f"{shorten(longest)!r} is a word of {len(longest)} characters, at most {MAX_WORD} can be "
                        "spoken: insert spaces")
    if published:
        return split_published(preprocess(text))
    pieces = split(remove_markup(text), DESIRED, MAXIMUM)
    return [chunk for piece in pieces for chunk in _spoken(piece) if any(map(str.isalnum, chunk))]


def _spoken(piece: str) -> list[str]:
    """The piece in spoken form; as several chunks where its numbers in words make it too long."""
    spoken = spell(correct_numbers(piece))
    chunks = [spoken] if len(spoken) <= MAXIMUM else split(spoken, DESIRED, MAXIMUM)
    return [_ended(chunk) for chunk in chunks]


def _ended(chunk: str) -> str:
    """The chunk with a comma unless it ends in a mark, behind which quotation marks may close."""
    core = chunk.rstrip(CLOSING)
    return chunk if core.endswith(tuple(MARKS)) or core.endswith("…") else f"{chunk},"


def correct_numbers(text: str) -> str:
    """Spell the numbers that the published preprocessing gets wrong.

    It drops digits of numbers with more than 15, writes "twentyth", and joins a time to the next word ("9:30 and").
    """
    text = TIME.sub(time_words, text)
    text = LONG_NUMBER.sub(lambda match: f" {digit_words(match[0].replace(',', ''))} ", text)
    return ROUND_ORDINAL.sub(lambda match: f"{cardinal_words(int(match[1])).removesuffix('y')}ieth", text)


def split_published(text: str, maximum: int = MAXIMUM) -> list[str]:
    """The chunks that KittenTTS 0.8.1 speaks (chunk_text of kittentts/onnx_model.py), for comparison; none for text of
    full stops, "!" and "?" only.

    Every run of ".", "!" and "?" ends a chunk and is dropped, also in "3.14". A longer sentence is filled up word by
    word; a word above ``maximum`` stays whole. A chunk without a mark at its end gets a comma.
    """
    sentences = [sentence for part in re.split("[.!?]+", text) if (sentence := part.strip())]
    return [end_with_mark(chunk) for sentence in sentences for chunk in _fill(sentence, maximum)]


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


def end_with_mark(chunk: str) -> str:
    """The chunk, with a comma unless it ends in one of ``MARKS``."""
    return chunk if chunk.endswith(tuple(MARKS)) else f"{chunk},"
