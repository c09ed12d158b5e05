"""Text and a voice to codes and their latents: what goes into the decoder and what comes out; ``ane.models.tortoise.decoding`` samples.

Latents come out of the step: the hidden state that predicts code i *is* latent i of upstream's second pass, because
the network is causal and positions are the trained ones. Upstream then overwrites what follows the stop code; only
those few latents need one more call, on the lane's own cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.system.errors import UserError


@dataclass(frozen=True)
class Embeddings:
    """The decoder's look-up tables: codes and tokens become columns on the host. All float32."""

    text: np.ndarray                # (tokens, D)
    text_position: np.ndarray       # (positions, D)
    code: np.ndarray                # (V, D)
    code_position: np.ndarray       # (positions, D)

    def prefix(self, conditioning: np.ndarray, tokens: Sequence[int], config: UnifiedVoiceConfig) -> np.ndarray:
        """[conditioning][start, tokens, stop][start of codes] as columns: (1, D), ids → (len(tokens) + 4, D)."""
        ids = [config.start_text_token, *tokens, config.stop_text_token]
        text = self.text[ids] + self.text_position[:len(ids)]
        return np.concatenate((conditioning, text, self.codes(config.start_mel_token, 0)[None]))

    @staticmethod
    def prefix_length(tokens: Sequence[int]) -> int:
        """Columns of the prefix of so many tokens."""
        return len(tokens) + 4

    def codes(self, codes: np.ndarray | int, position: np.ndarray | int) -> np.ndarray:
        """Codes at their mel positions; code i of a sequence stands at i + 1, after the start code."""
        return self.code[codes] + self.code_position[position]


@dataclass
class Candidate:
    """One sampled reading of a chunk.

    Attributes:
        codes: the sampled codes, without the stop code.
        stopped: whether the stop code came before the codes ran out.
        hidden: (len(codes) + stopped, D) float32: latents of the codes and of the stop code.
        fixed: (max_codes,) int64: the codes as upstream ranks them.
        latents: (t, D) float32: what diffusion is given, upstream's rewriting and trimming applied.
    """

    codes: list[int]
    stopped: bool
    hidden: np.ndarray
    fixed: np.ndarray
    latents: np.ndarray


def text_tokens(ids: Sequence[int], config: UnifiedVoiceConfig) -> list[int]:
    """Token ids as the networks are given them: a stop token after the text (upstream api.py pads by one).

    Raises:
        UserError: more tokens than the decoder has text positions for, or tokens that it does not know.
    """
    if not fits(ids, config):
        raise UserError(f"the text has {len(ids)} tokens and the decoder takes at most {most_tokens(config)} "
                        "in one go: let it be split (no --no-split), or shorten it")
    if max(ids, default=0) > config.number_text_tokens:
        raise UserError(f"the tokenizer gives token {max(ids)} and the decoder knows {config.number_text_tokens}: "
                        "tokenizer.json belongs to another model")
    return [*ids, config.stop_text_token]


def fits(ids: Sequence[int], config: UnifiedVoiceConfig) -> bool:
    """Whether a text is short enough for one go: upstream asks for less than 400 tokens, the one stop token counted."""
    return len(ids) <= most_tokens(config)


def most_tokens(config: UnifiedVoiceConfig) -> int:
    """Tokens of the text itself that the decoder takes in one go."""
    return config.max_text_tokens - 4
