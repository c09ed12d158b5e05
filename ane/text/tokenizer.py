"""Convert text to token ids and back, like upstream (tortoise/utils/tokenizer.py), and list the text normalisers."""

import re
from collections.abc import Callable, Iterable

import tokenizers

from ane.system.errors import UserError
from ane.text.english import normalise_english
from ane.text.other_languages import LANGUAGES
from ane.text.upstream import normalise_basic, normalise_upstream

NORMALISERS: dict[str, Callable[[str], str]] = {
    "english": normalise_english,  # spells out money, dates, units, acronyms and more
    "upstream": normalise_upstream,  # upstream's default, with its quirks
    "basic": normalise_basic,  # upstream's use_basic_cleaners, for other languages and tokenizers
    **LANGUAGES,  # like "basic", but numbers become words of the language
}
ANY_SCRIPT = (normalise_basic, *LANGUAGES.values())  # normalisers of models whose tokenizers may know any script
SPACE, STOP, UNKNOWN = "[SPACE]", "[STOP]", "[UNK]"
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
SHOWN = 60  # how many characters of the user's text an error message shows


class Tokenizer:
    """The tokenizer of a bundle.

    Attributes:
        ids: Id of each token.
        size: Number of tokens.
        normalise: Function that normalises a text before it is encoded.
    """

    def __init__(self, json: str, normaliser: str = "english", source: str = "tokenizer.json"):
        """Build a tokenizer.

        Args:
            json: Content of a tokenizer.json, which is a file of the ``tokenizers`` library.
            normaliser: Name of the normaliser, a key of ``NORMALISERS``.
            source: Path of the file, for messages.

        Raises:
            UserError: ``json`` is not a tokenizer, or ``normaliser`` is unknown.
        """
        if normaliser not in NORMALISERS:
            raise UserError(f"there is no text normaliser {normaliser!r}: choose one of {', '.join(NORMALISERS)}")
        try:
            self._encoder = tokenizers.Tokenizer.from_str(json)
        except Exception as error:  # the library raises nothing more specific
            raise UserError(
                f"{source} is not a tokenizer ({error}): use the tokenizer.json that came with the model, "
                "or one that the tokenizers library saved"
            ) from error
        unknown = getattr(self._encoder.model, "unk_token", None)
        if unknown is not None and self._encoder.model.token_to_id(unknown) is None:
            raise UserError(
                f"{source} has no token {unknown!r}, which it uses for unknown words: use the "
                "tokenizer.json that came with the model"
            )
        self.normalise = NORMALISERS[normaliser]
        self.ids = self._encoder.get_vocab()
        self.size = len(self.ids)
        self._has_space_token = self._encoder.token_to_id(SPACE) is not None

    def encode(self, text: str) -> list[int]:
        """Normalise ``text``, and convert it to ids without start and stop tokens.

        Raises:
            NothingToSayError: Nothing in the text can be spoken.
        """
        ids = self.speakable_ids(text)
        if not ids:
            raise nothing_to_say_error(text)
        return ids

    def speakable_ids(self, text: str, end: str = "") -> list[int]:
        """Encode like ``encode``, but return an empty list if nothing can be spoken.

        Args:
            text: Text to encode.
            end: Text to add if the normalised text ends with a letter, for example ".".
        """
        normalised = self.normalise(text)
        ids = self.encode_normalised(normalised + end if normalised[-1:].isalpha() else normalised)
        return ids if any(character.isalnum() for character in self.decode(ids)) else []

    def encode_normalised(self, normalised: str) -> list[int]:
        """Convert normalised text to ids. Lone surrogates, which cannot be encoded, become U+FFFD."""
        text = LONE_SURROGATE.sub("\ufffd", normalised)
        if self._has_space_token:
            text = text.replace(" ", SPACE)
        return self._encoder.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Convert ids to normalised text, and skip stop tokens and unknown tokens."""
        text = self._encoder.decode([int(i) for i in ids], skip_special_tokens=False)
        if self._has_space_token:
            text = text.replace(" ", "").replace(SPACE, " ")
        return text.replace(STOP, "").replace(UNKNOWN, "")


class NothingToSayError(UserError):
    """The error for a text that is empty, or that has no letter that the voice can speak."""


def nothing_to_say_error(text: str) -> NothingToSayError:
    if not text.strip():
        return NothingToSayError("there is nothing to say: the text is empty, or has only punctuation marks")
    return NothingToSayError(
        f"there is nothing to say in {shorten(text)!r}, which has no letter that the voice can speak: write it in words"
    )


def shorten(text: str) -> str:
    """Put ``text`` on one line, and cut it after ``SHOWN`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
