"""Text and a voice to codes and their latents: lanes of one decoder, sampled step by step.

Latents come out of the step: the hidden state that predicts code i *is* latent i of upstream's second pass, because
the network is causal and positions are the trained ones. Upstream then overwrites what follows the stop code; only
those few latents need one more call, on the lane's own cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ane.codes import fixed, trimmed_length
from ane.errors import UserError
from ane.networks.autoregressive import UnifiedVoiceConfig
from ane.sampling import Choose, Sampling, distribution
from ane.stages import Backend, Decoder

FAKE_TOKEN = 1      # upstream's stand-in id for every position of the prefix, seen by the repetition penalty


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


def decode(backend: Backend, conditioning: np.ndarray, tokens: Sequence[int], config: UnifiedVoiceConfig,
           sampling: Sampling, choices: Sequence[Choose], lanes: int = 8,
           progress: Callable[[int, int], None] = lambda codes, finished: None) -> list[Candidate]:
    """Sample one candidate for each of ``choices``, at most ``lanes`` at a time.

    The prefix is computed once and shared. A lane whose candidate has ended takes the next one; a candidate depends
    on its own ``Choose`` alone, not on the lane or its neighbours.

    Args:
        conditioning: the voice's conditioning latent (1, D) float32.
        tokens: of ``text_tokens``.
        progress: called after every step with the codes sampled and the candidates finished so far.

    Raises:
        UserError: the codes asked for do not fit the decoder's positions, or the network gives NaN.
    """
    room = config.max_mel_tokens - 1
    if not 1 <= sampling.max_codes <= room:
        raise UserError(f"--max-codes {sampling.max_codes}: this decoder has positions for 1 to {room} codes")
    lanes = min(lanes, len(choices))
    tables = Embeddings(**backend.embeddings())
    prefix = tables.prefix(conditioning, tokens, config)
    decoder = backend.decoder(lanes, sampling.max_codes)
    first = finite(*decoder.prefill(prefix))
    packed = Lanes(decoder, tables, config, sampling, first)
    done: dict[int, Candidate] = {}
    waiting = iter(enumerate(choices))
    active = {lane: packed.start(lane, *entry) for lane, entry in zip(range(lanes), waiting, strict=False)}
    while active:
        for lane, reading in list(active.items()):
            while reading.ended:
                done[reading.index] = packed.finish(reading)
                entry = next(waiting, None)
                if entry is None:
                    del active[lane]
                    break
                active[lane] = reading = packed.start(lane, *entry)
        progress(sum(len(r.codes) for r in active.values()) + sum(len(c.codes) for c in done.values()), len(done))
        if active:
            packed.step(active)
    return [done[index] for index in range(len(choices))]


def finite(hidden: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not np.isfinite(logits).all():
        raise UserError("the decoder gave NaN or infinite logits: the weights are damaged, or --precision is too "
                        "narrow for them (try fp32)")
    return hidden, logits


class Reading:
    """A candidate in the making, on its lane."""

    def __init__(self, lane: int, index: int, choose: Choose, limit: int):
        self.lane, self.index, self.choose, self.limit = lane, index, choose, limit
        self.codes: list[int] = []
        self.hidden: list[np.ndarray] = []
        self.stopped = False

    @property
    def ended(self) -> bool:
        return self.stopped or len(self.codes) == self.limit


class Lanes:
    """The decoder's lanes with the readings on them."""

    def __init__(self, decoder: Decoder, tables: Embeddings, config: UnifiedVoiceConfig, sampling: Sampling,
                 first: tuple[np.ndarray, np.ndarray]):
        self.decoder, self.tables, self.config, self.sampling, self.first = decoder, tables, config, sampling, first

    def start(self, lane: int, index: int, choose: Choose) -> Reading:
        """A new reading on a lane whose old positions no longer count; its first code comes from the prefix."""
        reading = Reading(lane, index, choose, self.sampling.max_codes)
        self.sample(reading, *self.first)
        return reading

    def sample(self, reading: Reading, hidden: np.ndarray, logits: np.ndarray) -> None:
        """Take the state (D,) and scores (V,) of a reading's newest column, and choose the code that follows."""
        scores = logits.copy()
        scores[self.config.start_mel_token] = -np.inf       # upstream would crash on it in CLVP
        history = np.array([FAKE_TOKEN, self.config.start_mel_token, *reading.codes])
        code = reading.choose(*distribution(scores, history, self.sampling))
        reading.hidden.append(hidden)
        if code == self.config.stop_mel_token:
            reading.stopped = True
        else:
            reading.codes.append(code)

    def step(self, active: dict[int, Reading]) -> None:
        """Feed every active lane its newest code, and sample what follows. Idle lanes run along, unread."""
        width = self.tables.code.shape[1]
        columns = np.zeros((self.decoder.lanes, 1, width), dtype=np.float32)
        length = np.zeros(self.decoder.lanes, dtype=np.int64)
        for lane, reading in active.items():
            position = len(reading.codes)                   # code i stands at mel position i + 1, own position i
            columns[lane, 0] = self.tables.codes(reading.codes[-1], position)
            length[lane] = position - 1
        hidden, logits = finite(*self.decoder.step(columns, length))
        for lane, reading in active.items():
            self.sample(reading, hidden[lane, -1], logits[lane])

    def finish(self, reading: Reading) -> Candidate:
        """The candidate, with the latents that upstream's rewriting of the codes after the stop adds."""
        hidden = np.stack(reading.hidden)
        codes = fixed(reading.codes, self.sampling.max_codes, self.config)
        length = trimmed_length(codes, self.config)
        latents = hidden[:length]
        if length > len(hidden):
            known = len(hidden) - 1                         # the codes before the stop are in the cache
            rewritten = np.arange(known, length - 1)
            columns = self.tables.codes(codes[rewritten], rewritten + 1)
            tail, _ = self.decoder.step(columns[None], np.array([known]), first=reading.lane)
            latents = np.concatenate((hidden, tail[0]))
        return Candidate(reading.codes, reading.stopped, hidden, codes, latents)
