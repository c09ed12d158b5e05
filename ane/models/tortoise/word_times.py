"""Find when the words of a chunk are spoken, from the decoder's attention to the text at each code.

A few attention heads attend to the word that is being spoken, so their attention moves along the text. For each code,
the mean attention of these heads is a probability distribution over the text tokens. As in openai-whisper, dynamic time
warping finds a path through these probabilities that only moves forward. We remove attention far from the path. The
remaining attention determines how many codes are expected before each token. This number, which need not be whole, is
the time at which the token starts.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from ane.backends.base import Backend
from ane.bundles import Bundle
from ane.models.alignment import joined_pieces, warping_path
from ane.models.tortoise.chunks import TokenChunk
from ane.models.tortoise.decoding import Candidate, Embeddings
from ane.speech.words import SpokenWord, interpolate_words, timed_words
from ane.text import Tokenizer

SECONDS_PER_CODE = 1024 / 22050
WINDOW = 4  # how many tokens before and after the path keep their attention
CHOSEN = 4  # largest number of heads to choose for a chunk if the model does not name its heads
# A head can be chosen if its `share_on_path` is at least LEAST_SHARE. If fewer than LEAST_HEADS heads can be chosen, no
# times are computed. The best four heads of the embedded model have 0.8 or more. With random weights, few have 0.6.
LEAST_SHARE, LEAST_HEADS = 0.6, 2

TimedHead = tuple[int, int, int]  # layer, head, and by how many codes its attention lags


class WordTimer:
    """Finds the time of each word from the attention that the decoder recorded while it sampled the codes.

    If a backend's decoder cannot record attention, the timer runs the decoder once more on the chunk's text and codes.
    """

    def __init__(self, backend: Backend, model: Bundle, normaliser: str):
        self.backend, self.config = backend, model.config("autoregressive")
        self.tokenizer = Tokenizer(model.tokenizer, normaliser)

    def words(self, chunk: TokenChunk, conditioning: np.ndarray, candidate: Candidate) -> list[SpokenWord]:
        """Return the words of a chunk with their times, in seconds from the first sample of the chunk's sound.

        Args:
            chunk: Chunk of text.
            conditioning: The voice's conditioning latent, (1, D) float32.
            candidate: Candidate that is turned into sound.
        """
        seconds = (len(candidate.codes) + 1) * SECONDS_PER_CODE
        starts = self.token_starts(chunk.tokens, conditioning, candidate)
        if starts is None:
            return list(interpolate_words(chunk.text.split(), (0.0, seconds)))
        times = np.clip((starts + self.config.alignment_shift) * SECONDS_PER_CODE, 0, seconds)
        return timed_words(chunk.text, self.spoken_words(chunk.tokens[:-1]), times)

    def token_starts(self, tokens: Sequence[int], conditioning: np.ndarray, candidate: Candidate) -> np.ndarray | None:
        """Compute where each text token begins, in codes. ``tokens`` end with the stop token.

        Returns a never decreasing array (len(tokens),) float64. The last number in the array is the end of the last
        text token. Returns ``None`` if the backend cannot return attention, or if too few heads follow the text.
        """
        if not self.backend.returns_attention or not candidate.codes:
            return None
        stated = self.stated_heads
        heads = stated or [(layer, head, 0) for layer in range(self.config.layers) for head in range(self.config.heads)]
        attention = self.attention_of(tokens, conditioning, candidate, heads)
        if not stated:
            shares = np.array([share_on_path(rows) for rows in attention])
            best = np.argsort(-shares)[:CHOSEN]
            best = best[shares[best] >= LEAST_SHARE]
            if len(best) < LEAST_HEADS:
                return None
            attention = attention[best]
        return expected_starts(attention.mean(axis=0))

    def attention_of(
        self, tokens: Sequence[int], conditioning: np.ndarray, candidate: Candidate, heads: Sequence[TimedHead]
    ) -> np.ndarray:
        """Return how much each code, and the stop code, attends to each text token.

        The result is (heads, len(codes) + 1, len(tokens) − 1) float32. The attention of a code to all tokens sums to 1.
        """
        distinct, scores = distinct_heads(heads), candidate.prefix_scores
        if scores is None or len(scores) != len(distinct) or not candidate.stopped:
            scores = self.scores_of(tokens, conditioning, candidate.codes, distinct)
        text = slice(2, 1 + len(tokens))  # the columns after the voice and the start token, and before the stop tokens
        attention = dict(zip(distinct, softmax(scores[:, :, text]), strict=True))
        return np.stack([without_delay(attention[layer, head], delay) for layer, head, delay in heads])

    def scores_of(
        self, tokens: Sequence[int], conditioning: np.ndarray, codes: Sequence[int], heads: Sequence[tuple[int, int]]
    ) -> np.ndarray:
        """Compute the attention scores ``Candidate.prefix_scores``, by running the decoder once more.

        Returns (heads, len(codes) + 1, prefix length − 1) float32.
        """
        prefix = self.tables.prefix(conditioning, tokens, self.config)
        sampled = self.tables.codes(np.asarray(codes), np.arange(1, len(codes) + 1))
        columns = np.concatenate((prefix, sampled)).astype(np.float32)
        return self.backend.prefix_attention(columns, len(prefix) - 1, heads)  # beginning with the start code's column

    @property
    def recorded_heads(self) -> list[tuple[int, int]]:
        """The attention heads, as (layer, head), whose scores the decoder should record."""
        return distinct_heads(self.stated_heads)

    @property
    def stated_heads(self) -> Sequence[TimedHead]:
        """The heads that the model names. If there are none, the timer chooses heads for each chunk."""
        return self.config.alignment_heads

    @cached_property
    def tables(self) -> Embeddings:
        return Embeddings(**self.backend.embeddings())

    def spoken_words(self, tokens: Sequence[int]) -> Iterator[tuple[str, int, int]]:
        """Yield a triple for each word of the normalised text: the word without punctuation, and two indices of tokens.

        The first index is of the word's first token, and the second of the token after the word's last token.
        """
        pieces = (self.tokenizer.decode([token]) for token in tokens)
        return joined_pieces((piece, any(map(str.isalnum, piece))) for piece in pieces)


def distinct_heads(heads: Sequence[TimedHead]) -> list[tuple[int, int]]:
    """Return the distinct pairs (layer, head), ascending.

    ``heads`` may have the same pair several times, with other delays.
    """
    return sorted({(layer, head) for layer, head, _ in heads})


def softmax(scores: np.ndarray) -> np.ndarray:
    """Compute the softmax over the last axis."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def without_delay(attention: np.ndarray, codes: int) -> np.ndarray:
    """Move row i + ``codes`` of attention (T, K) to row i. Beyond an end, the row at this end is repeated."""
    return attention[np.clip(np.arange(len(attention)) + codes, 0, len(attention) - 1)]


def path_bounds(attention: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the path with most attention that only moves forward.

    Returns the first and last token of each code, (T,) int64.
    """
    rows, tokens = warping_path(-attention.astype(np.float64))
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    return tokens[starts], tokens[np.append(starts[1:], len(rows)) - 1]


def share_on_path(attention: np.ndarray) -> float:
    """Measure how much of the attention (T, K) is on a path that only moves forward.

    The function adds up the attention to the path's tokens and to their direct neighbours. The sum is scaled so that 1
    means all attention, and 0 means the sum that evenly spread attention would have.
    """
    first, last = path_bounds(attention)
    tokens = np.arange(attention.shape[1])
    near = (tokens >= first[:, None] - 1) & (tokens <= last[:, None] + 1)
    even = near.mean()
    return float(((attention * near).sum() / len(attention) - even) / max(1e-9, 1 - even))


def expected_starts(attention: np.ndarray) -> np.ndarray:
    """Compute from attention (T, K) where each token begins, and where the last token ends, in codes.

    Returns (K + 1,), never decreasing.
    """
    first, last = path_bounds(attention)
    tokens = np.arange(attention.shape[1])
    near = (tokens >= first[:, None] - WINDOW) & (tokens <= last[:, None] + WINDOW)
    weights = attention * near + 1e-9 * near
    weights = weights / weights.sum(axis=1, keepdims=True)
    return np.concatenate(([0.0], weights.sum(axis=0).cumsum()))
