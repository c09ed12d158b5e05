"""Compare Tortoise's steps with upstream's: text, sampling, ranking, diffusion."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise.decoding import best_candidates, score_candidates
from ane.models.tortoise.diffusion import Diffusion, denoising_steps, frame_count, sample, spectrograms
from ane.models.tortoise.sampling import (
    Sampling,
    distribution,
    process_scores,
    repetition_penalty,
    top_k,
    top_p,
    typical,
)
from ane.models.tortoise.schedule import Schedule
from ane.text import Tokenizer
from tests.parity.conftest import RecordedNoise


@pytest.fixture(scope="module")
def vectors(golden: Path) -> dict[str, list[dict]]:
    return json.loads((golden / "stages" / "text.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer_json(golden: Path) -> str:
    return (golden / "tokenizer.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("normaliser", "text", "ids"), [("upstream", "english_cleaners", "ids"), ("basic", "basic_cleaners", "basic_ids")]
)
def test_cleaned_text_and_ids_are_upstreams(vectors, tokenizer_json, normaliser, text, ids):
    tokenizer = Tokenizer(tokenizer_json, normaliser)
    assert len(vectors["tokenize"]) >= 100
    for vector in vectors["tokenize"]:
        cleaned = tokenizer.normalise(vector["text"])
        assert cleaned == vector[text], vector["text"]
        assert tokenizer.encode_normalised(cleaned) == vector[ids], vector["text"]


def test_decoded_text_is_upstreams(vectors, tokenizer_json):
    tokenizer = Tokenizer(tokenizer_json)
    for vector in vectors["tokenize"]:
        assert tokenizer.decode(vector["ids"]) == vector["decoded"], vector["text"]


UPSTREAM = Sampling(temperature=0.8, repetition_penalty=2.0, top_k=50, top_p=0.8)
TYPICAL = Sampling(temperature=0.8, repetition_penalty=2.0, top_k=50, top_p=0.8, typical_mass=0.9)

PROCESSORS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "repetition_penalty": lambda scores, history: repetition_penalty(scores, history, 2.0),
    "temperature": lambda scores, history: scores / np.float32(0.8),
    "top_k": lambda scores, history: top_k(scores, 50),
    "top_p": lambda scores, history: top_p(scores, 0.8),
    "typical": lambda scores, history: typical(scores, 0.9),
    "chain": lambda scores, history: process_scores(scores, history, UPSTREAM),
    "chain_typical": lambda scores, history: process_scores(scores, history, TYPICAL),
}


def test_each_processor_and_the_chain_equal_transformers(golden_stage):
    """A golden set can omit single processors, but not the chain."""
    stage = golden_stage("logits")
    assert "chain" in stage
    for name in PROCESSORS.keys() & stage.keys():
        for raw, history, expected in zip(stage["raw"], stage["history"], stage[name], strict=True):
            np.testing.assert_array_equal(PROCESSORS[name](raw, history), expected, err_msg=name)


def test_with_upstreams_random_numbers_the_same_codes_are_sampled(golden_stage):
    stage = golden_stage("logits")
    for draw, chosen in enumerate(stage["multinomial_chosen"]):
        for row, (raw, history) in enumerate(zip(stage["raw"], stage["history"], strict=True)):
            ids, probabilities = distribution(raw, history, UPSTREAM)
            possible = stage["multinomial_ids"][draw, row] >= 0
            assert set(ids) == set(stage["multinomial_ids"][draw, row][possible])
            exponential = dict(
                zip(
                    stage["multinomial_ids"][draw, row][possible],
                    stage["multinomial_exponential"][draw, row][possible],
                    strict=True,
                )
            )
            assert ids[np.argmax(probabilities / [exponential[i] for i in ids])] == chosen[row]


@pytest.fixture(scope="module")
def backend(golden_model) -> TorchBackend:
    return TorchBackend(golden_model, "cpu", "fp32")


@pytest.mark.parametrize("length", ["", "_500"])
def test_clvp_scores(backend, golden_stage, assert_parity, length):
    stage = golden_stage("clvp")
    scores = score_candidates(backend, stage["text_ids"][0], stage[f"codes{length}"])
    assert_parity(scores, "clvp", f"scores{length}")
    assert best_candidates(scores, len(scores)) == list(np.argsort(-stage[f"scores{length}"], kind="stable"))


def test_the_candidates_of_a_complete_run_have_upstreams_order(backend, golden_stage, assert_parity):
    stage = golden_stage("end_to_end")
    scores = score_candidates(backend, stage["text_ids"][0], stage["codes_fixed"])
    assert_parity(scores, "end_to_end", "clvp_scores")
    assert best_candidates(scores, len(stage["order"])) == list(stage["order"])


# ten times the difference between float64 arithmetic and the stored outputs. The first steps suffer from cancellation
ARITHMETIC = 10 * 6e-5
COEFFICIENTS = (
    "betas",
    "alphas_cumprod",
    "posterior_mean_coef1",
    "posterior_mean_coef2",
    "posterior_log_variance_clipped",
    "sqrt_recip_alphas_cumprod",
    "sqrt_recipm1_alphas_cumprod",
)


def runs(stage: dict[str, np.ndarray]) -> list[str]:
    return sorted(name.removesuffix(".x_T") for name in stage if name.endswith(".x_T"))


def recorded_noise(stage: dict[str, np.ndarray], run: str) -> RecordedNoise:
    return RecordedNoise([stage[f"{run}.x_T"], *stage.get(f"{run}.noise", [])])


def test_schedules_are_upstreams_to_twelve_digits(golden_stage):
    stage = golden_stage("schedule")
    for steps in sorted({int(name.split(".")[0]) for name in stage if name.endswith(".timesteps")}):
        schedule = Schedule(steps)
        np.testing.assert_array_equal(schedule.timesteps, stage[f"{steps}.timesteps"])
        for name in COEFFICIENTS:
            np.testing.assert_allclose(getattr(schedule, name), stage[f"{steps}.{name}"], rtol=1e-12, err_msg=name)


def test_sampler_arithmetic_is_upstreams(golden_stage, assert_close):
    """With the stored model outputs, every step gives upstream's sample."""
    stage = golden_stage("sampler")
    for run in runs(stage):
        guided = f"{run}.model_out_uncond" in stage
        guidance = (1.5 if run == "p30" else 2.0) if guided else None
        diffusion = Diffusion(len(stage[f"{run}.timesteps"]), re.match(r"p|ddim", run).group(), guidance)
        rng = recorded_noise(stage, run)
        x = rng.standard_normal(stage[f"{run}.x_T"].shape, np.float32)
        previous_x0 = np.zeros_like(x)
        for number, step in enumerate(denoising_steps(Schedule(diffusion.steps), diffusion)):
            assert step.timestep == stage[f"{run}.timesteps"][number]
            branches = ("model_out", "model_out_uncond") if guided else ("model_out",)
            output = np.stack([stage[f"{run}.{branch}"][number] for branch in branches])
            noise = rng.standard_normal(x.shape, np.float32) if diffusion.sampler == "p" else np.zeros_like(x)
            x, previous_x0 = step.take(x, previous_x0, output, noise)
            assert_close(previous_x0[0], stage[f"{run}.pred_xstart"][number], ARITHMETIC, f"{run} x0 of step {number}")
            assert_close(x[0], stage[f"{run}.samples"][number], ARITHMETIC, f"{run} step {number}")


def test_complete_sampling_runs_are_upstreams(golden_stage, backend, tolerance, assert_close):
    stage = golden_stage("diffusion")
    for run in runs(stage):
        samples = stage[f"{run}.samples"]
        sampler = re.match(r"p|ddim", run).group()
        diffusion = Diffusion(len(samples), sampler, None if run.endswith("nocf") else 2.0)
        frames = frame_count(stage["latents"].shape[1])
        denoiser = backend.denoiser([stage["latents"]], stage["conditioning_latent"], [frames])
        [mel] = sample(denoiser, [frames], diffusion, [recorded_noise(stage, run)])
        assert_close(mel[0], samples[-1], tolerance("diffusion", f"{run}.samples"), run)
        [mel] = spectrograms(
            backend, [stage["latents"][0]], stage["conditioning_latent"], diffusion, [recorded_noise(stage, run)]
        )
        assert_close(mel, stage[f"{run}.mel"], tolerance("diffusion", f"{run}.mel"), f"{run}, denormalised")
