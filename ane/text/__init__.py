"""Text front-end: from what the user writes to chunks of token ids."""

from ane.text.english import normalise_english
from ane.text.split import SPLITTERS, split, split_sentences, split_upstream
from ane.text.tokenizer import NORMALISERS, Tokenizer, nothing_to_say, shortened
from ane.text.upstream import normalise_basic, normalise_upstream

__all__ = [
    "NORMALISERS", "SPLITTERS", "Tokenizer", "normalise_basic", "normalise_english", "normalise_upstream",
    "nothing_to_say", "shortened", "split", "split_sentences", "split_upstream",
]
