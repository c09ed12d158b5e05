"""Text to chunks, each short enough to be spoken in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass

from ane.bundles import Model
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.settings import Settings
from ane.speech.request import Chunk
from ane.system.errors import UserError
from ane.text import Tokenizer, nothing_to_say_error, shorten, split
from ane.text.passages import Passage, as_passages, whole_text, with_deliveries


@dataclass(frozen=True)
class TokenChunk(Chunk):
    """A piece of text spoken in one pass.

    Attributes:
        index: position of the chunk in its text; its random numbers depend on it.
        tokens: the result of ``text_tokens``.
    """

    index: int
    tokens: list[int]


def split_into_chunks(text: str | Sequence[Passage], model: Model, settings: Settings) -> list[TokenChunk]:
    """The chunks of a text, or of its passages, without empty ones.

    A chunk that is too long for the decoder after normalisation (many digits, say) is split again into smaller ones.

    Raises:
        UserError: nothing to say, or a chunk that is too long and cannot be split or must not be.
    """
    tokenizer = Tokenizer(model.tokenizer, settings.normaliser)
    config = model.config("autoregressive")

    def fitting(piece: str, desired: int, maximum: int) -> list[tuple[str, list[int]]]:
        """(Text, tokens) of the piece, or of its parts if it is too long; lengths in characters."""
        ids = tokenizer.speakable_ids(piece)
        if not ids:
            return []
        if fits(ids, config):
            return [(piece, text_tokens(ids, config))]
        if maximum == 1 or len(piece.split()) == 1:
            raise UserError(f"{shorten(piece)!r} is {len(ids)} tokens long, the decoder takes at most "
                            f"{max_text_tokens(config)} in one pass, and it cannot be split: insert spaces, or "
                            "shorten it")
        shorter = max(1, desired // 2), maximum // 2
        return [chunk for part in split(piece, *shorter) for chunk in fitting(part, *shorter)]

    def chunks_of(text: str) -> list[tuple[str, list[int]]]:
        if settings.split is None:
            ids = tokenizer.speakable_ids(text)
            return [(text, text_tokens(ids, config))] if ids else []
        return [chunk for piece in split(text, *settings.split) for chunk in fitting(piece, *settings.split)]

    passages = as_passages(text)
    chunks = with_deliveries(passages, chunks_of)
    if not chunks:
        raise nothing_to_say_error(whole_text(passages))
    return [TokenChunk(part, index, tokens, delivery=delivery)
            for index, ((part, tokens), delivery) in enumerate(chunks)]


def text_tokens(ids: Sequence[int], config: UnifiedVoiceConfig) -> list[int]:
    """Token ids as the networks take them: with a stop token after the text (upstream api.py pads by one).

    Raises:
        UserError: more tokens than the decoder has text positions, or tokens that it does not know.
    """
    if not fits(ids, config):
        raise UserError(f"the text has {len(ids)} tokens and the decoder takes at most {max_text_tokens(config)} "
                        "in one pass: allow it to be split, or shorten it")
    if max(ids, default=0) > config.number_text_tokens:
        raise UserError(f"the tokenizer returns token {max(ids)} and the decoder knows {config.number_text_tokens}: "
                        "tokenizer.json belongs to another model")
    return [*ids, config.stop_text_token]


def fits(ids: Sequence[int], config: UnifiedVoiceConfig) -> bool:
    """Whether a text fits in one pass: upstream requires fewer than 400 tokens, including a stop token."""
    return len(ids) <= max_text_tokens(config)


def max_text_tokens(config: UnifiedVoiceConfig) -> int:
    """Number of tokens, without the stop token, that the decoder takes in one pass."""
    return config.max_text_tokens - 4
