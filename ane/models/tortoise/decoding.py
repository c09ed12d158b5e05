"""Sample the candidates (code sequences) of chunks on a decoder's lanes, and score them with CLVP for ranking.

A lane is one row of the decoder's batch. Every candidate has a separate random generator, so its codes do not depend on
the number of lanes or on other candidates. With PyTorch on the CPU, the bits of its hidden states do not depend on the
lanes or other candidates either, in any precision. On other backends, hidden states can differ by rounding. If two
codes are about equally likely, the rounding can decide between them.

Upstream computes latents in a second pass over the codes. Here the decoder steps return the latents: the network is
causal, so the hidden state that predicts code i is latent i of the second pass. Before its second pass, upstream also
overwrites the codes after the stop code, which changes a few latents. We call the decoder again only for these latents.
This call uses the keys and values that the lane still has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ane.backends.base import Backend
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.sampling import CodeSampler, distribution
from ane.models.tortoise.settings import Sampling
from ane.speech.lanes import Extend, Lanes
from ane.speech.turns import Turns
from ane.system.errors import UserError


@dataclass(frozen=True)
class Embeddings:
    """Embedding tables of the decoder, all float32. Their rows add up to columns, the decoder's inputs."""

    text: np.ndarray  # (tokens, D)
    text_position: np.ndarray  # (positions, D)
    code: np.ndarray  # (V, D)
    code_position: np.ndarray  # (positions, D)

    def prefix(self, conditioning: np.ndarray, tokens: Sequence[int], config: UnifiedVoiceConfig) -> np.ndarray:
        """Return the columns (decoder inputs) before the first code, (len(tokens) + 4, D).

        The columns are the voice's ``conditioning`` (1, D), the start token, the text, the stop token and the start
        code.
        """
        ids = [config.start_text_token, *tokens, config.stop_text_token]
        text = self.text[ids] + self.text_position[: len(ids)]
        return np.concatenate((conditioning, text, self.codes(config.start_mel_token, 0)[None]))

    @staticmethod
    def prefix_length(tokens: Sequence[int]) -> int:
        return len(tokens) + 4

    def codes(self, codes: np.ndarray | int, position: np.ndarray | int) -> np.ndarray:
        """Return the columns (…, D) for codes at these positions.

        The start code has position 0, and code i position i + 1.
        """
        return self.code[codes] + self.code_position[position]


def pad_codes(codes: Sequence[int], length: int, config: UnifiedVoiceConfig) -> np.ndarray:
    """Pad codes to ``length`` as upstream does: with silent codes, and with ``config.tail_tokens`` at the very end.

    Args:
        codes: Sampled codes before the stop code. There are at most ``length``.
        length: Length of upstream's array, which upstream calls max_mel_tokens.
        config: Config of the decoder.

    Returns:
        The padded codes, (length,) int64. If there was no stop code (``len(codes) == length``), nothing is padded.
    """
    out = np.full(length, config.calm_token, dtype=np.int64)
    out[: len(codes)] = codes
    if len(codes) < length:
        tail = np.asarray(config.tail_tokens)[-length:]
        out[length - len(tail) :] = tail
    return out


def trimmed_length(codes: np.ndarray, config: UnifiedVoiceConfig) -> int:
    """Return how many latents of a candidate to pass to the diffusion.

    The rest begins where a silence becomes too long. A silence may have ``config.calm_run`` silent codes in a row.
    Upstream allows eight for every model (api.py, calm_tokens).
    """
    run = 0
    for index, code in enumerate(codes):
        run = run + 1 if code == config.calm_token else 0
        if run > config.calm_run:
            return index
    return len(codes)


def longest_loop(codes: Sequence[int], config: UnifiedVoiceConfig) -> int:
    """Measure the longest loop in codes, which is a sign that the voice stutters. Silent codes do not count.

    A loop is a run of codes that are all equal to the code d positions earlier, where d is 1, 2, 3 or 4. Returns the
    number of codes in the longest loop.
    """
    codes_array, longest = np.asarray(codes), 0
    for distance in range(1, 5):
        run = 0
        for same in (codes_array[distance:] == codes_array[:-distance]) & (codes_array[distance:] != config.calm_token):
            run = run + 1 if same else 0
            longest = max(longest, run)
    return longest


@dataclass
class Candidate:
    """One code sequence that was sampled for a chunk, and its latents."""

    codes: list[int]  # without the stop code
    stopped: bool  # whether the stop code was sampled within ``max_codes`` codes
    hidden: np.ndarray  # (len(codes) + stopped, D) float32: the latent of each code and of the stop code
    padded_codes: np.ndarray  # (max_codes,) int64, padded by ``pad_codes`` for ranking as in upstream
    latents: np.ndarray  # (t, D) float32: latents of ``padded_codes``, trimmed; diffusion reads them
    log_probability: float = 0.0  # mean over codes and stop code in nats, among the codes that could be sampled
    # Attention scores between each code (and the stop code) and each position before the start code:
    # (heads, len(codes) + stopped, prefix length − 1) float32. None if the decoder did not record them.
    prefix_scores: np.ndarray | None = None


PREFIX_ID = 1  # id that upstream puts at every position of the prefix, so the repetition penalty also applies to id 1
LEAST_PROBABILITY = 1e-9  # lower bound of a code's probability; a sampler may return a code that has probability 0


@dataclass
class Prompt:
    """The prefix of one chunk, and everything that ``ane.speech.lanes`` needs to sample the chunk's candidates."""

    conditioning: np.ndarray  # the voice's conditioning latent (1, D) float32
    tokens: Sequence[int]  # the result of ``ane.models.tortoise.chunks.text_tokens``
    samplers: Sequence[CodeSampler]  # one per candidate
    tables: Embeddings
    config: UnifiedVoiceConfig
    sampling: Sampling
    # Whether to call the decoder once more per candidate, for the latents of the codes that upstream writes after the
    # stop code. If not, ``Candidate.latents`` ends before these codes.
    rewrite_tail: bool = True
    codes: int = 0  # number of codes sampled so far in all candidates

    @property
    def count(self) -> int:
        return len(self.samplers)

    def prefix(self) -> np.ndarray:
        prefix = self.tables.prefix(self.conditioning, self.tokens, self.config)
        if not np.isfinite(prefix).all():  # NaN in the cache would reach other lanes: their masked products read it
            raise UserError("the voice's latents hold NaN or infinite numbers: make the voice again")
        return prefix

    def begin(self, index: int) -> "SampledCandidate":
        return SampledCandidate(self, self.samplers[index])


class SampledCandidate:
    """A candidate that is being sampled."""

    def __init__(self, prompt: Prompt, sampler: CodeSampler):
        self.prompt, self.sampler = prompt, sampler
        self.codes: list[int] = []
        self._history = np.full(prompt.sampling.max_codes + 2, PREFIX_ID)
        self._history[1] = prompt.config.start_mel_token
        self.hidden: list[np.ndarray] = []
        self.prefix_scores: list[np.ndarray] = []  # (heads, positions) per row of ``hidden``, if recorded
        self.stopped = False
        self.log_probability = 0.0  # sum over all codes

    def take(self, hidden: np.ndarray, logits: np.ndarray, scores: np.ndarray | None) -> np.ndarray | None:
        if not np.isfinite(logits).all():
            raise UserError(
                "the decoder returned NaN or infinite logits: the weights are damaged, or the precision is "
                "too low for them (use precision=fp32)"
            )
        prompt, count = self.prompt, len(self.codes)
        logits = logits.copy()
        logits[prompt.config.start_mel_token] = -np.inf  # CLVP has no embedding for this code, so upstream would crash
        # the repetition penalty applies to the ids of the prefix, and to all codes
        ids, probabilities = distribution(logits, self._history[: count + 2], prompt.sampling)
        code = self.sampler(ids, probabilities)
        self.log_probability += float(np.log(max(probabilities[ids == code].sum(), LEAST_PROBABILITY)))
        if scores is not None:
            self.prefix_scores.append(scores)
        self.hidden.append(hidden)
        if code == prompt.config.stop_mel_token:
            self.stopped = True
            return None
        self._history[count + 2] = code
        self.codes.append(code)
        prompt.codes += 1
        return None if count + 1 == prompt.sampling.max_codes else prompt.tables.codes(code, count + 1)

    def certain(self, start: int) -> list[np.ndarray]:
        """Return the rows of ``hidden``, from index ``start``, that no later code can remove.

        If the diffusion takes the latents, a row is final once it is sure to be within ``trimmed_length``.
        """
        end = trimmed_length(self.codes, self.prompt.config) if self.prompt.rewrite_tail else len(self.hidden)
        return self.hidden[start:end]

    def finish(self, extend: Extend) -> Candidate:
        """Build the candidate. If the prompt requests latents of codes after the stop code, compute them."""
        prompt, hidden = self.prompt, np.stack(self.hidden)
        codes = pad_codes(self.codes, prompt.sampling.max_codes, prompt.config)
        length = trimmed_length(codes, prompt.config)
        latents = hidden[:length]
        if length > len(hidden) and prompt.rewrite_tail:
            known = len(hidden) - 1  # the codes before the stop code are in the cache
            rewritten = np.arange(known, length - 1)
            tail = extend(prompt.tables.codes(codes[rewritten], rewritten + 1), known)
            latents = np.concatenate((hidden, tail))
        before = Embeddings.prefix_length(prompt.tokens) - 1
        scores = [rows[:, :before] for rows in self.prefix_scores]
        return Candidate(
            self.codes,
            self.stopped,
            hidden,
            codes,
            latents,
            self.log_probability / len(hidden),
            np.stack(scores, axis=1) if scores else None,
        )


def make_lanes(
    backend: Backend,
    config: UnifiedVoiceConfig,
    lanes: int,
    max_codes: int,
    prefixes: int,
    longest: int | None = None,
    recorded_heads: Sequence[tuple[int, int]] = (),
    turns: Turns | None = None,
) -> Lanes:
    """Create lanes (rows of the decoder's batch) for candidates of at most ``max_codes`` codes.

    Args:
        backend: Backend that runs the decoder.
        config: Config of the decoder.
        lanes: Number of lanes.
        max_codes: Largest number of codes in a candidate.
        prefixes: Number of prefixes that the decoder can store.
        longest: Largest number of columns in a prefix. ``None`` allows any prefix that the network can take.
        recorded_heads: Attention heads, as (layer, head), whose scores to store in ``Candidate.prefix_scores``.
        turns: Argument ``turns`` for ``Lanes``.

    Raises:
        UserError: ``max_codes`` is larger than the number of positions that the decoder has for codes.
    """
    check_codes(max_codes, config.max_mel_tokens - 1)
    if longest is None:
        longest = len(backend.embeddings()["text_position"]) + Embeddings.prefix_length(())
    return Lanes(backend.decoder(lanes, max_codes, prefixes, longest), recorded_heads, turns)


def check_codes(max_codes: int, limit: int) -> None:
    """Raise UserError if ``max_codes`` is more than ``limit``.

    A lane (row of the decoder's batch) has room for ``limit`` codes.
    """
    if not 1 <= max_codes <= limit:
        raise UserError(
            f"max_codes must be from 1 to {limit}, the number of positions of this decoder, got {max_codes}",
            "max_codes",
        )


CANDIDATES_PER_CALL = 8  # enough to keep the hardware busy; more candidates would only take more memory


def score_candidates(
    backend: Backend, tokens: Sequence[int], codes: np.ndarray, progress: Callable[[int], None] = lambda done: None
) -> np.ndarray:
    """Score with CLVP how well candidates match a text. Returns (n,) float32, where higher is better.

    Args:
        backend: Backend that runs CLVP.
        tokens: Token ids of the text, with a stop token at the end and without a start token.
        codes: Codes of the candidates, (n, S) int64, padded to one length by ``pad_codes``.
        progress: Function that is called with the number of candidates that have a score.

    Raises:
        UserError: A score is NaN or infinite.
    """
    text = backend.run("clvp_text", tokens=np.array([tokens], dtype=np.int64))
    scores = []
    for start in range(0, len(codes), CANDIDATES_PER_CALL):
        speech = backend.run("clvp_speech", codes=codes[start : start + CANDIDATES_PER_CALL])
        scores.append((speech @ text.T)[:, 0])
        progress(min(start + CANDIDATES_PER_CALL, len(codes)))
    total = np.concatenate(scores)
    if not np.isfinite(total).all():
        raise UserError(
            "the ranking network returned NaN or infinite scores: the weights are damaged, or the "
            "precision is too low for them (use precision=fp32)"
        )
    return total


def best_candidates(scores: np.ndarray, count: int) -> list[int]:
    """Return the indices of the ``count`` best scores, best first. Equal scores keep the order of the candidates."""
    return [int(index) for index in np.argsort(-scores, kind="stable")[:count]]
