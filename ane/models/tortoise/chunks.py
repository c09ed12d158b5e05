"""A text as the parts that are spoken in one go."""

from dataclasses import dataclass

from ane.bundles import Model
from ane.models.tortoise.embeddings import fits, most_tokens, text_tokens
from ane.models.tortoise.settings import Settings
from ane.system.errors import UserError
from ane.text import Tokenizer, nothing_to_say_error, shorten, split


@dataclass(frozen=True)
class Part:
    """A chunk of a text.

    Attributes:
        index: the how manieth chunk of its text it is; its random numbers depend on it.
        tokens: of ``ane.models.tortoise.embeddings.text_tokens``.
    """

    index: int
    text: str
    tokens: list[int]


def parts_of(text: str, model: Model, settings: Settings) -> list[Part]:
    """The chunks that have something to say.

    One that the normaliser made too long for the decoder (figures, say) is split again, smaller; one of which it left
    nothing (markup, say) is passed over, unless all are.

    Raises:
        UserError: nothing to say, or too long a chunk that cannot be split or must not be.
    """
    tokenizer = Tokenizer(model.tokenizer, settings.normaliser)
    config = model.config("autoregressive")

    def fitting(chunk: str, desired: int, maximum: int) -> list[tuple[str, list[int]]]:
        ids = tokenizer.speakable_ids(chunk)
        if not ids:
            return []
        if fits(ids, config):
            return [(chunk, text_tokens(ids, config))]
        if maximum == 1:
            raise UserError(f"{shorten(chunk)!r} is {len(ids)} tokens long, the decoder takes at most "
                            f"{most_tokens(config)} in one go, and it has no place to be split at: break it up "
                            "with spaces, or shorten it")
        shorter = max(1, desired // 2), maximum // 2
        return [part for piece in split(chunk, *shorter) for part in fitting(piece, *shorter)]

    if settings.split is None:
        return [Part(0, text, text_tokens(tokenizer.encode(text), config))]
    chunks = [part for chunk in split(text, *settings.split) for part in fitting(chunk, *settings.split)]
    if not chunks:
        raise nothing_to_say_error(text)
    return [Part(index, *chunk) for index, chunk in enumerate(chunks)]
