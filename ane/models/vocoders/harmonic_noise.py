"""A vocoder without a network: harmonics of f0 and noise, filtered by predicted spectra, and one inverse STFT.

For each frame of 300 samples at 24 kHz there are f0 and five spectra of 601 bins, the parameters of

    S = exp(harmonic) · e^{iπ tanh(phase)} · STFT(pulses(f0)) + exp(noise) · Z + exp(free) · e^{i angle}

with band-limited pulses of unit harmonics below 11 kHz and complex normal noise Z. After dsp.py of the package
hibari-tts (Maureese Williams, Apache-2.0).

``HarmonicNoise`` takes frames in pieces, and its samples are the same for any division into pieces: the phase of the
pulses, the noise and the overlap of the inverse STFT continue.
"""

import numpy as np
from numpy import fft  # SciPy's saves 5 ms for 10 s of sound, and its import takes 0.3 s

SAMPLE_RATE, HOP, WINDOW = 24000, 300, 1200
BINS, SPECTRA = WINDOW // 2 + 1, 5
HALF = WINDOW // 2
OVERLAP = WINDOW // HOP                 # frames that a sample is part of
VOICED, HIGHEST = 40.0, 11000.0         # Hz: f0 from which a frame is voiced; upper limit of the harmonics
HANN = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)).astype(np.float32)


class HarmonicNoise:
    """The sound of frames that arrive in pieces; ``f0``: (L,) float32 in Hz, of all frames; ``seed``: of the noise."""

    def __init__(self, f0: np.ndarray, seed: int):
        self.f0, self.random = f0, np.random.default_rng(seed)
        self.done = 0                                           # frames of which the spectra have been added
        self.sums = np.zeros(WINDOW - HOP, np.float32)          # what the next frames add to
        self.weights = np.zeros(WINDOW - HOP, np.float32)       # squared windows, added in the same way
        self.source = np.zeros(0, np.float32)                   # pulses, as far as they were needed
        self.turns = 0.0                                        # of their phase until then

    def feed(self, spectra: np.ndarray) -> np.ndarray:
        """The next frames (l, 5 · 601) float32 → the samples (m,) that they complete; with the last frame all of them.

        A frame ends 600 samples before the last sample that depends on it.
        """
        count, begins = len(spectra), self.done
        harmonic, phase, noise, free, angle = spectra.reshape(count, SPECTRA, BINS).transpose(1, 0, 2)
        bins = fft.rfft(self.windows(begins, count) * (HANN / (WINDOW / 4)), axis=1).astype(np.complex64, copy=False)
        bins *= polar(harmonic, np.float32(np.pi) * np.tanh(phase))                     # (l, 601)
        bins += self.random.standard_normal((count, 2 * BINS), dtype=np.float32).view(np.complex64) * magnitude(noise)
        bins += polar(free, angle)
        frames = fft.irfft(bins, n=WINDOW, axis=1).astype(np.float32, copy=False) * HANN               # (l, 1200)
        self.done += count
        sums = overlapped(self.sums, frames)                                            # (300 · l + 900,)
        weights = overlapped(self.weights, np.broadcast_to(HANN ** 2, frames.shape))
        self.sums, self.weights = sums[count * HOP:], weights[count * HOP:]
        # the sound begins at the centre of the first frame, and ends 300 samples after that of the last
        start = max(HALF - begins * HOP, 0)
        stop = count * HOP + (HALF if self.done == len(self.f0) else 0)
        return sums[start:stop] / np.maximum(weights[start:stop], np.float32(1e-11))

    def windows(self, first: int, count: int) -> np.ndarray:
        """The pulses around the centres of ``count`` frames, (l, 1200); mirrored around the ends of the sound."""
        begin, end, length = first * HOP - HALF, (first + count - 1) * HOP + HALF, len(self.f0) * HOP
        samples = np.arange(begin, end)
        samples = (length - 1) - np.abs((length - 1) - np.abs(samples))         # of the sound, in 0 … length − 1
        missing = min(max(end, HALF + 1), length) - len(self.source)
        if missing > 0:
            made, self.turns = pulses(self.f0, len(self.source), missing, self.turns)
            self.source = np.concatenate((self.source, made))
        return np.lib.stride_tricks.sliding_window_view(self.source[samples], WINDOW)[::HOP]


def overlapped(sums: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Frames (l, 1200), each 300 samples after the one before, added to each other and to ``sums`` (900,)."""
    added = np.zeros((len(frames) + OVERLAP - 1, HOP), np.float32)
    added.reshape(-1)[:len(sums)] = sums
    for part in range(OVERLAP):
        added[part:part + len(frames)] += frames[:, part * HOP:(part + 1) * HOP]
    return added.reshape(-1)


def magnitude(logarithm: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(logarithm, np.float32(7)))


def polar(logarithm: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """exp(logarithm) · e^{i angle}, complex64."""
    found = np.empty(logarithm.shape, np.complex64)
    size = magnitude(logarithm)
    np.multiply(np.cos(angle), size, out=found.real)
    np.multiply(np.sin(angle), size, out=found.imag)
    return found


def pulses(f0: np.ndarray, first: int, count: int, turns: float) -> tuple[np.ndarray, float]:
    """Samples ``first`` … ``first + count`` of the pulses of f0 (L,) in Hz, and the turns of their phase at the end.

    Where there is no voice the pulses are zeros.
    """
    middles = (np.arange(len(f0)) + 0.5) * HOP - 0.5                            # of the frames, in samples
    pitch = np.interp(np.arange(first, first + count), middles, f0).astype(np.float32)
    voiced = pitch > VOICED
    pitch = np.maximum(pitch, np.float32(VOICED))
    phase = turns + np.cumsum(pitch, dtype=np.float64) / SAMPLE_RATE
    return np.where(voiced, unit_harmonics(phase, pitch, HIGHEST), np.float32(0)), float(phase[-1])


def unit_harmonics(phase: np.ndarray, pitch: np.ndarray, highest: float) -> np.ndarray:
    """The sum of all harmonics below ``highest`` Hz with amplitude 1: phase (n,) float64 in turns, pitch (n,) float32
    in Hz → (n,) float32.

    Σ_{h ≤ H} cos(h·t) = sin((H + ½)·t) / (2·sin(t / 2)) − ½, with the limit H where t is a multiple of 2π.
    """
    angle = ((phase % 1) * (2 * np.pi)).astype(np.float32)
    harmonics = np.floor(np.float32(highest) / pitch) + np.float32(0.5)
    divisor = 2 * np.sin(angle / 2)
    limit = np.abs(divisor) <= 2e-3
    sound = np.where(limit, harmonics, np.sin(harmonics * angle) / np.where(limit, np.float32(1), divisor))
    return sound - np.float32(0.5)
