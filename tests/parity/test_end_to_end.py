"""Test that the audio made from a text is upstream's, if the random numbers are upstream's."""

import json

import numpy as np
import pytest

from ane.backends.torch.backend import TorchBackend
from ane.bundles import Bundle
from ane.models.tortoise import pipeline
from ane.models.tortoise.diffusion import Diffusion
from ane.models.tortoise.networks.univnet import SILENT_FRAMES
from ane.models.tortoise.sampling import Sampling
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from ane.voices import Voice
from tests.parity.conftest import RecordedNoise, sampler_of_upstream


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
        noise = self.stage[f"cand{rank}.z"][0].T  # one row per frame, drawn when the frame arrives
        return RecordedNoise([noise[:SILENT_FRAMES], noise[SILENT_FRAMES:]])


@pytest.fixture
def model(golden_model) -> Bundle:
    return golden_model


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
