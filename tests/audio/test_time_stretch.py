"""Sound at another speed: as long as it should be, at the same pitch, without clicks, however it arrives."""

import numpy as np
import pytest

from ane.audio.time_stretch import TimeStretcher, stretched
from ane.system.errors import UserError

RATE = 24000


def sine(hertz: float, seconds: float = 2.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


def speech_like() -> np.ndarray:
    """A gliding tone with harmonics, syllables of noise and pauses."""
    rng = np.random.default_rng(3)
    time = np.arange(3 * RATE) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 40 * np.sin(2 * np.pi * 0.7 * time)) / RATE
    voiced = sum(np.sin(n * phase) / n for n in range(1, 12))
    envelope = np.clip(np.sin(2 * np.pi * 3 * time), 0, 1)
    return (envelope * (0.2 * voiced + 0.02 * rng.standard_normal(len(time)))).astype(np.float32)


def faded_out(audio: np.ndarray) -> np.ndarray:
    fade = np.hanning(RATE // 5)[RATE // 10:].astype(np.float32)
    return np.concatenate((audio[:-len(fade)], audio[-len(fade):] * fade))


def pitch(audio: np.ndarray) -> float:
    size = 1 << 18
    spectrum = np.abs(np.fft.rfft(audio * np.hanning(len(audio)), size))
    return float(np.argmax(spectrum)) * RATE / size


SPEEDS = [0.5, 0.75, 0.9, 1.1, 1.3, 1.7, 2.0]


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_duration_changes_and_the_pitch_does_not(speed):
    for hertz in (90.0, 220.0, 1000.0):
        audio = stretched(sine(hertz), speed, RATE)
        assert len(audio) == pytest.approx(2 * RATE / speed, rel=0.01)
        assert pitch(audio) == pytest.approx(hertz, rel=0.005)


@pytest.mark.parametrize("speed", SPEEDS)
def test_there_are_no_clicks(speed):
    for audio in (faded_out(sine(90)), faded_out(sine(220)), speech_like()):
        rough = np.abs(np.diff(audio, 2)).max()
        assert np.abs(np.diff(stretched(audio, speed, RATE), 2)).max() < 1.5 * rough


@pytest.mark.parametrize("speed", SPEEDS)
def test_loudness_stays(speed):
    before, after = speech_like(), stretched(speech_like(), speed, RATE)
    assert np.sqrt(np.mean(after ** 2)) == pytest.approx(np.sqrt(np.mean(before ** 2)), rel=0.05)
    assert np.abs(after).max() <= np.abs(before).max() * 1.05


@pytest.mark.parametrize("speed", [0.6, 1.0, 1.5])
@pytest.mark.parametrize("size", [1, 37, 5000])
def test_pieces_join_to_what_the_whole_gives(speed, size):
    audio = speech_like()[:RATE // 4]
    stretcher = TimeStretcher(speed, RATE)
    pieces = [stretcher.feed(audio[start:start + size]) for start in range(0, len(audio), size)]
    np.testing.assert_array_equal(np.concatenate([*pieces, stretcher.finish()]), stretched(audio, speed, RATE))


def test_at_speed_1_the_samples_are_those_of_the_input():
    audio = speech_like()
    np.testing.assert_array_equal(stretched(audio, 1.0, RATE), audio)


@pytest.mark.parametrize("samples", [0, 1, 100, 1000])
@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_short_sound_and_silence_are_stretched_too(samples, speed):
    assert len(stretched(np.zeros(samples, np.float32), speed, RATE)) == round(samples / speed)


def test_sound_arrives_before_its_end_is_known():
    stretcher = TimeStretcher(1.25, RATE)
    assert len(stretcher.feed(sine(200, 0.2))) > 0.1 * RATE


@pytest.mark.parametrize("speed", [0.49, 2.01, 0, -1, float("nan")])
def test_other_speeds_are_refused(speed):
    with pytest.raises(UserError, match=r"speed must be from 0\.5 to 2, got"):
        TimeStretcher(speed, RATE)
