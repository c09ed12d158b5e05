"""The published way of splitting text, for comparison: one chunk a sentence, without the sentence's mark.

Source: chunk_text of KittenTTS 0.8.1, kittentts/onnx_model.py.
"""

import re

MAXIMUM = 400           # characters of a chunk, before a comma is added
MARKS = ".!?,;:"        # a chunk that ends in one of these gets no comma


def split_published(text: str, maximum: int = MAXIMUM) -> list[str]:
    """The chunks that the published code speaks; none for text of full stops, "!" and "?" only.

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
