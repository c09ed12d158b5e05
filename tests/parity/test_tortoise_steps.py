"""Compare steps of Tortoise and whole runs with upstream: text, sampling, decoding, ranking, diffusion, audio."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise import pipeline
from ane.models.tortoise.decoding import best_candidates, pad_codes, score_candidates, trimmed_length
from ane.models.tortoise.diffusion import Diffusion, denoising_steps, frame_count, sample, spectrograms
from ane.models.tortoise.networks.univnet import SILENT_FRAMES
from ane.models.tortoise.sampling import (
    CodeSampler,
    Sampling,
    distribution,
    process_scores,
    repetition_penalty,
    top_k,
    top_p,
    typical,
)
from ane.models.tortoise.schedule import Schedule
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from ane.text import Tokenizer
from ane.voices import Voice
from tests.decoding import ChunkPrompt, decode
from tests.parity.conftest import RecordedNoise, sampler_of_upstream


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
        sample = sampler_of_upstream(stage["multinomial_ids"][draw], stage["multinomial_exponential"][draw])
        for raw, history, code in zip(stage["raw"], stage["history"], chosen, strict=True):
            assert sample(*distribution(raw, history, UPSTREAM)) == code


@pytest.fixture(scope="module")
def backend(model) -> TorchBackend:
    return TorchBackend(model, device="cpu", precision="fp32")


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


class UpstreamRandomness:
    """``Randomness`` with the numbers of a golden run."""

    def __init__(self, stage: dict[str, np.ndarray]):
        self.stage = stage
        self.seed = 0

    def candidate(self, chunk: int, candidate: int):
        batches = [
            name.removesuffix("multinomial_ids") for name in sorted(self.stage) if name.endswith("multinomial_ids")
        ]
        rows = [(batch, row) for batch in batches for row in range(self.stage[f"{batch}multinomial_ids"].shape[1])]
        batch, row = rows[candidate]
        return [self.stage[f"{batch}multinomial_{part}"][:, row] for part in ("ids", "exponential")]

    def diffusion(self, chunk: int, rank: int):
        return RecordedNoise([self.stage[f"cand{rank}.x_T"], *self.stage[f"cand{rank}.noise"]])

    def vocoder(self, chunk: int, rank: int):
        if f"cand{rank}.z" not in self.stage:
            return None  # HiFi-GAN draws no noise
        noise = self.stage[f"cand{rank}.z"][0].T  # one row per frame, drawn when the frame arrives
        return RecordedNoise([noise[:SILENT_FRAMES], noise[SILENT_FRAMES:]])


@pytest.fixture
def speak(model, golden_config, golden_stage, monkeypatch):
    """``speak(stage, voice, **settings)``: speech from the text and random numbers of a golden run."""
    text = json.loads(golden_config.read_text())["_generation"]["e2e_text"]
    monkeypatch.setattr(pipeline, "InverseCdfSampler", lambda numbers: sampler_of_upstream(*numbers))

    def run(name: str, voice: tuple[np.ndarray, np.ndarray], **settings):
        monkeypatch.setattr(pipeline, "Randomness", lambda seed: UpstreamRandomness(golden_stage(name)))
        return TortoiseSpeaker(model, TorchBackend(model, "cpu", "fp32")).speak(
            text, Voice(*voice, name="golden"), settings=TortoiseSettings(normaliser="upstream", split=None, **settings)
        )

    return run


def test_the_path_with_diffusion_gives_upstreams_audio(speak, golden_stage, assert_parity):
    stage = golden_stage("end_to_end")
    ranks = [rank for rank in range(len(stage["order"])) if f"cand{rank}.wave" in stage]
    steps = len(stage["cand0.noise"])
    candidates, codes = stage["codes_fixed"].shape
    speech = speak(
        "end_to_end",
        (stage["ar_latent"], stage["diffusion_latent"]),
        candidates=candidates,
        best=len(ranks),
        diffusion=Diffusion(steps),
        sampling=Sampling(max_codes=codes),
    )
    for rank, audio in zip(ranks, [speech.audio, *speech.alternatives], strict=True):
        assert_parity(audio[None, None], "end_to_end", f"cand{rank}.wave")


def test_the_path_without_diffusion_gives_upstreams_audio(speak, model, golden_stage, assert_parity):
    stage = golden_stage("end_to_end_fast")
    silent = np.zeros((1, model.widths[1]), np.float32)  # HiFi-GAN does not use the diffusion latent
    speech = speak("end_to_end_fast", (stage["speaker_latent"], silent), candidates=1, diffusion=None)
    assert_parity(speech.audio[None, None], "end_to_end_fast", "wave")
