"""The text front end: normalises text, splits it into chunks, converts it to token ids."""

from ane.text.english import normalise_english
from ane.text.splitter import split
from ane.text.tokenizer import NORMALISERS, NothingToSayError, Tokenizer, nothing_to_say_error, shorten
from ane.text.upstream import normalise_basic, normalise_upstream
from ane.text.user_lexicon import Lexicon, LexiconEntry, read_lexicon

__all__ = [
    "NORMALISERS", "Lexicon", "LexiconEntry", "NothingToSayError", "Tokenizer", "normalise_basic", "normalise_english",
    "normalise_upstream", "nothing_to_say_error", "read_lexicon", "shorten", "split",
]
