"""Split text into chunks that are short enough for the decoder to speak in one pass."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ane.bundles import Bundle
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.settings import TortoiseSettings
from ane.speech.chunks import Chunk, split_to_fit
from ane.system.errors import UserError
from ane.text import Tokenizer
from ane.text.passages import Passage

WORD = re.compile(r"[\w']+")


@dataclass(eq=False)
class TokenChunk(Chunk):
    """A piece of text that the decoder speaks in one pass."""

    tokens: list[int]  # token ids as ``text_tokens`` returns them
    index: int = 0  # number of the chunk in the text; it selects the chunk's random numbers
    words: float = 1.0  # length in words, as ``spoken_words`` counts it

    @property
    def length(self) -> int:
        return len(self.tokens) - 1


def split_into_chunks(text: str | Sequence[Passage], model: Bundle, settings: TortoiseSettings) -> list[TokenChunk]:
    """Split a text, or passages that each have a voice or speed, into chunks that are not empty.

    If normalisation makes a chunk too long for the decoder, for example because it spells out many digits, the chunk is
    split again.

    Raises:
        UserError: There is nothing to say. Or a chunk is too long and cannot be split, or the settings forbid it.
    """
    tokenizer, config = Tokenizer(model.tokenizer, settings.normaliser), model.config("autoregressive")

    end = "" if settings.codes_per_word is None else "."

    def make(piece: str, passage: Passage) -> TokenChunk | None:
        ids = tokenizer.speakable_ids(piece, end)
        words = spoken_words(tokenizer.decode(ids)) if ids and end else 1.0
        return TokenChunk(piece, [*ids, config.stop_text_token], words=words) if ids else None

    chunks = split_to_fit(text, make, settings.split, max_text_tokens(config), "tokens")
    for index, chunk in enumerate(chunks):
        chunk.index, chunk.tokens = index, text_tokens(chunk.tokens[:-1], config)
    return chunks


def spoken_words(normalised: str) -> float:
    """Return the length of a normalised text in words of usual length, at least 1.

    A single letter counts as a third of a word, and a word of more than eight letters as one word per eight letters.
    """
    return max(1.0, sum(1 / 3 if len(word) == 1 else max(1.0, len(word) / 8) for word in WORD.findall(normalised)))


def text_tokens(ids: Sequence[int], config: UnifiedVoiceConfig) -> list[int]:
    """Append the stop token to token ids, as the networks expect (upstream's api.py pads by one).

    Raises:
        UserError: There are more tokens than the decoder has text positions, or the decoder does not know a token.
    """
    if len(ids) > max_text_tokens(config):
        raise UserError(
            f"the text has {len(ids)} tokens and the decoder takes at most {max_text_tokens(config)} "
            "in one pass: allow the text to be split, or shorten it"
        )
    if max(ids, default=0) > config.number_text_tokens:
        raise UserError(
            f"the tokenizer returns token {max(ids)} and the decoder knows tokens up to {config.number_text_tokens}: "
            "tokenizer.json belongs to another model"
        )
    return [*ids, config.stop_text_token]


def max_text_tokens(config: UnifiedVoiceConfig) -> int:
    """Return how many tokens one pass can have, without the stop token. Upstream allows 399 with the stop token."""
    return config.max_text_tokens - 4
