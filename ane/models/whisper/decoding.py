"""Decode a window of 30 s to text tokens, by sampling or beam search (openai/whisper decoding.py).

The prefix is the text of earlier windows and the token "startoftranscript". The logits after the prefix contain the
probability of each language, and of silence. Each candidate transcript continues the prefix on a lane of the decoder (a
row of its batch). This module does not use ``ane.speech.lanes``, because a beam search permutes all lanes of its
decoder (``copy_lanes``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ane.backends.base import Backend
from ane.models.whisper.tokens import SECONDS_PER_TIMESTAMP, SpecialTokens, TokenRules, log_sum_exp
from ane.system.errors import UserError

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class DecodingOptions:
    """Options for decoding a window. The defaults are the same as in openai-whisper."""

    language: str = "en"
    task: str = "transcribe"  # "transcribe", or "translate" for a translation to English
    timestamps: bool = True  # whether to decode timestamps with the text
    temperature: float = 0.0  # 0 takes the likeliest token; otherwise softmax(logits / temperature) is sampled
    best_of: int = 1  # number of candidates at a temperature above 0; the best one is returned
    beam_size: int | None = None  # number of beams at temperature 0; None takes the likeliest token instead
    sample_length: int | None = None  # largest number of tokens to sample; None means half of the decoder's positions
    suppressed: Tokens = ()  # tokens that are never sampled
    blank: Tokens = ()  # tokens that must not be the first one
    max_initial_timestamp: float | None = 1.0  # largest first timestamp in seconds; None allows any
    seed: int = 0  # seed of the candidates' random numbers

    @property
    def candidates(self) -> int:
        """The number of lanes (rows of the decoder's batch) for a window: one for each transcript that is tried."""
        return self.best_of if self.temperature > 0 else self.beam_size or 1

    @property
    def searches(self) -> bool:
        """Whether to search beams."""
        return self.beam_size is not None and self.temperature == 0

    def rules(self, special: SpecialTokens) -> TokenRules:
        """Build the rules that exclude tokens while a sequence is sampled."""
        latest = self.max_initial_timestamp
        return TokenRules(
            special,
            self.suppressed,
            self.blank,
            self.timestamps,
            None if latest is None else round(latest / SECONDS_PER_TIMESTAMP),
        )


@dataclass(frozen=True)
class WindowText:
    """The text before the tokens that are sampled for a window."""

    prompt: Tokens = ()  # text of earlier windows; the decoder gets at most its last 223 tokens
    prefix: Tokens = ()  # beginning of this window's transcript, if it is already known
    first_frame: int = 0  # first mel frame of the window in the recording; it is part of the random seed


@dataclass(frozen=True)
class DecodedWindow:
    """The tokens of one window, without the end token, and how certain they are."""

    tokens: Tokens
    average_log_probability: float  # mean over the tokens and the end token, at temperature 1
    no_speech_probability: float  # probability of the token "nospeech" after "startoftranscript"
    temperature: float


@dataclass
class TokenSequence:
    """A candidate transcript that is being decoded."""

    left: int  # number of tokens that may still be sampled
    pending: Tokens  # tokens that are not in the lane yet
    random: np.random.Generator
    length: int = 0  # number of positions that the lane holds after the prefix
    tokens: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    complete: bool = False  # whether the end token was sampled, or ``left`` is 0

    def sample(self, logits: np.ndarray, rules: TokenRules, temperature: float) -> None:
        """Choose the next token from logits (V,) float32. The rules change the logits in place."""
        rules.apply(logits, self.tokens)
        token = int(logits.argmax()) if temperature == 0 else sample_token(logits, temperature, self.random)
        self.log_probability += float(logits[token]) - log_sum_exp(logits)
        self.left -= 1
        ended = token == rules.special.end
        if not ended:
            self.tokens.append(token)
        self.pending = (token,)
        self.complete = ended or self.left == 0


class WindowDecoder:
    """Decodes one window after another, each with up to ``candidates`` candidates.

    Args:
        backend: Backend that runs a Whisper model.
        config: Sizes of the model's decoder, a ``WhisperDecoderConfig``.
        special: Special tokens of the model's vocabulary.
        candidates: Number of lanes that the decoder gets.
    """

    def __init__(self, backend: Backend, config: Any, special: SpecialTokens, candidates: int = 1):
        self.backend, self.config, self.special = backend, config, special
        tables = backend.embeddings()
        self.token_table, self.position_table = tables["token"], tables["position"]
        self.max_prompt = config.n_text_ctx // 2 - 1
        self.decoder = backend.decoder(candidates, config.n_text_ctx, 1, self.max_prompt + 2)
        self._states: np.ndarray | None = None

    def set_states(self, states: np.ndarray) -> None:
        """Set the window to decode, as the encoder's states (1, N, D). You can then decode this window several times.

        A second call with the same array does nothing, because the window may already be set for detecting the
        language.
        """
        if states is not self._states:
            self.decoder.set_memory(states[0])
            self._states = states

    def language_probabilities(self) -> dict[str, float]:
        """Compute the probability of each language, the likeliest first."""
        first = self.special.start + 1
        logits = self._prefill((self.special.start,))[first : first + len(self.special.languages)]
        probabilities = np.exp(logits - log_sum_exp(logits))
        order = np.argsort(-probabilities, kind="stable")
        return {self.special.languages[place]: float(probabilities[place]) for place in order}

    def decode(self, text: WindowText, options: DecodingOptions) -> DecodedWindow:
        """Decode the window.

        Raises:
            UserError: The language is unknown, or the prefix leaves no positions of the decoder free. Or the options
                ask for beams, and the backend's decoder cannot copy lanes.
        """
        if options.searches and not self.decoder.copies_lanes:
            raise UserError(
                f"the backend {self.backend.name} has no beam search: use backend=torch, or leave the beams out"
            )
        earlier = (self.special.previous, *text.prompt[-self.max_prompt :]) if text.prompt else ()
        prefix = (*earlier, self.special.start)
        start_logits, lanes = self._prefill(prefix), self._candidates(text, len(prefix), options)
        # With an English-only model, timestamps and no prefix, there are no pending tokens after "startoftranscript".
        logits = self._advance(lanes, len(prefix)) if lanes[0].pending else np.stack([start_logits] * len(lanes))
        finish = self._search if options.searches else self._sample
        candidates = finish(lanes, logits, len(prefix), options)
        # As in openai-whisper, the sum includes the end token here, but the number of tokens does not.
        tokens, total = max(candidates, key=lambda candidate: candidate[1] / max(1, len(candidate[0])))
        no_speech = np.exp(float(start_logits[self.special.no_speech]) - log_sum_exp(start_logits))
        return DecodedWindow(tokens, total / (len(tokens) + 1), float(no_speech), options.temperature)

    def _sample(
        self, lanes: Sequence[TokenSequence], logits: np.ndarray, offset: int, options: DecodingOptions
    ) -> list[tuple[Tokens, float]]:
        """Sample all candidates to their ends, beginning with the logits (lanes, V) of their first tokens.

        A lane is a row of the decoder's batch. Returns the tokens and the log-probability of each candidate.
        """
        rules = options.rules(self.special)
        while True:
            for lane, row in zip(lanes, logits, strict=True):
                if not lane.complete:
                    lane.sample(row, rules, options.temperature)
            if all(lane.complete for lane in lanes):
                return [(tuple(lane.tokens), lane.log_probability) for lane in lanes]
            logits = self._advance(lanes, offset)

    def _search(
        self, lanes: Sequence[TokenSequence], logits: np.ndarray, offset: int, options: DecodingOptions
    ) -> list[tuple[Tokens, float]]:
        """Run a beam search instead of sampling. The arguments and the result are the same as for ``_sample``."""
        rules, search = options.rules(self.special), BeamSearch(len(lanes), len(lanes), self.special.end)
        for left in reversed(range(lanes[0].left)):
            for row, (tokens, _) in zip(logits, search.beams, strict=True):
                rules.apply(row, tokens)
            sources = search.advance(logits)
            if search.complete or not left:
                break
            self.decoder.copy_lanes(sources, lanes[0].length)
            for lane, (tokens, _) in zip(lanes, search.beams, strict=True):
                lane.pending = tokens[-1:]
            logits = self._advance(lanes, offset)
        return search.candidates()

    def _prefill(self, prefix: Tokens) -> np.ndarray:
        """Store the prefix (prompt), which all candidates share, in the decoder.

        Returns the logits (V,) after the prefix.
        """
        columns = self.token_table[list(prefix)] + self.position_table[: len(prefix)]
        return self.decoder.prefill(columns.astype(np.float32), 0)[1]

    def _candidates(self, text: WindowText, offset: int, options: DecodingOptions) -> list[TokenSequence]:
        """Create a window's candidates: token sequences, still empty, that follow a prefix of ``offset`` positions."""
        positions = self.config.n_text_ctx
        length = options.sample_length or positions // 2
        kept = positions // 2 - length
        prefix = text.prefix[-kept:] if kept > 0 else text.prefix  # in openai-whisper, [-0:] keeps everything, too
        pending = (*self.special.start_sequence(options.language, options.task, options.timestamps)[1:], *prefix)
        room = positions - offset - len(pending)
        if room < 0:
            raise UserError(
                f"prefix must leave room for text, but it has {len(prefix)} tokens and the decoder has {positions} "
                "positions",
                "prefix",
            )
        return [
            TokenSequence(
                min(length, room + 1),
                pending,
                np.random.default_rng((options.seed, text.first_frame, round(1000 * options.temperature), candidate)),
            )
            for candidate in range(options.candidates)
        ]

    def _advance(self, sequences: Sequence[TokenSequence], offset: int) -> np.ndarray:
        """Run a decoder step on each sequence's pending tokens, and return logits (lanes, V).

        All sequences must have the same number of pending tokens. The step includes all sequences from the first to the
        last incomplete sequence. A complete sequence between these two repeats its last token. The logits of complete
        sequences have no meaning.
        """
        incomplete = [lane for lane, sequence in enumerate(sequences) if not sequence.complete]
        low, high = incomplete[0], incomplete[-1] + 1
        chosen = sequences[low:high]
        count = len(sequences[low].pending)
        tokens = np.array([sequence.pending for sequence in chosen])
        lengths = np.array([sequence.length for sequence in chosen], np.int64)
        positions = offset + lengths[:, None] + np.arange(count)
        # A complete sequence may have filled its lane, so that its next position does not exist.
        positions = np.minimum(positions, self.config.n_text_ctx - 1)
        columns = (self.token_table[tokens] + self.position_table[positions]).astype(np.float32)
        logits = np.empty((len(sequences), self.config.n_vocab), np.float32)
        logits[low:high] = self.decoder.step(columns, lengths, low, np.zeros(len(chosen), np.int64))[1]
        for sequence in chosen:
            sequence.length += 0 if sequence.complete else count
        return logits


def sample_token(logits: np.ndarray, temperature: float, random: np.random.Generator) -> int:
    """Draw a token with the probabilities softmax(logits / temperature), using one uniform random number."""
    scaled = (logits.astype(np.float64) - logits.max()) / temperature
    cumulated = np.cumsum(np.exp(scaled))
    return int(np.searchsorted(cumulated, random.random() * cumulated[-1], side="right"))


@dataclass
class BeamSearch:
    """The state of a beam search: the beams (the likeliest unfinished sequences), and the sequences that have ended."""

    size: int  # number of beams
    enough: int  # number of ended sequences with which the search is complete
    end: int  # the end token

    def __post_init__(self) -> None:
        self.beams: list[tuple[Tokens, float]] = [((), 0.0)] * self.size  # tokens and log-probability of each beam
        self.ended: dict[Tokens, float] = {}  # tokens without the end token → log-probability with the end token

    @property
    def complete(self) -> bool:
        """Whether enough sequences have ended."""
        return len(self.ended) >= self.enough

    def advance(self, logits: np.ndarray) -> np.ndarray:
        """Extend every beam by one token. The network computed the tokens' logits, (size, V) float32.

        The new beams are the ``size`` likeliest sequences that do not end with the new token. A sequence that ends is
        stored in ``ended`` if it is likelier than the last new beam.

        Returns:
            For each new beam, the index of the beam that it continues, (size,) int64.
        """
        scores: dict[Tokens, tuple[float, int]] = {}
        for index, ((tokens, total), row) in enumerate(zip(self.beams, logits, strict=True)):
            scale = log_sum_exp(row)
            for token in likeliest(row, self.size + 1):
                scores[(*tokens, int(token))] = total + float(row[token]) - scale, index
        kept: list[tuple[Tokens, float]] = []
        sources = []
        ranked = sorted(scores.items(), key=lambda item: item[1][0], reverse=True)
        for tokens, (score, index) in ranked:
            if tokens[-1] != self.end:
                kept.append((tokens, score))
                sources.append(index)
            elif not self.complete:
                self.ended[tokens[:-1]] = score
            if len(kept) == self.size:
                break
        self.beams = kept
        return np.array(sources, np.int64)

    def candidates(self) -> list[tuple[Tokens, float]]:
        """Return the tokens and log-probability of each ended sequence.

        If too few sequences have ended, add the best beams.
        """
        found = dict(self.ended)
        for tokens, score in sorted(self.beams, key=lambda beam: beam[1], reverse=True):
            if len(found) >= self.size:
                break
            found[tokens] = score
        return list(found.items())


def likeliest(row: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the ``count`` largest values of ``row`` (V,), the largest first."""
    found = np.argpartition(-row, min(count, len(row)) - 1)[:count]
    return found[np.argsort(-row[found], kind="stable")]
