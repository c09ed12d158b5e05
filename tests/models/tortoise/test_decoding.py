"""Lanes are shared by chunks and texts: what is read of each is what would be read of it alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.torch.backend import TorchBackend
from ane.bundles import Model, open_model
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.decoding import LaneScheduler, Prompt, decode
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.sampling import Sampling, inverse_cdf_sampler

SHAPES = st.lists(st.tuples(st.integers(1, 25), st.integers(1, 4)), min_size=1, max_size=5)     # tokens, candidates


@pytest.fixture(scope="module")
def model() -> Model:
    return open_model()


@pytest.fixture(scope="module")
def backend(model) -> TorchBackend:
    return TorchBackend(model, "cpu", "fp32")


@pytest.fixture(scope="module")
def chunk(model):
    """``chunk(index, tokens, candidates)``: text of so many tokens, in a voice of its own."""
    config = model.config("autoregressive")

    def made(index: int, tokens: int, candidates: int) -> Prompt:
        rng = np.random.default_rng(index)
        voice = rng.standard_normal((1, config.model_dim), dtype=np.float32)
        ids = text_tokens(list(rng.integers(1, 30, tokens)), config)
        samplers = [inverse_cdf_sampler(Randomness(7).candidate(index, each)) for each in range(candidates)]
        return Prompt(voice, ids, samplers)

    return made


@settings(max_examples=15, deadline=None)
@given(shapes=SHAPES, lanes=st.integers(1, 6), limit=st.integers(1, 30))
def test_chunks_on_the_same_lanes_are_read_as_each_alone(model, backend, chunk, shapes, lanes, limit):
    config, sampling = model.config("autoregressive"), Sampling(max_codes=limit)

    def chunks() -> list[Prompt]:
        return [chunk(index, *shape) for index, shape in enumerate(shapes)]

    together = list(decode(backend, chunks(), config, sampling, lanes))
    for one, candidates, (_, count) in zip(chunks(), together, shapes, strict=True):
        [alone] = decode(backend, [one], config, sampling, 1)
        assert [each.codes for each in candidates] == [each.codes for each in alone]
        assert len(candidates) == count
        for each, expected in zip(candidates, alone, strict=True):
            np.testing.assert_allclose(each.latents, expected.latents, atol=1e-4)
            np.testing.assert_allclose(each.hidden, expected.hidden, atol=1e-4)


@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(1, 25), min_size=1, max_size=4), lanes=st.integers(1, 4), latents=st.booleans())
def test_what_is_heard_of_readings_while_they_are_read_is_all_of_them(model, backend, chunk, lengths, lanes, latents):
    config, sampling = model.config("autoregressive"), Sampling(max_codes=30)
    prompts = [chunk(index, length, 1) for index, length in enumerate(lengths)]
    packed = LaneScheduler(backend, prompts, config, sampling, lanes)
    together, packed.active_limit = packed.active_limit, 1
    for index in range(len(lengths)):
        heard = list(packed.stream(index, latents))
        packed.active_limit = together
        [candidate] = packed.candidates(index)
        np.testing.assert_array_equal(np.concatenate(heard), candidate.latents if latents else candidate.hidden)


class Counting:
    """A backend that counts what its decoder is asked for, and grants so many prefixes at a time."""

    def __init__(self, backend: TorchBackend, prefixes: int):
        self.backend, self.prefixes = backend, prefixes
        self.prefills, self.steps = [], []

    def __getattr__(self, name: str):
        return getattr(self.backend, name)

    def decoder(self, lanes: int, capacity: int, prefixes: int, longest: int):
        decoder = self.backend.decoder(lanes, capacity, min(prefixes, self.prefixes), longest)
        prefill, step = decoder.prefill, decoder.step

        def counted_prefill(prefix, index=0):
            self.prefills.append(index)
            return prefill(prefix, index)

        def counted_step(columns, *rest):
            self.steps.append(columns.shape[:2])
            return step(columns, *rest)

        decoder.prefill, decoder.step = counted_prefill, counted_step
        return decoder


@pytest.mark.parametrize("prefixes", [1, 2, 5])
def test_a_prefix_is_computed_once_however_many_places_there_are(model, backend, chunk, prefixes):
    counting = Counting(backend, prefixes)
    chunks = [chunk(index, 5 + index, 3) for index in range(5)]
    found = list(decode(counting, chunks, model.config("autoregressive"), Sampling(max_codes=12), lanes=4))
    assert len(counting.prefills) == 5
    assert set(counting.prefills) <= set(range(prefixes))
    plain = list(decode(backend, [chunk(index, 5 + index, 3) for index in range(5)], model.config("autoregressive"),
                        Sampling(max_codes=12), lanes=1))
    assert [[one.codes for one in row] for row in found] == [[one.codes for one in row] for row in plain]


def test_lanes_that_are_over_cost_nothing_and_none_waits_while_there_is_text(model, backend, chunk):
    counting, lanes = Counting(backend, 9), 4
    readings = [one for row in decode(counting, [chunk(index, 6, 1) for index in range(9)],
                                      model.config("autoregressive"), Sampling(max_codes=20), lanes, rewrite_tail=False)
                for one in row]
    fed = sum(len(one.codes) - (not one.stopped) for one in readings)
    assert sum(count for count, _ in counting.steps) < fed + (lanes - 1) * 20
    assert max(count for count, _ in counting.steps) == lanes


def test_closing_stops_within_a_step(model, backend, chunk):
    counting = Counting(backend, 9)
    found = decode(counting, [chunk(0, 5, 1), chunk(1, 5, 8)], model.config("autoregressive"), Sampling(max_codes=30),
                   lanes=1)
    next(found)
    before = len(counting.steps)
    found.close()
    assert len(counting.steps) == before
