"""The comparison of samplers: its cases, its distances and its denoiser that predicts epsilon."""

import numpy as np
import pytest

from ane.backends.denoising import Denoiser
from ane.models.tortoise.diffusion import MELS, Diffusion, sample
from benchmarks.listening import log_spectral_distance
from benchmarks.samplers import (
    GUIDED,
    EpsilonDenoiser,
    default,
    flow,
    reference,
    sampler_row,
    scale,
    summary,
    systems,
)


def test_cases_have_unique_names_and_include_those_that_others_are_compared_with():
    names = [system.name for system in systems()]
    assert len(set(names)) == len(names)
    assert default() in systems()
    for guidance in GUIDED:
        assert {reference(guidance), scale(guidance), flow(guidance)} <= set(systems())


def test_the_distance_is_in_decibels():
    mel = np.random.default_rng(0).standard_normal((MELS, 7)).astype(np.float32)
    assert log_spectral_distance(mel, mel) == 0
    assert log_spectral_distance(mel, mel + np.float32(np.log(10))) == pytest.approx(20, rel=1e-5)


@pytest.mark.parametrize("guidance", GUIDED)
def test_predicting_epsilon_instead_of_x0_changes_nothing_except_by_its_error(guidance):
    class Tanh(Denoiser):
        def __call__(self, x: list[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
            branches = [np.concatenate((np.tanh(x[0] + shift), -np.ones_like(x[0])), axis=1) for shift in (0.0, 0.1)]
            return [np.concatenate(branches[:1 + guided])]

    predict_x0 = Tanh()

    def drawn(denoiser, prediction: str) -> np.ndarray:
        diffusion = Diffusion(10, "dpm++2m", guidance, spacing="logsnr")
        return sample(denoiser, 5, diffusion, np.random.default_rng(1), prediction=prediction)

    plain = drawn(predict_x0, "x0")
    np.testing.assert_allclose(drawn(EpsilonDenoiser(predict_x0, 0.0), "epsilon"), plain, atol=1e-3)
    assert np.abs(drawn(EpsilonDenoiser(predict_x0, 0.02), "epsilon") - plain).max() > 1e-3


def test_word_errors_are_compared_with_the_default_sentence_by_sentence():
    wanted = next(system for system in systems() if system.transcribed and system not in (default(), reference(None)))
    seen = {"from_p200": 1.0, "from_flow": 0.5, "from_teacher": 6.0, "cpu_seconds_per_second": 0.1}
    sentences = [{default().name: {**seen, "errors": 2, "words": 10}, wanted.name: {**seen, "errors": 1, "words": 10}},
                 {default().name: {"errors": 0, "words": 10}, wanted.name: {"errors": 0, "words": 10}}]
    found = summary(wanted, sentences)
    assert (found["wer"], found["more"]) == (pytest.approx(0.05), pytest.approx(-0.05))
    assert found["more_interval"][1] <= 0
    assert (found["from_p200"], found["errors"]) == (1.0, [1, 0])
    assert sampler_row(wanted, found).figures["wer"] == pytest.approx(0.05)
