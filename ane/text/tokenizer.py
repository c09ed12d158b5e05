"""Text to token ids and back, as upstream (tortoise/utils/tokenizer.py): normalise, " " → "[SPACE]", encode."""

from collections.abc import Callable, Iterable

import tokenizers

from ane.system.errors import UserError
from ane.text.english import normalise_english
from ane.text.upstream import normalise_basic, normalise_upstream

NORMALISERS: dict[str, Callable[[str], str]] = {
    "english": normalise_english,       # reads money, dates, units, acronyms … as people do
    "upstream": normalise_upstream,     # upstream's default, quirks included
    "basic": normalise_basic,           # upstream's use_basic_cleaners: for other languages and tokenizers
    "none": str,                        # the text is passed on as it is
}
SPACE, STOP, UNKNOWN = "[SPACE]", "[STOP]", "[UNK]"
SHOWN = 60      # characters of the user's text that an error message repeats


class Tokenizer:
    """The tokenizer of a bundle.

    Attributes: ``size``, the number of entries of its vocabulary; ``normalise``, the function that text goes through
    first.
    """

    def __init__(self, json: str, normaliser: str = "english", source: str = "tokenizer.json"):
        """``json``: content of a tokenizer.json of the ``tokenizers`` library; ``source``: its path, for errors.

        Raises:
            UserError: ``json`` is no tokenizer, or there is no such normaliser.
        """
        if normaliser not in NORMALISERS:
            raise UserError(f"there is no text normaliser {normaliser!r}; choose one of {', '.join(NORMALISERS)}")
        try:
            self._encoder = tokenizers.Tokenizer.from_str(json)
        except Exception as error:      # the library raises nothing more specific
            raise UserError(f"{source} is not a tokenizer ({error}); take the tokenizer.json that came with the model, "
                            "or one saved by the tokenizers library") from error
        self.normalise = NORMALISERS[normaliser]
        self.size = self._encoder.get_vocab_size()
        self._has_space_token = self._encoder.token_to_id(SPACE) is not None

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, without start and stop tokens.

        Raises:
            UserError: nothing in ``text`` can be spoken: it is empty, or has no letter that the tokenizer knows.
        """
        ids = self.spoken(text)
        if not ids:
            raise nothing_to_say(text)
        return ids

    def spoken(self, text: str) -> list[int]:
        """As ``encode``, but no ids where that refuses."""
        ids = self.ids(self.normalise(text))
        return ids if any(character.isalnum() for character in self.decode(ids)) else []

    def ids(self, normalised: str) -> list[int]:
        """Ids of text that is normalised already; empty text gives no ids."""
        text = normalised.replace(" ", SPACE) if self._has_space_token else normalised
        return self._encoder.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``; stop tokens and unknown characters are left out."""
        text = self._encoder.decode([int(i) for i in ids], skip_special_tokens=False)
        if self._has_space_token:
            text = text.replace(" ", "").replace(SPACE, " ")
        return text.replace(STOP, "").replace(UNKNOWN, "")


def nothing_to_say(text: str) -> UserError:
    """What to raise of a text of which nothing can be spoken."""
    if not text.strip():
        return UserError("there is nothing to say: the text is empty")
    return UserError(f"there is nothing to say in {shortened(text)!r}: no letter is left that the voice could speak; "
                     "write it in words")


def shortened(text: str) -> str:
    """``text`` on one line, cut to ``SHOWN`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else text[:SHOWN - 1] + "…"
