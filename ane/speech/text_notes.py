"""Find out which parts of a text an English voice cannot speak, and say so in notes for the user."""

import re
from collections.abc import Callable, Sequence

from ane.speech.chunks import Chunk
from ane.speech.request import SpeechRequest
from ane.text import ANY_SCRIPT, is_ssml
from ane.text.other_languages import foreign_language
from ane.text.unicode_to_ascii import UNREADABLE, foreign_scripts, unread_signs

# A tag of SSML that is not a tag of HTML
SSML_TAG = re.compile(r"<(?:break|prosody|say-as|phoneme|emphasis|sub alias|voice name)\b[^<>\n]{0,80}>")
MOST_SIGNS = 8  # one note lists at most this many unspoken signs


def notes_on_text(request: SpeechRequest, normaliser: Callable[[str], str], chunks: Sequence[Chunk] = ()) -> list[str]:
    """Return notes on text that a model cannot speak: foreign letters, another language, unspoken signs and markup.

    Args:
        request: The request, with its settings.
        normaliser: Normaliser of the model. Some normalisers keep all scripts, and then only markup is noted.
        chunks: Chunks of the text, whose own notes come last.
    """
    text = request.lexicon.respelt(request.text) if request.lexicon else request.text
    text = "" if normaliser in ANY_SCRIPT else text
    names, language, signs = foreign_scripts(text), foreign_language(text), unread_signs(text)
    markup: list[str] = []
    if request.ssml or (request.ssml is None and is_ssml(request.text)):
        from ane.text.ssml import ssml_notes

        markup = ssml_notes(request.text)
    elif tag := SSML_TAG.search(request.text):
        markup = [f"{tag[0]} is read as text: write <speak>…</speak> around the text to make it SSML"]
    how = UNREADABLE[request.lexicon.unreadable if request.lexicon else "nearest"]
    notes = (
        [f"{' and '.join(names)} letters are {how}"]
        if names
        else [f"the text looks like {language}, and is read as English"]
        if language
        else []
    )
    notes += markup
    if signs:
        notes.append(f"nothing is spoken for {' '.join(signs[:MOST_SIGNS])}: write in words what they mean")
    return notes + list(dict.fromkeys(note for chunk in chunks for note in chunk.notes))
