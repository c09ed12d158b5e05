"""Test that lanes sample upstream's codes, and that decoder steps compute the latents of upstream's second pass."""

from collections.abc import Iterable

import numpy as np
import pytest

from ane.backends.torch.backend import TorchBackend
from ane.bundles import Bundle
from ane.models.tortoise.decoding import pad_codes, trimmed_length
from ane.models.tortoise.sampling import CodeSampler, Sampling
from tests.decoding import ChunkPrompt, decode
from tests.parity.conftest import sampler_of_upstream


@pytest.fixture(scope="module")
def model(golden_model) -> Bundle:
    return golden_model


@pytest.fixture(scope="module")
def backend(model) -> TorchBackend:
    return TorchBackend(model, device="cpu", precision="fp32")


def replay(codes: Iterable[int]) -> CodeSampler:
    """Samples these codes in order; each must be among those that can be sampled."""
    remaining = iter(codes)

    def sample(ids: np.ndarray, probabilities: np.ndarray) -> int:
        code = int(next(remaining))
        assert code in ids
        return code

    return sample


@pytest.mark.parametrize(
    ("name", "penalty", "stops"), [("greedy_no_cache_rp1", 1.0, False), ("greedy_no_cache_rp2", 2.0, True)]
)
def test_greedy_codes_are_upstreams(golden_stage, model, backend, name, penalty, stops):
    stage, config = golden_stage("autoregressive"), model.config("autoregressive")
    expected = stage[name][0]

    def greedy(ids: np.ndarray, probabilities: np.ndarray) -> int:
        allowed = np.ones(len(ids)) if stops else ids != config.stop_mel_token
        return int(ids[np.argmax(probabilities * allowed)])

    sampling = Sampling(
        temperature=1.0, repetition_penalty=penalty, top_k=config.number_mel_codes, top_p=1.0, max_codes=len(expected)
    )
    prompt = ChunkPrompt(stage["cond_latent"], stage["text_ids"][0], [greedy])
    [[candidate]] = decode(backend, [prompt], config, sampling)
    codes = candidate.codes + [config.stop_mel_token] * candidate.stopped
    np.testing.assert_array_equal(codes, expected[: len(codes)])
    assert candidate.stopped or len(codes) == len(expected)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_steps_compute_upstreams_latents_on_any_number_of_lanes(
    golden_stage, model, backend, assert_close, tolerance, lanes
):
    """In upstream too (single_pass), the states of decoding and seven more equal the second pass."""
    stage = golden_stage("single_pass")
    allowed = tolerance("single_pass", "second_pass_latents")
    prompt = ChunkPrompt(stage["cond_latent"], stage["text_ids"][0], [replay(stage["codes"][0]) for _ in range(3)])
    [candidates] = decode(
        backend, [prompt], model.config("autoregressive"), Sampling(max_codes=stage["codes_fixed"].shape[1]), lanes
    )
    for candidate in candidates:
        assert candidate.stopped
        np.testing.assert_array_equal(candidate.padded_codes, stage["codes_fixed"][0])
        assert_close(candidate.hidden, stage["decode_states"][0], allowed, "decode_states")
        assert len(candidate.latents) == stage["trimmed_length"]
        assert_close(candidate.latents, stage["second_pass_latents"][0, : len(candidate.latents)], allowed, "latents")


def test_with_upstreams_random_numbers_all_candidates_are_upstreams(golden_stage, model, backend, assert_parity):
    stage, config = golden_stage("end_to_end"), model.config("autoregressive")
    batches = [f"batch{index}" for index in range(len([name for name in stage if name.endswith(".codes")]))]
    rows = [(batch, row) for batch in batches for row in range(len(stage[f"{batch}.codes"]))]
    samplers = [
        sampler_of_upstream(*(stage[f"{batch}.multinomial_{part}"][:, row] for part in ("ids", "exponential")))
        for batch, row in rows
    ]
    [candidates] = decode(
        backend,
        [ChunkPrompt(stage["ar_latent"], stage["text_ids"][0], samplers)],
        config,
        Sampling(max_codes=stage["codes_fixed"].shape[1]),
        lanes=3,
    )
    for (batch, row), candidate, whole in zip(rows, candidates, stage["codes_fixed"], strict=True):
        codes = candidate.codes + [config.stop_mel_token] * candidate.stopped
        np.testing.assert_array_equal(codes, stage[f"{batch}.codes"][row, : len(codes)])
        np.testing.assert_array_equal(candidate.padded_codes, whole)
    for rank, index in enumerate(stage["order"]):
        assert_parity(candidates[index].latents[None], "end_to_end", f"cand{rank}.latents")


def test_codes_are_padded_and_trimmed_as_upstream_does(golden_stage, model):
    stage, config = golden_stage("postprocess"), model.config("autoregressive")
    for sampled, expected, length in zip(stage["codes_in"], stage["codes_fixed"], stage["latent_length"], strict=True):
        stops = np.flatnonzero(sampled == config.stop_mel_token)
        codes = pad_codes(sampled[: stops[0]] if len(stops) else sampled, len(sampled), config)
        np.testing.assert_array_equal(codes, expected)
        assert trimmed_length(codes, config) == length
