"""The vocoder of harmonics and noise: the same sound for any division into pieces, and harmonics of the right pitch."""

import numpy as np
import pytest

from ane.models.vocoders.harmonic_noise import BINS, HOP, SAMPLE_RATE, SPECTRA, HarmonicNoise, pulses

FRAMES = 60
SILENT = -30.0          # logarithm of a magnitude that is not heard


def spectra(harmonic: float = SILENT, noise: float = SILENT, frames: int = FRAMES) -> np.ndarray:
    """Frames (L, 5 · 601) with constant magnitudes and no phase; the free part is silent."""
    parts = np.zeros((frames, SPECTRA, BINS), np.float32)
    parts[:, 0], parts[:, 2], parts[:, 3] = harmonic, noise, SILENT
    return parts.reshape(frames, -1)


def sound(f0: np.ndarray, frames: np.ndarray, ends: tuple[int, ...] = (), seed: int = 0) -> np.ndarray:
    vocoder = HarmonicNoise(f0, seed)
    return np.concatenate([vocoder.feed(part) for part in np.split(frames, ends)])


@pytest.mark.parametrize("frames", [1, 2, 3, FRAMES])
def test_a_sound_has_300_samples_a_frame(frames):
    assert len(sound(np.full(frames, 100, np.float32), spectra(-1, -3, frames))) == frames * HOP


@pytest.mark.parametrize("ends", [(1,), (2, 3), (1, 2, 3, 4, 30), tuple(range(1, FRAMES))])
def test_pieces_join_to_the_sound_of_the_whole(ends):
    rng = np.random.default_rng(0)
    frames = rng.standard_normal((FRAMES, SPECTRA * BINS), dtype=np.float32)
    f0 = np.linspace(20, 300, FRAMES, dtype=np.float32)
    assert np.abs(sound(f0, frames, ends) - sound(f0, frames)).max() < 1e-4 * np.abs(sound(f0, frames)).max()


def test_the_harmonics_are_multiples_of_the_pitch_below_11_khz():
    made = sound(np.full(FRAMES, 200, np.float32), spectra(harmonic=0))[3000:15000]
    magnitudes = np.abs(np.fft.rfft(made * np.hanning(len(made))))
    frequencies = np.fft.rfftfreq(len(made), 1 / SAMPLE_RATE)
    peaks = frequencies[magnitudes > magnitudes.max() / 10]
    assert np.abs(peaks - 200 * np.round(peaks / 200)).max() <= 2 * frequencies[1]
    assert (peaks.min(), peaks.max()) == (pytest.approx(200, abs=4), pytest.approx(11000, abs=4))


def test_without_voice_there_are_no_pulses_and_noise_depends_on_the_seed():
    unvoiced = np.full(FRAMES, 30, np.float32)
    assert not pulses(unvoiced, 0, FRAMES * HOP, 0.0)[0].any()
    first, again, other = (sound(unvoiced, spectra(harmonic=0, noise=-2), seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert np.abs(np.corrcoef(first, other)[0, 1]) < 0.1


def test_the_phase_goes_on_where_the_pulses_are_made_in_parts():
    f0 = np.linspace(90, 250, FRAMES, dtype=np.float32)
    whole, _ = pulses(f0, 0, FRAMES * HOP, 0.0)
    first, turns = pulses(f0, 0, 1000, 0.0)
    rest, _ = pulses(f0, 1000, FRAMES * HOP - 1000, turns)
    assert np.abs(np.concatenate((first, rest)) - whole).max() < 1e-2
