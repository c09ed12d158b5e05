"""The statistics and the card of the quality benchmark, on figures with known results."""


import numpy as np
import pytest

from ane.models.tortoise.settings import SAMPLE_RATE
from benchmarks.listening import Wave
from benchmarks.quality import (
    ScoredSpeech,
    check_thresholds,
    diffusing_preset,
    interval,
    quality_row,
    ranking_gain,
    summary,
)


def scored(errors: int, *, seconds: float = 2.0, f0: float = 100.0, stopped: bool = True) -> ScoredSpeech:
    wave = Wave(seconds, f0, -23.0, 0.1, 0, True)
    return ScoredSpeech("a b c d", "a b c d", errors, 4, errors == 0, wave, 5.0, stopped, 3.0, 0.9)


def test_word_error_rate_is_over_all_words_and_lies_in_its_interval():
    teacher = [scored(0)] * 10
    result = summary([scored(errors) for errors in (0, 0, 0, 0, 0, 1, 1, 2, 4, 0)], teacher)
    assert result["wer"] == pytest.approx(8 / 40)
    low, high = result["interval"]
    assert 0 < low < 0.2 < high < 0.5
    assert (result["forced"], result["choices"]) == (6, 10)
    assert interval(np.zeros(9), np.ones(9)) == (0.0, 0.0)


def test_lengths_and_pitch_are_compared_with_the_teachers():
    result = summary([scored(0, seconds=3.0, f0=110), scored(0, f0=110, stopped=False)], [scored(0), scored(0)])
    assert result["longest"] == 1.5
    assert result["f0_off"] == pytest.approx(0.1)
    assert result["stopped"] == 0.5


def test_the_gain_of_ranking_is_what_a_random_candidate_loses():
    errors = np.array([[[0, 2, 4, 2], [2, 3, 3, 0]], [[1, 1, 1, 1], [1, 1, 1, 1]]], dtype=float)
    result = ranking_gain(errors, np.array([5.0, 5.0]), np.array([[0, 1], [2, 3]]))
    assert result["random"] == pytest.approx(0.3)
    assert result["clvp"] == pytest.approx(0.25)
    assert result["gain"] == pytest.approx(0.05)
    assert result["oracle"] == pytest.approx(0.1)
    assert result["gain_low"] <= 0.05 <= result["gain_high"]


@pytest.fixture
def results():
    teacher = summary([scored(0)] * 4, [scored(0)] * 4)
    good = summary([scored(0)] * 4, [scored(0)] * 4)
    ranking = {"random": 0.2, "clvp": 0.1, "gain": 0.1, "gain_low": 0.0, "gain_high": 0.2, "oracle": 0.0}
    return {"rms": {"teacher": teacher, "fast": good, "quality": dict(good), "ranking": ranking}}


@pytest.mark.parametrize(("change", "broken"), [
    ({}, None), ({"wer": 0.16}, "quality: word error rate"), ({"stopped": 0.99}, "ends with a stop code"),
    ({"longest": 1.6}, "longest"), ({"f0_off": -0.2}, "pitch"), ({"silent_end": 0.31}, "silence"),
    ({"clicks": 1}, "clicks"), ({"finite": False}, "NaN"), ({"dnsmos": 2.8}, "DNSMOS")])
def test_a_broken_promise_is_named(results, change, broken):
    results["rms"]["quality"] |= change
    missed = [claim for claim, _, _, kept in check_thresholds(results) if not kept]
    assert len(missed) == (broken is not None)
    assert all(broken in claim for claim in missed)


def test_a_row_states_how_far_it_is_above_the_teacher(results):
    results["rms"]["fast"]["wer"] = 0.5
    row = quality_row("rms", "fast", results["rms"]["fast"], results["rms"]["teacher"])
    assert (row.value.median, row.figures["above_teacher"]) == (0.5, 0.5)


def test_the_quality_path_has_diffusion_whatever_the_default():
    assert diffusing_preset({"preset": "fastest"}) == "1x10_guided"
    assert diffusing_preset({"preset": "1x10"}) == "1x10"


def test_a_click_in_speech_is_counted_and_a_loud_voice_is_not():
    time = np.arange(SAMPLE_RATE) / SAMPLE_RATE
    voice = 0.3 * np.sin(2 * np.pi * 150 * time).astype(np.float32)
    assert Wave.of(3 * voice, SAMPLE_RATE).clicks == 0
    clicked = voice * np.linspace(0, 0.05, SAMPLE_RATE, dtype=np.float32)
    clicked[12000:12001] = 0.9
    assert Wave.of(clicked, SAMPLE_RATE).clicks >= 1
