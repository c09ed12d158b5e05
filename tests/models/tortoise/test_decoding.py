"""Test that candidates of many chunks share the lanes of one decoder, and that each is sampled as if it were alone."""

import gc
import platform
import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.torch.backend import TorchBackend
from ane.bundles import Bundle
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.decoding import Candidate, make_lanes, trimmed_length
from ane.models.tortoise.sampling import InverseCdfSampler, Randomness, Sampling
from tests.decoding import ChunkPrompt, decode
from tests.random_model import random_model
from tests.refusals import assert_refused

# numbers of tokens and candidates of each prompt
SHAPES = st.lists(st.tuples(st.integers(1, 25), st.integers(1, 7)), min_size=1, max_size=4)
ROUNDING = 0 if platform.machine() in ("x86_64", "AMD64") else 1e-4  # exactness was not tried on other machines

Prompts = Callable[[int, int, int], ChunkPrompt]


@pytest.fixture(scope="module")
def model() -> Bundle:
    return random_model()


@pytest.fixture(scope="module")
def config(model):
    return model.config("autoregressive")


@pytest.fixture(scope="module")
def backend(model) -> TorchBackend:
    return TorchBackend(model, "cpu", "fp32")


@pytest.fixture(scope="module")
def prompt(config) -> Prompts:
    """``prompt(chunk, tokens, candidates)``: a text of that many tokens, in a voice of its own."""

    def make(chunk: int, tokens: int, candidates: int) -> ChunkPrompt:
        rng = np.random.default_rng(chunk)
        voice = rng.standard_normal((1, config.model_dim), dtype=np.float32)
        ids = text_tokens(list(rng.integers(1, 30, tokens)), config)
        samplers = [InverseCdfSampler(Randomness(7).candidate(chunk, index)) for index in range(candidates)]
        return ChunkPrompt(voice, ids, samplers)

    return make


@pytest.fixture(scope="module")
def ending_after(config, prompt):
    """``ending_after(*lengths)``: a text whose candidates have so many codes, then the stop code."""

    def make(*lengths: int) -> ChunkPrompt:
        codes = [iter([7] * length) for length in lengths]
        samplers = [
            lambda ids, probabilities, remaining=remaining: next(remaining, config.stop_mel_token)
            for remaining in codes
        ]
        return ChunkPrompt(prompt(0, 6, 1).conditioning, prompt(0, 6, 1).tokens, samplers)

    return make


@pytest.fixture(scope="module")
def sample_one_text(backend, config, prompt):
    """``sample_one_text(candidates, lanes)``: the candidates of one text."""

    def sample(candidates: int, lanes: int, max_codes: int = 60) -> list[Candidate]:
        [sampled] = decode(backend, [prompt(0, 30, candidates)], config, Sampling(max_codes=max_codes), lanes)
        return sampled

    return sample


class RecordingBackend:
    """Records the calls of its decoder; it may limit the number of prefixes and change the logits."""

    def __init__(
        self,
        backend: TorchBackend,
        prefixes: int = 9,
        change_logits: Callable[[np.ndarray], np.ndarray] = lambda logits: logits,
    ):
        self.backend, self.prefixes, self.change_logits = backend, prefixes, change_logits
        self.prefills: list[int] = []  # index of each prefill
        self.steps: list[tuple[int, int]] = []  # numbers of lanes and positions of each step

    def __getattr__(self, name: str):
        return getattr(self.backend, name)

    def decoder(self, lanes: int, capacity: int, prefixes: int, max_prefix_length: int):
        decoder = self.backend.decoder(lanes, capacity, min(prefixes, self.prefixes), max_prefix_length)
        prefill, step = decoder.prefill, decoder.step

        def recorded_prefill(prefix, index=0):
            self.prefills.append(index)
            hidden, logits = prefill(prefix, index)
            return hidden, self.change_logits(logits)

        def recorded_step(columns, *rest):
            self.steps.append(columns.shape[:2])
            hidden, logits = step(columns, *rest)
            return hidden, self.change_logits(logits)

        decoder.prefill, decoder.step = recorded_prefill, recorded_step
        return decoder


# Each candidate is independent of all others


@settings(max_examples=10, deadline=None)
@given(shapes=SHAPES, lanes=st.integers(1, 9), limit=st.integers(1, 30))
def test_chunks_on_shared_lanes_are_decoded_as_if_alone(backend, config, prompt, shapes, lanes, limit):
    """Whatever the numbers of lanes and candidates are: the last candidate of a chunk is left out where it is alone."""
    sampling = Sampling(max_codes=limit)
    prompts = [prompt(chunk, *shape) for chunk, shape in enumerate(shapes)]
    together = list(decode(backend, prompts, config, sampling, lanes))
    for chunk, (candidates, (tokens, count)) in enumerate(zip(together, shapes, strict=True)):
        [alone] = decode(backend, [prompt(chunk, tokens, max(count - 1, 1))], config, sampling, 1)
        assert len(candidates) == count
        for candidate, expected in zip(candidates, alone, strict=False):
            assert (candidate.codes, candidate.stopped) == (expected.codes, expected.stopped)
            np.testing.assert_allclose(candidate.latents, expected.latents, rtol=0, atol=ROUNDING)
            np.testing.assert_allclose(candidate.hidden, expected.hidden, rtol=0, atol=ROUNDING)


@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(1, 25), min_size=1, max_size=4), lanes=st.integers(1, 4), latents=st.booleans())
def test_streamed_rows_join_to_the_candidate(backend, config, prompt, lengths, lanes, latents):
    pool = make_lanes(backend, config, lanes, 30, lanes)
    made = [
        pool.submit(prompt(chunk, length, 1).bound(backend, config, Sampling(max_codes=30), latents))
        for chunk, length in enumerate(lengths)
    ]
    for decoding in made:
        rows = [row for rows in decoding.rows() for row in rows]
        [candidate] = decoding.all()
        expected = candidate.latents if latents else candidate.hidden
        if rows:
            np.testing.assert_array_equal(np.stack(rows), expected[: len(rows)])
    assert not pool.active
    assert len(pool.free_prefixes) == lanes


def test_a_thread_that_needs_several_rows_sleeps_until_they_are_there(backend, config, prompt):
    pool = make_lanes(backend, config, 1, 30, 1)
    decoding = pool.submit(prompt(0, 25, 1).bound(backend, config, Sampling(max_codes=30), False))
    wanted, pieces = iter((8, 10, 19, 1000)), []
    for rows in decoding.rows(needed=lambda: next(wanted)):
        pieces.append(rows)
    [candidate] = decoding.all()
    assert [len(rows) for rows in pieces] == [8, 2, 9]
    np.testing.assert_array_equal(np.concatenate(pieces), candidate.hidden[:19])


# The parts of a candidate


def test_a_candidate_has_a_hidden_state_for_every_code_and_the_stop_code(sample_one_text, config):
    candidates = sample_one_text(6, 3)
    assert any(candidate.stopped for candidate in candidates)
    for candidate in candidates:
        assert len(candidate.hidden) == len(candidate.codes) + candidate.stopped
        assert len(candidate.latents) == trimmed_length(candidate.padded_codes, config)
    limited = sample_one_text(4, 4, max_codes=5)
    assert max(len(candidate.codes) for candidate in limited) == 5
    assert all(candidate.stopped == (len(candidate.codes) < 5) for candidate in limited)


def test_every_position_of_the_decoder_can_be_used(backend, config, ending_after):
    limit = config.max_mel_tokens - 1
    [[candidate]] = decode(backend, [ending_after(limit + 1)], config, Sampling(max_codes=limit), lanes=1)
    assert len(candidate.codes) == limit
    assert not candidate.stopped


def test_the_start_code_is_never_sampled_however_probable(backend, config, prompt):
    def favour_start(logits: np.ndarray) -> np.ndarray:
        changed = logits.copy()
        changed[..., config.start_mel_token] = 1000
        return changed

    favouring = RecordingBackend(backend, change_logits=favour_start)
    candidates = [
        one
        for row in decode(
            favouring, [prompt(chunk, 5, 3) for chunk in range(2)], config, Sampling(max_codes=8), lanes=2
        )
        for one in row
    ]
    assert all(candidate.codes for candidate in candidates)
    assert not any(config.start_mel_token in candidate.codes for candidate in candidates)


def test_logits_that_are_not_finite_are_refused(backend, config, prompt):
    broken = RecordingBackend(backend, change_logits=lambda logits: logits * np.nan)
    assert_refused(
        "the decoder returned NaN or infinite logits",
        lambda: next(decode(broken, [prompt(0, 5, 1)], config, Sampling(max_codes=8))),
    )


def test_a_request_that_fails_ends_no_other_on_the_same_lanes(backend, config, prompt):
    sampling = Sampling(max_codes=12)
    [[alone]] = decode(backend, [prompt(1, 9, 1)], config, sampling, 2)
    pool = make_lanes(backend, config, 2, sampling.max_codes, 2)
    damaged = replace(prompt(0, 7, 1), conditioning=np.full((1, config.model_dim), np.nan, np.float32))
    failing, sound = (pool.submit(one.bound(backend, config, sampling)) for one in (damaged, prompt(1, 9, 1)))
    [candidate] = sound.all()
    assert candidate.codes == alone.codes
    assert np.abs(candidate.hidden - alone.hidden).max() <= ROUNDING
    assert_refused("voice's latents hold NaN", failing.all)
    assert len(pool.free_prefixes) == 2


# The amount of work, and its order


@pytest.mark.parametrize("prefixes", [1, 2, 5])
def test_each_prefix_is_computed_once_however_few_the_decoder_stores(backend, config, prompt, prefixes):
    def prompts() -> list[ChunkPrompt]:
        return [prompt(chunk, 5 + chunk, 3) for chunk in range(5)]

    limited, sampling = RecordingBackend(backend, prefixes), Sampling(max_codes=12)
    candidates = list(decode(limited, prompts(), config, sampling, lanes=4))
    assert len(limited.prefills) == 5
    assert set(limited.prefills) <= set(range(prefixes))
    expected = list(decode(backend, prompts(), config, sampling, lanes=1))
    assert [[one.codes for one in row] for row in candidates] == [[one.codes for one in row] for row in expected]


def test_a_lane_is_refilled_while_the_others_continue(backend, config, ending_after):
    """A long candidate and four short ones on two lanes: the short ones follow each other beside the long one."""
    recording, lengths = RecordingBackend(backend), [12, 3, 3, 3, 3]
    prompts = [ending_after(length) for length in lengths]
    rows = list(decode(recording, prompts, config, Sampling(max_codes=20), lanes=2, rewrite_tail=False))
    assert [len(candidate.codes) for [candidate] in rows] == lengths
    assert recording.steps == [(2, 1)] * 12


def test_idle_lanes_at_either_end_are_not_computed(backend, config, ending_after):
    recording = RecordingBackend(backend)
    list(decode(recording, [ending_after(2, 9, 4)], config, Sampling(max_codes=20), lanes=3, rewrite_tail=False))
    assert [lanes for lanes, _ in recording.steps] == [3] * 2 + [2] * 2 + [1] * 5


def test_nothing_is_decoded_before_it_is_requested_or_after_closing(backend, config, ending_after):
    recording = RecordingBackend(backend)
    prompts = [ending_after(4) for _ in range(3)]
    candidates = decode(recording, prompts, config, Sampling(max_codes=20), lanes=1, rewrite_tail=False)
    assert (recording.prefills, recording.steps) == ([], [])
    next(candidates)
    assert (len(recording.prefills), len(recording.steps)) == (1, 4), "the first candidate only"
    next(candidates)
    assert (len(recording.prefills), len(recording.steps)) == (2, 8)
    candidates.close()
    assert (len(recording.prefills), len(recording.steps)) == (2, 8)


def test_progress_is_reported_after_every_step_so_that_it_can_stop_the_work(backend, config, prompt):
    recording = RecordingBackend(backend)

    def interrupt(codes: int, finished: int) -> None:
        if codes == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(decode(recording, [prompt(0, 6, 1)], config, Sampling(max_codes=20), lanes=1, progress=interrupt))
    assert len(recording.steps) == 2  # the first code comes from the prefix


def test_the_decoder_is_freed_with_the_last_result(backend, config, prompt, monkeypatch):
    """Not when garbage is next collected: its caches may take a GB, and on CUDA its graphs go to the next text."""
    made = []

    def decoder(self, *arguments: int):
        made.append(weakref.ref(found := make(self, *arguments)))
        return found

    make = TorchBackend.decoder
    monkeypatch.setattr(TorchBackend, "decoder", decoder)
    gc.disable()
    try:
        list(decode(backend, [prompt(0, 6, 2)], config, Sampling(max_codes=5), lanes=2))
        unfinished = decode(backend, [prompt(0, 6, 2)], config, Sampling(max_codes=5), lanes=2)
        next(unfinished)
        unfinished.close()
        del unfinished
        assert [one() for one in made] == [None, None]
    finally:
        gc.enable()
