"""Prepare text for a voice: read its markup, normalise it, split it into chunks and turn it into token ids."""

import re
from collections.abc import Sequence
from dataclasses import replace

from ane.text.english import normalise_english
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
        markdown: Whether the text is Markdown. With ``None`` the text decides: it is Markdown if it has such marks.

    Raises:
        UserError: A pause in the text is faulty.
    """
    if markdown or (markdown is None and has_marks(text)):
        read_pauses(text)  # raises UserError with the line of a faulty pause
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
    """Read the markup of a text and return its passages, at least one, with the words of the lexicon respelled.

    Args:
        ssml: Whether the text is SSML. With ``None``, a text that begins with "<speak" is SSML. Other text may have
            [pause:1.5s] and [[slnc 500]].
        markdown: Whether other text is Markdown or has HTML tags. With ``None``, it is if it has their marks.
        voice: The voice that speaks until the text names a voice.
        quotations: The quotations in a text without markup that have a voice.

    Raises:
        UserError: Markup is faulty, or asks for something that cannot be done. The message has its line.
    """
    if ssml or (ssml is None and is_ssml(text)):
        from ane.text.ssml import read_ssml

        passages = read_ssml(text)
    else:
        passages = read_pauses(without_markdown(text, markdown), voice=voice, quotations=quotations)
    for index, passage in enumerate(passages):  # a passage without a word takes its neighbour's voice
        if not any(map(str.isalnum, passage.text)):
            passages[index] = replace(passage, voice=passages[max(index - 1, min(1 - index, len(passages) - 1))].voice)
    return [replace(passage, text=lexicon(passage.text)) for passage in passages] if lexicon else passages


def is_ssml(text: str) -> bool:
    return re.match(r"\s*(<\?xml[^>]{0,200}\?>\s*)?<speak[\s>/]", text) is not None
