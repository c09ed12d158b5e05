"""Make hibari's sound without a network: filter pulses and noise with predicted spectra, and invert the STFT.

A frame is 300 samples at 24 kHz. It has f0 and five spectra of 601 bins: harmonic, phase, noise, free and angle. The
spectrum of the sound is

    S = exp(harmonic) · e^{iπ tanh(phase)} · STFT(pulses(f0)) + exp(noise) · Z + exp(free) · e^{i angle}

where Z is complex normal noise, and the pulses have harmonics of amplitude 1 up to 11 kHz. The formula is from dsp.py
of the package hibari-tts (Maureese Williams, Apache-2.0).

You can give the frames to ``HarmonicNoise`` in several calls. How you divide them does not change the samples, because
the phase of the pulses, the noise and the overlap of the inverse STFT continue from call to call. The noise comes from
a table of complex normal numbers: drawing an index takes a tenth of the time that drawing a normal number takes.
"""

from functools import cache

import numpy as np
from numpy import fft  # SciPy's FFT would save 5 ms for 10 s of sound, but importing it takes 0.3 s

SAMPLE_RATE, HOP, WINDOW = 24000, 300, 1200
BINS, SPECTRA = WINDOW // 2 + 1, 5
HALF = WINDOW // 2
OVERLAP = WINDOW // HOP  # number of frames whose windows contain a given sample
VOICED, HIGHEST = 40.0, 11000.0  # Hz: f0 above which a frame is voiced, and upper limit of the harmonics
NORMALS = 2**13  # number of values in the table of noise
BLOCK = 64  # number of frames to filter together; they fit into the processor's cache
HANN = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)).astype(np.float32)
PULSE_HANN = HANN * 4  # HANN / (WINDOW / 4), times WINDOW, because ``norm="forward"`` divides by WINDOW
LATER = ((np.arange(HOP) + 0.5) / HOP - 0.5).astype(
    np.float32
)  # distance of each sample from the middle of its frame, in frames


class HarmonicNoise:
    """Makes sound from frames that arrive in several calls.

    Args:
        f0: Fundamental frequency of every frame in Hz, (L,) float32.
        seed: Seed of the noise.
    """

    def __init__(self, f0: np.ndarray, seed: int):
        self.f0, self.random = f0, np.random.default_rng(seed)
        self.done = 0  # number of frames whose spectra have been added
        self.sums = np.zeros((OVERLAP - 1, HOP), np.float32)  # unfinished samples, to which the next frames add
        self.source = np.zeros(0, np.float32)  # pulses that the next frames need
        self.first = 0  # index of the sample at which ``source`` begins
        self.pitches = 0.0  # sum of the pitch over all samples until the end of ``source``, exact in float64
        # Buffers for results. For new arrays of this size, the system would have to map new memory each time.
        self.indices = np.empty((BLOCK, BINS + 1), np.intp)
        self.bins, self.polar = np.empty((2, BLOCK, BINS), np.complex64)
        self.size, self.part = np.empty((2, BLOCK, BINS), np.float32)
        self.filtered = np.empty((BLOCK, WINDOW), np.float32)

    def feed(self, spectra: np.ndarray) -> np.ndarray:
        """Append the spectra of frames, (l, 5 · 601) float32, and return the samples (m,) that are now final.

        A frame affects samples up to 600 samples after its end. With the last frame, all samples are final.
        """
        count, begins = len(spectra), self.done
        sums = np.zeros((count + OVERLAP - 1, HOP), np.float32)  # rows of 300 samples
        sums[: OVERLAP - 1] = self.sums
        windows, heard = self.windows(count), self.with_pulses(count)
        for first in range(0, count, BLOCK):
            rows = slice(first, first + BLOCK)
            frames = self.frames(spectra[rows], windows[rows], np.flatnonzero(heard[rows]))
            for part in reversed(range(OVERLAP)):  # a row adds its frames in order of time, however they arrive
                sums[first + part : first + part + len(frames)] += frames[:, part * HOP : (part + 1) * HOP]
        self.sums = sums[count:].copy()
        self.done += count
        # The sound begins at the center of the first frame's window, and ends 300 samples after the center of the last
        # window.
        last = self.done == len(self.f0)
        start = max(HALF // HOP - begins, 0)
        stop = max(count + (HALF // HOP if last else 0), start)
        made = sums[start:stop]
        made *= self.weights(begins + start, stop - start)
        return made.reshape(-1)

    def frames(self, spectra: np.ndarray, windows: np.ndarray, heard: np.ndarray) -> np.ndarray:
        """Filter the windows of at most BLOCK frames, and add the noise.

        Returns (l, 1200), which the next call overwrites.

        Args:
            heard: Indices of the frames with pulses.
        """
        count = len(spectra)
        harmonic, phase, noise, free, angle = spectra.reshape(-1, SPECTRA, BINS).transpose(1, 0, 2)  # (l, 601)
        indices, bins, size = self.indices[:count], self.bins[:count], self.size[:count]
        # The number of indices per frame is even, because the generator makes two 16-bit numbers from one draw.
        indices[:] = self.random.integers(NORMALS, size=indices.shape, dtype=np.uint16)
        normals().take(indices[:, :BINS], out=bins, mode="clip")
        magnitude(noise, size)
        for component in (bins.real, bins.imag):  # scale both in place; NumPy would convert the factor to complex
            component *= size
        bins += polar(free, angle, self.polar[:count], size, self.part[:count])
        if voiced := len(heard):
            pulses = np.multiply(windows[heard], PULSE_HANN, out=self.filtered[:voiced])
            pulses = fft.rfft(pulses, axis=1, norm="forward")  # NumPy's other norms compute in float64
            turned = np.tanh(phase[heard], out=self.part[:voiced])
            turned *= np.float32(np.pi)
            pulses *= polar(harmonic[heard], turned, self.polar[:voiced], self.size[:voiced], turned)
            bins[heard] += pulses
        frames = fft.irfft(bins, n=WINDOW, axis=1, out=self.filtered[:count])
        frames *= HANN
        return frames

    def weights(self, first: int, count: int) -> np.ndarray:
        """Return the factors that undo the windows, for ``count`` rows of 300 samples: (count, 300).

        A factor is the inverse of the sum of all squared windows at the sample.
        """
        factors = np.repeat(weight(0, OVERLAP)[None], count, axis=0)
        stop, frames = first + count, len(self.f0)
        for row in {*range(first, min(stop, OVERLAP - 1)), *range(max(first, frames), stop)}:
            factors[row - first] = weight(
                max(row + 1 - frames, 0), min(row + 1, OVERLAP)
            )  # near the ends, fewer windows exist
        return factors

    def with_pulses(self, count: int) -> np.ndarray:
        """Return for each of the next frames whether its window may contain pulses, (count,) bool."""
        near = np.arange(self.done, self.done + count)[:, None] + np.arange(-OVERLAP, OVERLAP + 1)
        return (self.f0[np.clip(near, 0, len(self.f0) - 1)] > VOICED).any(axis=1)

    def windows(self, count: int) -> np.ndarray:
        """Return the pulses in the windows of the next frames, (count, 1200).

        Beyond the ends of the sound, the pulses are a mirror image.
        """
        begin, length = self.done * HOP - HALF, len(self.f0) * HOP
        end = begin + (count - 1) * HOP + WINDOW
        known, needed = (self.first + len(self.source)) // HOP, min(max(end, HALF + HOP), length) // HOP
        if needed > known:
            made, self.pitches = pulses(self.f0, known, needed - known, self.pitches)
            kept = max(begin - self.first, 0)
            self.source, self.first = np.concatenate((self.source[kept:], made)), self.first + kept
        samples = np.arange(begin, end)
        samples = (length - 1) - np.abs((length - 1) - np.abs(samples))  # indices from 0 to length − 1
        return np.lib.stride_tricks.sliding_window_view(self.source[samples - self.first], WINDOW)[::HOP]


@cache
def normals() -> np.ndarray:
    """Draw a table of complex normal numbers for noise, (NORMALS,) complex64, scaled to a mean power of exactly 2."""
    drawn = np.random.default_rng(0).standard_normal((NORMALS, 2), dtype=np.float32)
    return (drawn / np.sqrt(np.mean(drawn * drawn))).view(np.complex64)[:, 0]


@cache
def weight(first: int, stop: int) -> np.ndarray:
    """Return the inverse of the sum of squared windows where they overlap, (300,) float32.

    A window has four parts of 300 samples. The parts from ``first`` up to ``stop`` overlap.
    """
    return 1 / np.maximum((HANN * HANN).reshape(OVERLAP, HOP)[first:stop].sum(axis=0), np.float32(1e-11))


def magnitude(logarithm: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Compute exp(logarithm), but at most e⁷. The result is written to ``out`` if it is given."""
    return np.exp(np.minimum(logarithm, np.float32(7), out=out), out=out)


def polar(
    logarithm: np.ndarray,
    angle: np.ndarray,
    out: np.ndarray | None = None,
    size: np.ndarray | None = None,
    part: np.ndarray | None = None,
) -> np.ndarray:
    """Compute exp(logarithm) · e^{i angle}, complex64. exp(logarithm) is limited as in ``magnitude``.

    Args:
        logarithm: Logarithm of the magnitude, float32.
        angle: Angle in radians, float32.
        out: Array to write the result to.
        size: Array to write the magnitude to.
        part: Array to write the cosine to. It may be ``angle``.
    """
    out = np.empty(logarithm.shape, np.complex64) if out is None else out
    size = magnitude(logarithm, size)
    np.multiply(np.sin(angle), size, out=out.imag)
    np.multiply(np.cos(angle, out=part), size, out=out.real)
    return out


def pulses(f0: np.ndarray, first: int, count: int, pitches: float) -> tuple[np.ndarray, float]:
    """Make the pulses of ``count`` frames. Where the voice is silent, there are zeros.

    Args:
        f0: Fundamental frequency of every frame in Hz, (L,).
        first: Index of the first frame to make.
        count: Number of frames to make.
        pitches: Sum of the pitch over all earlier samples. Float64 represents it exactly, so the phase of the pulses
            does not depend on how you divide the frames among calls.

    Returns:
        The pulses, (300 · count,) float32, and the sum of the pitch up to their end.
    """
    near = f0[np.clip(np.arange(first - 1, first + count + 1), 0, len(f0) - 1)].astype(np.float32, copy=False)[:, None]
    half = HOP // 2
    pitch = np.empty((count, HOP), np.float32)
    pitch[:, :half] = near[1:-1] + (near[1:-1] - near[:-2]) * LATER[:half]
    pitch[:, half:] = near[1:-1] + (near[2:] - near[1:-1]) * LATER[half:]
    pitch = pitch.reshape(-1)  # type: ignore[assignment]
    silent = pitch <= VOICED
    np.maximum(pitch, np.float32(VOICED), out=pitch)
    sums = np.cumsum(pitch, dtype=np.float64)
    sums += pitches
    sound = unit_harmonics(sums / SAMPLE_RATE, pitch, HIGHEST)
    sound[silent] = 0
    return sound, float(sums[-1])


def unit_harmonics(phase: np.ndarray, pitch: np.ndarray, highest: float) -> np.ndarray:
    """Add up all harmonics below ``highest`` Hz, each with amplitude 1. Returns (n,) float32.

    Σ_{h ≤ H} cos(h·t) = sin((H + ½)·t) / (2·sin(t / 2)) − ½. If t is a multiple of 2π, the sum is H.

    Args:
        phase: Phase in turns, (n,) float64, at least 0.
        pitch: Pitch in Hz, (n,) float32.
    """
    angle = ((phase - np.floor(phase)) * (2 * np.pi)).astype(np.float32)
    harmonics = np.floor(np.float32(highest) / pitch) + np.float32(0.5)
    divisor = 2 * np.sin(angle / 2)
    limit = np.abs(divisor) <= 2e-3
    divisor[limit] = 1
    sound = np.sin(harmonics * angle) / divisor
    sound[limit] = harmonics[limit]
    return sound - np.float32(0.5)
