"""Decoding of a window, a log-mel spectrogram, to tokens; its candidates are in the lanes of one decoder.

The prefix of a window is the text of earlier windows and the token "startoftranscript", whose logits give language
and no-speech probabilities. Each candidate continues it in a lane of its own (openai/whisper decoding.py). This loop is
Whisper's own, without `ane.speech.lanes`: a beam search permutes all lanes of its decoder (``copy_lanes``), so no other
prompt can be on them.
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
    """How a window is decoded; the defaults are the reference's."""

    language: str = "en"
    task: str = "transcribe"  # or "translate", to English
    timestamps: bool = True  # whether the tokens have timestamps
    temperature: float = 0.0  # 0: the likeliest token; above: sampled from softmax(logits / temperature)
    best_of: int = 1  # candidates sampled at a temperature above 0; that with the best score counts
    beam_size: int | None = None  # beams that are searched at temperature 0; None: the likeliest token is taken
    sample_length: int | None = None  # tokens sampled at most; None: half of the decoder's positions
    suppressed: Tokens = ()  # tokens that are never sampled
    blank: Tokens = ()  # tokens that are not sampled first
    max_initial_timestamp: float | None = 1.0  # latest first timestamp in seconds; None: any
    seed: int = 0  # of the candidates' random numbers

    @property
    def candidates(self) -> int:
        """Lanes that a window needs."""
        return self.best_of if self.temperature > 0 else self.beam_size or 1

    @property
    def searches(self) -> bool:
        """Whether beams are searched."""
        return self.beam_size is not None and self.temperature == 0

    def rules(self, special: SpecialTokens) -> TokenRules:
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
    """What precedes the tokens to be sampled for a window."""

    prompt: Tokens = ()  # of earlier text; the decoder keeps the last 223 of them
    prefix: Tokens = ()  # with which the transcript of this window begins
    first_frame: int = 0  # in the recording; the random numbers of its candidates depend on it


@dataclass(frozen=True)
class DecodedWindow:
    """Tokens of one window without the end token, and how certain they are."""

    tokens: Tokens
    average_log_probability: float  # over the tokens and the end token, at temperature 1
    no_speech_probability: float  # of the token "nospeech" after "startoftranscript"
    temperature: float


@dataclass
class TokenSequence:
    """One candidate while it is decoded."""

    left: int  # tokens that may still be sampled
    pending: Tokens  # to append to the lane
    random: np.random.Generator
    length: int = 0  # positions that the lane has
    tokens: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    complete: bool = False  # whether it ended, by the end token or by its length

    def sample(self, logits: np.ndarray, rules: TokenRules, temperature: float) -> None:
        """Choose the next token by logits (V,) float32, which are changed in place."""
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
    """Decodes a window with up to ``candidates`` candidates.

    Args:
        backend: of a Whisper model. config: of its decoder, a ``WhisperDecoderConfig``.
    """

    def __init__(self, backend: Backend, config: Any, special: SpecialTokens, candidates: int = 1):
        self.backend, self.config, self.special = backend, config, special
        tables = backend.embeddings()
        self.token_table, self.position_table = tables["token"], tables["position"]
        self.max_prompt = config.n_text_ctx // 2 - 1
        self.decoder = backend.decoder(candidates, config.n_text_ctx, 1, self.max_prompt + 2)

    def set_states(self, states: np.ndarray) -> None:
        """Take the encoder's states of a window (1, N, D), which later calls decode as often as they like."""
        self.decoder.set_memory(states[0])

    def language_probabilities(self) -> dict[str, float]:
        """The probability of each language, the likeliest first."""
        first = self.special.start + 1
        logits = self._prefill((self.special.start,))[first : first + len(self.special.languages)]
        probabilities = np.exp(logits - log_sum_exp(logits))
        order = np.argsort(-probabilities, kind="stable")
        return {self.special.languages[place]: float(probabilities[place]) for place in order}

    def decode(self, text: WindowText, options: DecodingOptions) -> DecodedWindow:
        """Decode the window. Raises UserError: an unknown language, a prefix beyond the decoder's positions, or beams
        on a backend whose decoder cannot copy lanes.
        """
        if options.searches and not self.decoder.copies_lanes:
            raise UserError(
                f"the backend {self.backend.name} cannot search beams: use backend=torch, or leave the beams out"
            )
        earlier = (self.special.previous, *text.prompt[-self.max_prompt :]) if text.prompt else ()
        prefix = (*earlier, self.special.start)
        start_logits, lanes = self._prefill(prefix), self._candidates(text, len(prefix), options)
        # there are none pending for an English model with timestamps and no prefix
        logits = self._advance(lanes, len(prefix)) if lanes[0].pending else np.stack([start_logits] * len(lanes))
        finish = self._search if options.searches else self._sample
        candidates = finish(lanes, logits, len(prefix), options)
        # the best by the mean of its tokens, of log-probabilities that have the end token's too
        tokens, total = max(candidates, key=lambda candidate: candidate[1] / max(1, len(candidate[0])))
        no_speech = np.exp(float(start_logits[self.special.no_speech]) - log_sum_exp(start_logits))
        return DecodedWindow(tokens, total / (len(tokens) + 1), float(no_speech), options.temperature)

    def _sample(
        self, lanes: Sequence[TokenSequence], logits: np.ndarray, offset: int, options: DecodingOptions
    ) -> list[tuple[Tokens, float]]:
        """The tokens and the log-probability of each candidate, whose first logits (lanes, V) are given."""
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
        """As ``_sample``, by beam search."""
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
        """Store the prefix, which all candidates share; its logits (V,)."""
        columns = self.token_table[list(prefix)] + self.position_table[: len(prefix)]
        return self.decoder.prefill(columns.astype(np.float32), 0)[1]

    def _candidates(self, text: WindowText, offset: int, options: DecodingOptions) -> list[TokenSequence]:
        """The candidates before their first token is sampled, after ``offset`` positions of the prefix."""
        positions = self.config.n_text_ctx
        length = options.sample_length or positions // 2
        kept = positions // 2 - length
        prefix = text.prefix[-kept:] if kept > 0 else text.prefix  # as openai-whisper, whose [-0:] keeps all
        pending = (*self.special.start_sequence(options.language, options.task, options.timestamps)[1:], *prefix)
        room = positions - offset - len(pending)
        if room < 0:
            raise UserError(
                f"prefix must leave room for text: it has {len(prefix)} tokens, the decoder {positions} positions",
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
        """Append the pending tokens to the lanes; logits (lanes, V). Those of complete sequences mean nothing.

        All sequences have the same number of pending tokens. Lanes before the first incomplete sequence and after the
        last one are not computed; a complete one between them repeats its last token.
        """
        incomplete = [lane for lane, sequence in enumerate(sequences) if not sequence.complete]
        low, high = incomplete[0], incomplete[-1] + 1
        chosen = sequences[low:high]
        count = len(sequences[low].pending)
        tokens = np.array([sequence.pending for sequence in chosen])
        lengths = np.array([sequence.length for sequence in chosen], np.int64)
        positions = offset + lengths[:, None] + np.arange(count)
        positions = np.minimum(positions, self.config.n_text_ctx - 1)  # of a complete sequence that filled its lane
        columns = (self.token_table[tokens] + self.position_table[positions]).astype(np.float32)
        logits = np.empty((len(sequences), self.config.n_vocab), np.float32)
        logits[low:high] = self.decoder.step(columns, lengths, low, np.zeros(len(chosen), np.int64))[1]
        for sequence in chosen:
            sequence.length += 0 if sequence.complete else count
        return logits


def sample_token(logits: np.ndarray, temperature: float, random: np.random.Generator) -> int:
    """A token drawn with the probabilities softmax(logits / temperature), by one uniform random number."""
    scaled = (logits.astype(np.float64) - logits.max()) / temperature
    cumulated = np.cumsum(np.exp(scaled))
    return int(np.searchsorted(cumulated, random.random() * cumulated[-1], side="right"))


@dataclass
class BeamSearch:
    """The likeliest unfinished sequences of a window, its beams, and those that ended."""

    size: int  # number of beams
    enough: int  # ended sequences with which the search is complete
    end: int  # the end token

    def __post_init__(self) -> None:
        self.beams: list[tuple[Tokens, float]] = [((), 0.0)] * self.size  # tokens and log-probability
        self.ended: dict[Tokens, float] = {}  # log-probability, with that of the end token, by tokens without it

    @property
    def complete(self) -> bool:
        return len(self.ended) >= self.enough

    def advance(self, logits: np.ndarray) -> np.ndarray:
        """Extend the beams by one token each, by logits (size, V) float32; the beam that each continues (size,) int64.

        Of all continuations the likeliest are kept, up to ``size`` that go on. Those above the last of them that end
        here have ended.
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
        """Tokens and log-probabilities of the sequences that ended; if they are too few, the best beams too."""
        found = dict(self.ended)
        for tokens, score in sorted(self.beams, key=lambda beam: beam[1], reverse=True):
            if len(found) >= self.size:
                break
            found[tokens] = score
        return list(found.items())


def likeliest(row: np.ndarray, count: int) -> np.ndarray:
    """Indices of the ``count`` highest values of row (V,), the highest first."""
    found = np.argpartition(-row, min(count, len(row)) - 1)[:count]
    return found[np.argsort(-row[found], kind="stable")]
