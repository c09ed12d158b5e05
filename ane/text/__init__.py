"""Prepare text for a voice: read its markup, normalise it, split it into chunks and turn it into token ids."""

import re
from collections.abc import Sequence
from dataclasses import replace

from ane.text.english import normalise_english
from ane.text.hyphens import joined_words
from ane.text.markdown import has_marks, plain_text
from ane.text.passages import Passage, Quotation, read_pauses
from ane.text.splitter import split
from ane.text.tokenizer import ANY_SCRIPT, NORMALISERS, NothingToSayError, Tokenizer, nothing_to_say_error, shorten
from ane.text.upstream import normalise_basic, normalise_upstream
from ane.text.user_lexicon import Lexicon, LexiconEntry, read_lexicon

__all__ = [
    "ANY_SCRIPT",
    "NORMALISERS",
    "Lexicon",
    "LexiconEntry",
    "NothingToSayError",
    "Tokenizer",
    "is_ssml",
    "normalise_basic",
    "normalise_english",
    "normalise_upstream",
    "nothing_to_say_error",
    "read_lexicon",
    "read_passages",
    "shorten",
    "split",
    "without_markdown",
]


def without_markdown(text: str, markdown: bool | None = None) -> str:
    """Remove the marks of Markdown and HTML from a text.

    Args:
        text: The text. It may contain commands such as [pause:1.5s], which stay.
        markdown: Whether the text is Markdown. ``None`` means that the text is Markdown if it has marks of Markdown or
            HTML.

    Raises:
        UserError: A [pause:…] command in the text is not valid.
    """
    if markdown or (markdown is None and has_marks(text)):
        read_pauses(text)  # only to raise UserError with the line of an invalid pause
        return plain_text(text)
    return text


def read_passages(
    text: str,
    lexicon: Lexicon | None = None,
    ssml: bool | None = None,
    markdown: bool | None = None,
    voice: str = "",
    quotations: Sequence[Quotation] = (),
) -> list[Passage]:
    """Read the markup of a text, respell the words of the lexicon, and divide the text into passages.

    Returns at least one passage. A passage has one voice, speed and volume, and a silence after it.

    Args:
        text: The text. If it is not SSML, it may have commands such as [pause:1.5s], [[slnc 500]] and [voice:NAME].
        lexicon: Lexicon that respells words. ``None`` means that no words are respelled.
        ssml: Whether the text is SSML. ``None`` means that the text is SSML if it begins with "<speak".
        markdown: Whether a text that is not SSML is Markdown or HTML. ``None`` means that such a text is Markdown or
            HTML if it has their marks.
        voice: Name of the voice that speaks until the text names another one.
        quotations: Quotations that have a voice, for a text without markup.

    Raises:
        UserError: The markup is invalid, or asks for something that cannot be done. The message has the line.
    """
    if ssml or (ssml is None and is_ssml(text)):
        from ane.text.ssml import read_ssml

        passages = read_ssml(text)
    else:
        passages = read_pauses(without_markdown(text, markdown), voice=voice, quotations=quotations)
    passages = [replace(passage, text=joined_words(passage.text)) for passage in passages]
    for index, passage in enumerate(passages):  # a passage without words takes the voice of its neighbour
        if not any(map(str.isalnum, passage.text)):
            passages[index] = replace(passage, voice=passages[max(index - 1, min(1 - index, len(passages) - 1))].voice)
    return [replace(passage, text=lexicon(passage.text)) for passage in passages] if lexicon else passages


def is_ssml(text: str) -> bool:
    return re.match(r"\s*(<\?xml[^>]{0,200}\?>\s*)?<speak[\s>/]", text, re.IGNORECASE) is not None
