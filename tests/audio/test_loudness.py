"""Loudness against the signals of EBU Tech 3341, whose loudness is known, and pyloudnorm; and the limiter."""

import math

import numpy as np
import pytest

from ane.audio.loudness import LoudnessMeter, PeakLimiter, sliding_minimum

MONO = -3.01        # LU: the signals of Tech 3341 are stereo, in which the same level is twice the power


def sine(frequency: float, level: float, seconds: float, rate: int, phase: float = 0.0) -> np.ndarray:
    """A sine whose peak is ``level`` dBFS."""
    time = np.arange(round(seconds * rate)) / rate
    return (10 ** (level / 20) * np.sin(2 * np.pi * frequency * time + phase)).astype(np.float32)


def measured(audio: np.ndarray, rate: int, piece: int = 10_000) -> LoudnessMeter:
    meter = LoudnessMeter(rate)
    for start in range(0, len(audio), piece):
        meter.feed(audio[start:start + piece])
    return meter


@pytest.mark.parametrize("rate", [22050, 24000, 48000])
@pytest.mark.parametrize("level", [0.0, -20.0, -36.0])
def test_a_sine_of_997_hertz_has_the_loudness_that_the_standard_states(rate, level):
    assert measured(sine(997, level, 5, rate), rate).loudness == pytest.approx(level + MONO, abs=0.05)


@pytest.mark.parametrize(("levels", "expected"), [       # Tech 3341, cases 1 to 5: (dBFS, seconds)
    ([(-23, 20)], -23), ([(-33, 20)], -33), ([(-36, 10), (-23, 60), (-36, 10)], -23),
    ([(-72, 10), (-36, 10), (-23, 60), (-36, 10), (-72, 10)], -23), ([(-26, 20), (-20, 20.1), (-26, 20)], -23)])
def test_the_gates_leave_out_what_is_quiet(levels, expected):
    audio = np.concatenate([sine(1000, level, seconds, 24000) for level, seconds in levels])
    assert measured(audio, 24000).loudness == pytest.approx(expected + MONO, abs=0.1)


@pytest.mark.parametrize(("divisor", "degrees", "amplitude", "expected"), [     # Tech 3341, cases 15 to 19
    (4, 0, 0.5, -6), (4, 45, 0.5, -6), (6, 60, 0.5, -6), (8, 67.5, 0.5, -6), (4, 45, 1.41, 3)])
def test_the_true_peak_lies_between_samples(divisor, degrees, amplitude, expected):
    audio = sine(48000 / divisor, 20 * math.log10(amplitude), 1, 48000, math.radians(degrees))
    audio *= np.minimum(1, np.minimum(np.arange(48000), np.arange(48000)[::-1]) / 480).astype(np.float32)     # fades
    assert expected - 0.4 <= measured(audio, 48000).true_peak <= expected + 0.2


def test_the_division_into_pieces_changes_nothing():
    audio = np.random.default_rng(0).normal(0, 0.1, 100_000).astype(np.float32)
    meters = [measured(np.append(audio, np.zeros(100, np.float32)), 24000, piece) for piece in (777, 200_000)]
    assert meters[0].loudness == pytest.approx(meters[1].loudness, abs=1e-9)
    assert meters[0].peak == pytest.approx(meters[1].peak, abs=1e-6)


def test_pyloudnorm_measures_the_same():
    pyloudnorm = pytest.importorskip("pyloudnorm", reason="pip install pyloudnorm")
    rng = np.random.default_rng(1)
    audio = (rng.normal(0, 0.1, 240_000) * np.repeat(rng.uniform(0, 1, 20), 12_000)).astype(np.float32)
    expected = pyloudnorm.Meter(48000).integrated_loudness(audio)
    assert measured(audio, 48000).loudness == pytest.approx(expected, abs=0.1)


def test_silence_has_no_loudness():
    assert measured(np.zeros(48_000, np.float32), 24000).loudness == -math.inf
    assert measured(np.zeros(0, np.float32), 24000).true_peak == -math.inf


def limited(audio: np.ndarray, gain: float, ceiling: float, piece: int = 5_000) -> np.ndarray:
    limiter = PeakLimiter(24000, gain, ceiling)
    pieces = [limiter.feed(audio[start:start + piece]) for start in range(0, len(audio), piece)]
    return np.concatenate([*pieces, limiter.finish()])


def test_the_limiter_holds_the_true_peak_and_leaves_the_rest_alone():
    rng = np.random.default_rng(2)
    audio = (rng.normal(0, 0.05, 120_000)).astype(np.float32)
    audio[50_000:50_400] *= 12
    result = limited(audio, 2.0, 0.7)
    assert len(result) == len(audio)
    assert measured(result, 24000).peak <= 0.7 * 10 ** (0.1 / 20)
    assert np.abs(audio * 2).max() > 1.0
    np.testing.assert_array_equal(result[:48_000], audio[:48_000] * np.float32(2))
    np.testing.assert_array_equal(result[53_000:], audio[53_000:] * np.float32(2))


def test_the_limiter_gives_the_same_for_any_pieces():
    audio = np.random.default_rng(3).normal(0, 0.3, 60_000).astype(np.float32)
    np.testing.assert_allclose(limited(audio, 1.5, 0.5, 331), limited(audio, 1.5, 0.5, 60_000), atol=1e-6)
    assert len(limited(audio[:100], 1.0, 0.5)) == 100


def test_a_sliding_minimum_is_the_minimum_of_neighbours():
    values = np.random.default_rng(4).random(50)
    for width in (1, 3, 7, 50):
        expected = [values[start:start + width].min() for start in range(50 - width + 1)]
        np.testing.assert_array_equal(sliding_minimum(values, width), expected)
