"""Test the measured loudness, the trimming of silence, and the speed of sound."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ane
from ane.audio.loudness import LoudnessMeter, PeakLimiter
from ane.audio.time_stretch import TimeStretcher, stretched
from ane.audio.trimming import FADE, FRAME, QUIET, RATE, Trimmer, trimmed
from ane.models.tortoise.settings import TortoiseSettings
from benchmarks.listening import Wave
from tests.refusals import assert_refused

MONO = -3.01  # difference in LU, because Tech 3341's signals are stereo, where the same level has twice the power


def sine(frequency: float, level: float, seconds: float, rate: int, phase: float = 0.0) -> np.ndarray:
    """A sine whose peak is ``level`` dBFS."""
    time = np.arange(round(seconds * rate)) / rate
    return (10 ** (level / 20) * np.sin(2 * np.pi * frequency * time + phase)).astype(np.float32)


def measured(audio: np.ndarray, rate: int, piece: int = 10_000) -> LoudnessMeter:
    meter = LoudnessMeter(rate)
    for start in range(0, len(audio), piece):
        meter.feed(audio[start : start + piece])
    return meter


@pytest.mark.parametrize("rate", [22050, 24000, 48000])
@pytest.mark.parametrize("level", [0.0, -20.0, -36.0])
def test_a_sine_of_997_hertz_has_the_loudness_that_the_standard_states(rate, level):
    assert measured(sine(997, level, 5, rate), rate).loudness == pytest.approx(level + MONO, abs=0.05)


@pytest.mark.parametrize(
    ("levels", "expected"),
    [  # EBU Tech 3341, cases 1 to 5: parts of the signal as (dBFS, seconds)
        ([(-23, 20)], -23),
        ([(-33, 20)], -33),
        ([(-36, 10), (-23, 60), (-36, 10)], -23),
        ([(-72, 10), (-36, 10), (-23, 60), (-36, 10), (-72, 10)], -23),
        ([(-26, 20), (-20, 20.1), (-26, 20)], -23),
    ],
)
def test_the_gates_leave_out_what_is_quiet(levels, expected):
    audio = np.concatenate([sine(1000, level, seconds, 24000) for level, seconds in levels])
    assert measured(audio, 24000).loudness == pytest.approx(expected + MONO, abs=0.1)


@pytest.mark.parametrize(
    ("divisor", "degrees", "amplitude", "expected"),
    [  # EBU Tech 3341, cases 15 to 19
        (4, 0, 0.5, -6),
        (4, 45, 0.5, -6),
        (6, 60, 0.5, -6),
        (8, 67.5, 0.5, -6),
        (4, 45, 1.41, 3),
    ],
)
def test_the_true_peak_lies_between_samples(divisor, degrees, amplitude, expected):
    audio = sine(48000 / divisor, 20 * math.log10(amplitude), 1, 48000, math.radians(degrees))
    audio *= np.minimum(1, np.minimum(np.arange(48000), np.arange(48000)[::-1]) / 480).astype(np.float32)  # fades
    assert expected - 0.4 <= measured(audio, 48000).true_peak <= expected + 0.2


def test_the_division_into_pieces_changes_nothing():
    audio = np.random.default_rng(0).normal(0, 0.1, 100_000).astype(np.float32)
    meters = [measured(np.append(audio, np.zeros(100, np.float32)), 24000, piece) for piece in (777, 200_000)]
    assert meters[0].loudness == pytest.approx(meters[1].loudness, abs=1e-9)
    assert meters[0].peak == pytest.approx(meters[1].peak, abs=1e-6)


def test_silence_has_no_loudness():
    assert measured(np.zeros(48_000, np.float32), 24000).loudness == -math.inf
    assert measured(np.zeros(0, np.float32), 24000).true_peak == -math.inf


def limited(audio: np.ndarray, gain: float, ceiling: float, piece: int = 5_000) -> np.ndarray:
    limiter = PeakLimiter(24000, gain, ceiling)
    pieces = [limiter.feed(audio[start : start + piece]) for start in range(0, len(audio), piece)]
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


# parts of a sound, as (samples, loudness): silent, barely silent, barely loud, loud
RUNS = st.lists(st.tuples(st.integers(1, 3000), st.sampled_from((0.0, 0.9 * QUIET, 1.2 * QUIET, 0.3))), max_size=8)
ENDS = st.tuples(st.floats(0.001, 0.1), st.floats(0.001, 0.1))
CUTS = st.lists(st.floats(0, 1), max_size=6)


def sound(runs: list[tuple[int, float]]) -> np.ndarray:
    """Concatenate runs of a loudness; each sample has a value of its own."""
    loudness = np.concatenate([np.full(count, level) for count, level in runs] or [np.empty(0)])
    values = np.random.default_rng(0).uniform(0.99, 1.01, len(loudness)) * np.where(np.arange(len(loudness)) % 2, 1, -1)
    return (loudness * values).astype(np.float32)


def loud_frames(audio: np.ndarray) -> np.ndarray:
    return np.array([(audio[at : at + FRAME] ** 2).mean() > QUIET**2 for at in range(0, len(audio), FRAME)], bool)


@given(RUNS, ENDS, CUTS)
def test_the_output_does_not_depend_on_the_pieces(runs, ends, cuts):
    audio = sound(runs)
    trimmer = Trimmer(*ends)
    pieces = [trimmer.feed(piece) for piece in np.split(audio, sorted(int(cut * len(audio)) for cut in cuts))]
    np.testing.assert_array_equal(np.concatenate((*pieces, trimmer.finish())), trimmed(audio, ends))


@given(RUNS, ENDS)
def test_sound_is_kept_with_the_given_silence_around_it(runs, ends):
    audio, (lead, tail) = sound(runs), (round(seconds * RATE) for seconds in ends)
    original = audio.copy()
    kept, loud = trimmed(audio, ends), np.flatnonzero(loud_frames(audio))
    np.testing.assert_array_equal(audio, original)
    if not len(loud):
        assert len(kept) == min(len(audio), lead)
        return
    first, last = loud[0] * FRAME, min((loud[-1] + 1) * FRAME, len(audio))
    start, end = max(0, first - lead), min(last + tail, len(audio))
    assert len(kept) == end - start
    np.testing.assert_array_equal(kept[first - start : last - start], audio[first:last])
    assert (np.abs(kept) <= np.abs(audio[start:end])).all()
    if start == 0 and end == len(audio):
        np.testing.assert_array_equal(kept, audio)


@given(RUNS, st.integers(60, 5000))
def test_sound_is_returned_at_once_and_only_silence_is_held_back(runs, size):
    audio, trimmer, passed, fed = sound(runs), Trimmer(0.05, 0.05), 0, 0
    loud = loud_frames(audio)
    for piece in np.split(audio, range(size, len(audio), size)):
        fed += len(piece)
        passed += len(trimmer.feed(piece))
        loud_so_far = np.flatnonzero(loud[: fed // FRAME])
        dropped = max(0, np.flatnonzero(loud)[0] * FRAME - round(0.05 * RATE)) if len(loud_so_far) else 0
        assert passed == (((loud_so_far[-1] + 1) * FRAME - dropped) if len(loud_so_far) else 0)


def test_a_cut_fades():
    hum = np.full(4800, 0.9 * QUIET, np.float32)
    kept = trimmed(np.concatenate((hum, np.full(2400, 0.3, np.float32), hum)), (0.05, 0.05))
    assert len(kept) == 2 * 1200 + 2400
    for edge in (kept[:FADE], kept[::-1][:FADE]):
        assert edge[0] < 0.01 * QUIET
        assert (np.diff(edge) > 0).all()


def test_silence_of_exactly_the_lead_is_kept_without_a_fade():
    hum, trimmer = np.full(2400, 0.9 * QUIET, np.float32), Trimmer(0.1, 0.1)
    pieces = trimmer.feed(hum), trimmer.feed(np.full(2400, 0.3, np.float32)), trimmer.finish()
    np.testing.assert_array_equal(np.concatenate(pieces)[:2400], hum)


@pytest.mark.parametrize("index", [0, 2400, 4799])
def test_nan_is_not_silence(index):
    audio = np.zeros(4800, np.float32)
    audio[index] = np.nan
    kept = trimmed(audio, (0.01, 0.01))
    assert np.isnan(kept).sum() == 1
    trimmer = Trimmer(0.01, 0.01)
    pieces = [trimmer.feed(piece) for piece in np.split(audio, 7 * np.arange(1, 680))]
    np.testing.assert_array_equal(np.concatenate((*pieces, trimmer.finish())), kept)


@pytest.mark.parametrize("ends", [(0, 0.1), (0.1, 0), (-1, 0.1)])
def test_at_least_a_sample_of_silence_is_kept(ends):
    with pytest.raises(ValueError, match="must be at least a sample"):
        Trimmer(*ends)


def test_the_embedded_voice_ends_within_three_tenths_of_a_second_of_its_last_sound(tmp_path, monkeypatch):
    """After this sentence its vocoder gives 0.4 s of silence."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    synthesizer = ane.load("demo")
    settings = TortoiseSettings.of("ultra_fast", synthesizer.model.settings)
    whole, speech = (
        synthesizer.speak("The company will announce the results next month.", "heart", seed=21, settings=chosen)
        for chosen in (replace(settings, silence=None), settings)
    )
    assert Wave.of(speech.audio, speech.sample_rate).silent_end <= 0.3
    np.testing.assert_array_equal(speech.audio, trimmed(whole.audio, settings.silence))


def speech_like() -> np.ndarray:
    """A gliding tone with harmonics, syllables of noise and pauses."""
    rng = np.random.default_rng(3)
    time = np.arange(3 * RATE) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 40 * np.sin(2 * np.pi * 0.7 * time)) / RATE
    voiced = sum(np.sin(n * phase) / n for n in range(1, 12))
    envelope = np.clip(np.sin(2 * np.pi * 3 * time), 0, 1)
    return (envelope * (0.2 * voiced + 0.02 * rng.standard_normal(len(time)))).astype(np.float32)


def faded_out(audio: np.ndarray) -> np.ndarray:
    fade = np.hanning(RATE // 5)[RATE // 10 :].astype(np.float32)
    return np.concatenate((audio[: -len(fade)], audio[-len(fade) :] * fade))


def pitch(audio: np.ndarray) -> float:
    size = 1 << 18
    spectrum = np.abs(np.fft.rfft(audio * np.hanning(len(audio)), size))
    return float(np.argmax(spectrum)) * RATE / size


SPEEDS = [0.5, 0.9, 1.3, 2.0]


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_duration_changes_and_the_pitch_does_not(speed):
    for hertz in (90.0, 220.0, 1000.0):
        audio = stretched(sine(hertz, -6, 2, RATE), speed, RATE)
        assert len(audio) == pytest.approx(2 * RATE / speed, rel=0.01)
        assert pitch(audio) == pytest.approx(hertz, rel=0.005)


@pytest.mark.parametrize("speed", SPEEDS)
def test_there_are_no_clicks_and_loudness_stays(speed):
    for audio in (faded_out(sine(90, -6, 2, RATE)), faded_out(sine(220, -6, 2, RATE)), speech_like()):
        rough = np.abs(np.diff(audio, 2)).max()
        assert np.abs(np.diff(stretched(audio, speed, RATE), 2)).max() < 1.5 * rough
    before, after = speech_like(), stretched(speech_like(), speed, RATE)
    assert np.sqrt(np.mean(after**2)) == pytest.approx(np.sqrt(np.mean(before**2)), rel=0.05)
    assert np.abs(after).max() <= np.abs(before).max() * 1.05


@pytest.mark.parametrize("speed", [0.6, 1.0, 1.5])
@pytest.mark.parametrize("size", [1, 37, 5000])
def test_pieces_join_to_what_the_whole_gives(speed, size):
    audio = speech_like()[: RATE // 4]
    stretcher = TimeStretcher(speed, RATE)
    pieces = [stretcher.feed(audio[start : start + size]) for start in range(0, len(audio), size)]
    joined = np.concatenate([*pieces, stretcher.finish()])
    np.testing.assert_array_equal(joined, stretched(audio, speed, RATE) if speed != 1 else audio)


@pytest.mark.parametrize("samples", [0, 1, 100, 1000])
@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_short_sound_and_silence_are_stretched_too(samples, speed):
    assert len(stretched(np.zeros(samples, np.float32), speed, RATE)) == round(samples / speed)


def test_sound_arrives_before_its_end_is_known():
    stretcher = TimeStretcher(1.25, RATE)
    assert len(stretcher.feed(sine(200, -6, 0.2, RATE))) > 0.1 * RATE


@pytest.mark.parametrize("speed", [0.49, 2.01, 0, -1, float("nan")])
def test_other_speeds_are_refused(speed):
    assert_refused(r"speed must be from 0\.5 to 2, got", TimeStretcher, speed, RATE)
