"""Time the words of a chunk by the decoder's attention to the text while it predicted each code.

A few heads move along the text as the codes go on. The mean of their attention gives each code a probability for every
text token. Dynamic time warping finds a monotonic path through it, as in openai-whisper, and attention far from that
path is removed. The time of a token is then the expected number of codes before it, which is finer than one code.
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
WINDOW = 4  # tokens on either side of the path that count
CHOSEN = 4  # most heads that are chosen on a chunk if the model names none
# A chosen head has at least this share of its attention on the path, and there are at least two. In the embedded
# decoder, the best four heads have 0.8 and more. With random weights, hardly any head has 0.6.
LEAST_SHARE, LEAST_HEADS = 0.6, 2

TimedHead = tuple[int, int, int]  # layer, head, delay in codes


class WordTimer:
    """Times words by the attention that the decoder recorded while it sampled the codes.

    If the decoder of a backend cannot record, the timer makes another pass over the chunk's text and codes.
    """

    def __init__(self, backend: Backend, model: Bundle, normaliser: str):
        self.backend, self.config = backend, model.config("autoregressive")
        self.tokenizer = Tokenizer(model.tokenizer, normaliser)

    def words(self, chunk: TokenChunk, conditioning: np.ndarray, candidate: Candidate) -> list[SpokenWord]:
        """Return the words of a chunk, in seconds from the first sample that the vocoder makes of the candidate.

        Args:
            chunk: The chunk.
            conditioning: The voice's conditioning latent, (1, D) float32.
            candidate: The candidate that is spoken.
        """
        seconds = (len(candidate.codes) + 1) * SECONDS_PER_CODE
        starts = self.token_starts(chunk.tokens, conditioning, candidate)
        if starts is None:
            return list(interpolate_words(chunk.text.split(), (0.0, seconds)))
        times = np.clip((starts + self.config.alignment_shift) * SECONDS_PER_CODE, 0, seconds)
        return timed_words(chunk.text, self.spoken_words(chunk.tokens[:-1]), times)

    def token_starts(self, tokens: Sequence[int], conditioning: np.ndarray, candidate: Candidate) -> np.ndarray | None:
        """Return where each token begins and the last token ends, in codes: (len(tokens),) float64, never decreasing.

        ``tokens`` end with the stop token. Returns ``None`` if the backend returns no attention, or if no head follows
        the text.
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
        """Return the attention of each code and the stop code to the text tokens, rows of sum 1.

        The result is (heads, len(codes) + 1, len(tokens) − 1) float32.
        """
        distinct, scores = distinct_heads(heads), candidate.prefix_scores
        if scores is None or len(scores) != len(distinct) or not candidate.stopped:
            scores = self.scores_of(tokens, conditioning, candidate.codes, distinct)
        text = slice(2, 1 + len(tokens))  # after the voice and the start token, up to the stop tokens
        attention = dict(zip(distinct, softmax(scores[:, :, text]), strict=True))
        return np.stack([without_delay(attention[layer, head], delay) for layer, head, delay in heads])

    def scores_of(
        self, tokens: Sequence[int], conditioning: np.ndarray, codes: Sequence[int], heads: Sequence[tuple[int, int]]
    ) -> np.ndarray:
        """Compute ``Candidate.prefix_scores`` by another pass: (heads, len(codes) + 1, prefix length − 1) float32."""
        prefix = self.tables.prefix(conditioning, tokens, self.config)
        sampled = self.tables.codes(np.asarray(codes), np.arange(1, len(codes) + 1))
        columns = np.concatenate((prefix, sampled)).astype(np.float32)
        return self.backend.prefix_attention(columns, len(prefix) - 1, heads)  # from the start code's column on

    @property
    def recorded_heads(self) -> list[tuple[int, int]]:
        """The heads, (layer, head) each, whose scores the decoder should record."""
        return distinct_heads(self.stated_heads)

    @property
    def stated_heads(self) -> Sequence[TimedHead]:
        """The heads that the model names. If it names none, heads are chosen on each chunk."""
        return self.config.alignment_heads

    @cached_property
    def tables(self) -> Embeddings:
        return Embeddings(**self.backend.embeddings())

    def spoken_words(self, tokens: Sequence[int]) -> Iterator[tuple[str, int, int]]:
        """Yield each word of normalised text without punctuation, its first token and the token after its last."""
        pieces = (self.tokenizer.decode([token]) for token in tokens)
        return joined_pieces((piece, any(map(str.isalnum, piece))) for piece in pieces)


def distinct_heads(heads: Sequence[TimedHead]) -> list[tuple[int, int]]:
    """Return the distinct (layer, head) of some heads, ascending."""
    return sorted({(layer, head) for layer, head, _ in heads})


def softmax(scores: np.ndarray) -> np.ndarray:
    """Compute the softmax over the last axis."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def without_delay(attention: np.ndarray, codes: int) -> np.ndarray:
    """Shift attention (T, K) by ``codes`` codes to earlier ones. The ends are repeated."""
    return attention[np.clip(np.arange(len(attention)) + codes, 0, len(attention) - 1)]


def path_bounds(attention: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each code's first and last token on the monotonic path with most attention, (T,) int64 each."""
    rows, tokens = warping_path(-attention.astype(np.float64))
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    return tokens[starts], tokens[np.append(starts[1:], len(rows)) - 1]


def share_on_path(attention: np.ndarray) -> float:
    """Return by how much the share of attention (T, K) within a token of the path exceeds even attention, 1 at most."""
    first, last = path_bounds(attention)
    tokens = np.arange(attention.shape[1])
    near = (tokens >= first[:, None] - 1) & (tokens <= last[:, None] + 1)
    even = near.mean()
    return float(((attention * near).sum() / len(attention) - even) / max(1e-9, 1 - even))


def expected_starts(attention: np.ndarray) -> np.ndarray:
    """Return where each token begins and the last ends by attention (T, K), in codes: (K + 1,), never decreasing."""
    first, last = path_bounds(attention)
    tokens = np.arange(attention.shape[1])
    near = (tokens >= first[:, None] - WINDOW) & (tokens <= last[:, None] + WINDOW)
    weights = attention * near + 1e-9 * near
    weights = weights / weights.sum(axis=1, keepdims=True)
    return np.concatenate(([0.0], weights.sum(axis=0).cumsum()))
