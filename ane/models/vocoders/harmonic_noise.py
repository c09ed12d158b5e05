"""Make sound without a network: filter harmonics of f0 and noise by predicted spectra, and invert one STFT.

For each frame of 300 samples at 24 kHz there are f0 and five spectra of 601 bins, the parameters of

    S = exp(harmonic) · e^{iπ tanh(phase)} · STFT(pulses(f0)) + exp(noise) · Z + exp(free) · e^{i angle}

with band-limited pulses of unit harmonics below 11 kHz and complex normal noise Z. The formula is from dsp.py of the
package hibari-tts (Maureese Williams, Apache-2.0).

``HarmonicNoise`` takes frames in pieces. Its samples do not depend on the division into pieces, because the phase of
the pulses, the noise and the overlap of the inverse STFT continue from one piece to the next. Its noise comes from a
table of complex normal numbers, because drawing an index takes a tenth of the time that drawing a normal number takes.
"""

from functools import cache

import numpy as np
from numpy import fft  # SciPy's saves 5 ms for 10 s of sound, and its import takes 0.3 s

SAMPLE_RATE, HOP, WINDOW = 24000, 300, 1200
BINS, SPECTRA = WINDOW // 2 + 1, 5
HALF = WINDOW // 2
OVERLAP = WINDOW // HOP  # number of frames that contain a sample
VOICED, HIGHEST = 40.0, 11000.0  # Hz: f0 above which a frame is voiced, and upper limit of the harmonics
NORMALS = 2**13  # size of the table that noise is drawn from
BLOCK = 64  # frames that are filtered at once, which fit into the processor's cache
HANN = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)).astype(np.float32)
PULSE_HANN = HANN * 4  # HANN / (WINDOW / 4), times WINDOW, because ``norm="forward"`` divides by WINDOW
LATER = ((np.arange(HOP) + 0.5) / HOP - 0.5).astype(np.float32)  # frames from a frame's middle to each of its samples


class HarmonicNoise:
    """Makes the sound of frames that arrive in pieces.

    Args:
        f0: Fundamental frequency of all frames in Hz, (L,) float32.
        seed: Seed of the noise.
    """

    def __init__(self, f0: np.ndarray, seed: int):
        self.f0, self.random = f0, np.random.default_rng(seed)
        self.done = 0  # number of frames whose spectra have been added
        self.sums = np.zeros((OVERLAP - 1, HOP), np.float32)  # sums that the next frames add to
        self.source = np.zeros(0, np.float32)  # pulses made so far, without those no longer needed
        self.first = 0  # sample at which ``source`` begins
        self.pitches = 0.0  # sum of the pitch until the end of ``source``, exact in float64
        # buffers for results: new arrays of this size would be new pages of memory each time
        self.indices = np.empty((BLOCK, BINS + 1), np.intp)
        self.bins, self.polar = np.empty((2, BLOCK, BINS), np.complex64)
        self.size, self.part = np.empty((2, BLOCK, BINS), np.float32)
        self.filtered = np.empty((BLOCK, WINDOW), np.float32)

    def feed(self, spectra: np.ndarray) -> np.ndarray:
        """Append frames (l, 5 · 601) float32, and return the samples (m,) that they complete.

        The last sample that depends on a frame is 600 samples after the frame's end. The last frames complete all
        remaining samples.
        """
        count, begins = len(spectra), self.done
        sums = np.zeros((count + OVERLAP - 1, HOP), np.float32)  # rows of 300 samples
        sums[: OVERLAP - 1] = self.sums
        windows, heard = self.windows(count), self.with_pulses(count)
        for first in range(0, count, BLOCK):
            rows = slice(first, first + BLOCK)
            frames = self.frames(spectra[rows], windows[rows], np.flatnonzero(heard[rows]))
            for part in reversed(range(OVERLAP)):  # the earliest frame of a row first, in this call or before
                sums[first + part : first + part + len(frames)] += frames[:, part * HOP : (part + 1) * HOP]
        self.sums = sums[count:].copy()
        self.done += count
        # the sound begins at the center of the first frame, and ends 300 samples after the center of the last
        last = self.done == len(self.f0)
        start = max(HALF // HOP - begins, 0)
        stop = max(count + (HALF // HOP if last else 0), start)
        made = sums[start:stop]
        made *= self.weights(begins + start, stop - start)
        return made.reshape(-1)

    def frames(self, spectra: np.ndarray, windows: np.ndarray, heard: np.ndarray) -> np.ndarray:
        """Filter the windows of at most BLOCK frames, and add the noise. Returns (l, 1200), valid until the next call.

        Args:
            heard: Indices of the frames with pulses.
        """
        count = len(spectra)
        harmonic, phase, noise, free, angle = spectra.reshape(-1, SPECTRA, BINS).transpose(1, 0, 2)  # (l, 601)
        indices, bins, size = self.indices[:count], self.bins[:count], self.size[:count]
        # an even number for each frame: two share a draw of the generator
        indices[:] = self.random.integers(NORMALS, size=indices.shape, dtype=np.uint16)
        normals().take(indices[:, :BINS], out=bins, mode="clip")
        magnitude(noise, size)
        for component in (bins.real, bins.imag):  # in-place on each part, because NumPy would make the factor complex
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
        """Return the factors of ``count`` rows of samples, (count, 300): 1 / the sum of the squared windows."""
        factors = np.repeat(weight(0, OVERLAP)[None], count, axis=0)
        stop, frames = first + count, len(self.f0)
        for row in {*range(first, min(stop, OVERLAP - 1)), *range(max(first, frames), stop)}:
            factors[row - first] = weight(max(row + 1 - frames, 0), min(row + 1, OVERLAP))  # parts of existing frames
        return factors

    def with_pulses(self, count: int) -> np.ndarray:
        """Return whether each of the next frames may have pulses around its center, (count,) bool."""
        near = np.arange(self.done, self.done + count)[:, None] + np.arange(-OVERLAP, OVERLAP + 1)
        return (self.f0[np.clip(near, 0, len(self.f0) - 1)] > VOICED).any(axis=1)

    def windows(self, count: int) -> np.ndarray:
        """Return the pulses around the centres of the next frames, (l, 1200), mirrored around the ends of the sound."""
        begin, length = self.done * HOP - HALF, len(self.f0) * HOP
        end = begin + (count - 1) * HOP + WINDOW
        known, needed = (self.first + len(self.source)) // HOP, min(max(end, HALF + HOP), length) // HOP
        if needed > known:
            made, self.pitches = pulses(self.f0, known, needed - known, self.pitches)
            kept = max(begin - self.first, 0)
            self.source, self.first = np.concatenate((self.source[kept:], made)), self.first + kept
        samples = np.arange(begin, end)
        samples = (length - 1) - np.abs((length - 1) - np.abs(samples))  # of the sound, in 0 … length − 1
        return np.lib.stride_tricks.sliding_window_view(self.source[samples - self.first], WINDOW)[::HOP]


@cache
def normals() -> np.ndarray:
    """Return complex normal numbers with the exact power of 2, (NORMALS,) complex64."""
    drawn = np.random.default_rng(0).standard_normal((NORMALS, 2), dtype=np.float32)
    return (drawn / np.sqrt(np.mean(drawn * drawn))).view(np.complex64)[:, 0]


@cache
def weight(first: int, stop: int) -> np.ndarray:
    """Return 1 / the sum of the parts ``first`` to ``stop`` of the squared window, (300,) float32."""
    return 1 / np.maximum((HANN * HANN).reshape(OVERLAP, HOP)[first:stop].sum(axis=0), np.float32(1e-11))


def magnitude(logarithm: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return exp(logarithm), at most e⁷, in ``out`` if it is given."""
    return np.exp(np.minimum(logarithm, np.float32(7), out=out), out=out)


def polar(
    logarithm: np.ndarray,
    angle: np.ndarray,
    out: np.ndarray | None = None,
    size: np.ndarray | None = None,
    part: np.ndarray | None = None,
) -> np.ndarray:
    """Return exp(logarithm) · e^{i angle}, complex64, with exp(logarithm) limited by ``magnitude``.

    Args:
        logarithm: Logarithm of the magnitude, float32.
        angle: Angle in radians, float32.
        out: Array for the result.
        size: Array for the magnitude.
        part: Array for the cosine, which may be ``angle``.
    """
    out = np.empty(logarithm.shape, np.complex64) if out is None else out
    size = magnitude(logarithm, size)
    np.multiply(np.sin(angle), size, out=out.imag)
    np.multiply(np.cos(angle, out=part), size, out=out.real)
    return out


def pulses(f0: np.ndarray, first: int, count: int, pitches: float) -> tuple[np.ndarray, float]:
    """Make the pulses of some frames, with zeros where there is no voice.

    Args:
        f0: Fundamental frequency of all frames in Hz, (L,).
        first: Index of the first frame.
        count: Number of frames.
        pitches: Sum of the pitch at all earlier samples. Float64 holds it exactly, so the phase does not depend on the
            division into pieces.

    Returns:
        The pulses (300 · count,) float32, and the sum of the pitch up to their end.
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
    """Return the sum of all harmonics below ``highest`` Hz with amplitude 1, (n,) float32.

    Σ_{h ≤ H} cos(h·t) = sin((H + ½)·t) / (2·sin(t / 2)) − ½, with the limit H where t is a multiple of 2π.

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
