"""Make sound from pulses and noise, which a smooth spectral envelope filters in overlapping windows.

A frame is 256 samples at 24 kHz. It has 66 numbers: 64 log magnitudes of the envelope at frequencies that are equally
spaced in mels, the pitch in octaves above 150 Hz, and a logit that is positive if the frame is voiced. The frames
follow the model of WORLD (Morise et al. 2016, doi 10.1587/transinf.2015EDP7457), except that the share of noise at each
frequency is the same in all voiced frames. Pulses have a flat spectrum up to 11.5 kHz. Pulses and noise both have a
power of 1. The filter of a window has the minimum phase of its envelope (Oppenheim and Schafer 1975, section 10.3).

You can give the frames to ``SourceFilter`` in several calls. How you divide them does not change the samples, because
the phase of the pulses, the noise and the overlaps of windows continue from call to call.
"""

from functools import cache

import numpy as np

from ane.models.vocoders.harmonic_noise import SAMPLE_RATE, fft, polar, unit_harmonics

ENVELOPE = 64  # how many numbers describe the envelope of a frame
PARAMETERS = ENVELOPE + 2
NOISE = 0.0, 0.0, 0.1, 0.2, 0.4, 0.5, 0.6, 0.8  # share of noise in voiced frames, at rising frequencies
HOP, WINDOW, STEP, FFT = 256, 256, 64, 1024
BINS, HALF = FFT // 2 + 1, WINDOW // 2
MIDDLE, HIGHEST = 150.0, 11500.0  # Hz: pitch from which octaves count, and upper limit of the harmonics
PER_FRAME = HOP // STEP  # windows per frame
BLOCK = 16 * PER_FRAME  # number of windows to filter together; they fit into the processor's cache
OCTAVES = 2  # limit of the octaves above and below MIDDLE
LOGARITHMS = -21, 7  # limits of the log magnitudes: −182 dB and 61 dB
# What to multiply a cepstrum by: 0 for negative times and 2 for positive times, times FFT, because ``norm="forward"``
# divides by FFT
CAUSAL = FFT * np.repeat(np.float32([1, 2, 1, 0]), [1, FFT // 2 - 1, 1, FFT // 2 - 1])
SHARES = np.arange(HOP, dtype=np.float32) / HOP  # share of the next frame at each sample of a frame
HANN = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)).astype(np.float32)
WEIGHT = WINDOW / STEP / 2  # sum of all windows at a sample


class SourceFilter:
    """Makes sound from frames that arrive in several calls. ``random`` draws the noise, one number per sample."""

    def __init__(self, random: np.random.Generator):
        self.random = random
        self.frames = np.empty((0, PARAMETERS), np.float32)  # frames on which later samples depend
        self.first = self.received = 0  # index of the first frame in ``frames``, and number of frames received
        self.windows = 0  # number of windows that have been added
        self.source = np.zeros((2, HALF), np.float32)  # pulses and noise, beginning with the next window
        self.made = 0  # number of samples for which pulses and noise were made
        self.pitches = 0.0  # sum of the pitch over these samples, exact in float64
        self.sums = np.zeros((FFT // STEP, STEP), np.float32)  # unfinished samples, beginning with the next window

    def feed(self, frames: np.ndarray) -> np.ndarray:
        """Append frames (l, 66) float32, and return the samples (m,) that no later frame can change.

        These samples end at most 448 samples before the end of the frames that you have given so far.
        """
        self.frames = np.concatenate((self.frames, frames))
        self.received += len(frames)
        return self._sound(HOP // STEP * (self.received - 1) - HALF // STEP + 1)

    def finish(self) -> np.ndarray:
        """Return the remaining samples. In total, this object returns 256 samples per frame."""
        if not self.received:
            return np.zeros(0, np.float32)
        self.frames = np.concatenate((self.frames, self.frames[-1:], self.frames[-1:]))
        return self._sound(HOP // STEP * self.received + HALF // STEP)

    def _sound(self, stop: int) -> np.ndarray:
        """Filter and add all windows before window ``stop``, and return the samples that are complete then."""
        begin, count = self.windows, stop - self.windows
        if count <= 0:
            return np.zeros(0, np.float32)
        self._extend_source((stop - 1) * STEP + HALF)
        envelopes = self.frames[begin // PER_FRAME - self.first :, :ENVELOPE]
        voiced = between(self.frames[:, -1], np.arange(begin, stop) / PER_FRAME - self.first) > 0
        windows = np.lib.stride_tricks.sliding_window_view(self.source, WINDOW, axis=1)[:, ::STEP]
        sums = np.zeros((count + len(self.sums), STEP), np.float32)
        sums[: len(self.sums)] = self.sums
        skipped = begin % PER_FRAME  # windows of the first frame that have been added
        for first in range(-skipped, count, BLOCK):
            rows, frame = slice(max(first, 0), min(first + BLOCK, count)), (first + skipped) // PER_FRAME
            spectra = filters(envelopes[frame : frame + BLOCK // PER_FRAME + 1])[rows.start - first : rows.stop - first]
            spectra *= excitation(windows[:, rows], voiced[rows])
            made = fft.irfft(spectra, n=FFT, axis=1).astype(np.float32, copy=False).reshape(len(spectra), -1, STEP)
            for part in reversed(range(made.shape[1])):  # adds windows in order of time, however the frames arrive
                sums[rows.start + part : rows.stop + part] += made[:, part]
        self.sums, self.source, self.windows = sums[count:], self.source[:, count * STEP :], stop
        kept = stop // PER_FRAME - self.first
        self.frames, self.first = self.frames[kept:], self.first + kept
        return sums[max(HALF // STEP - begin, 0) : count].reshape(-1) / np.float32(WEIGHT)

    def _extend_source(self, stop: int) -> None:
        """Make pulses and noise up to the sample with index ``stop``."""
        first, count = self.made // HOP - self.first, stop - self.made  # ``made`` is a multiple of HOP until the end
        pairs = self.frames[first : first - (-count // HOP) + 1, -2:].T[..., None]
        between_frames = pairs[:, :-1] * (1 - SHARES) + pairs[:, 1:] * SHARES  # (2, frames, HOP)
        octaves, voicing = between_frames.reshape(2, -1)[:, :count]
        pitch = np.float32(MIDDLE) * np.exp2(np.clip(octaves, -OCTAVES, OCTAVES))
        pitches = self.pitches + np.cumsum(pitch, dtype=np.float64)
        self.pitches = float(pitches[-1]) if len(pitches) else self.pitches
        pulses = unit_harmonics(pitches / SAMPLE_RATE, pitch, HIGHEST)
        pulses *= 2 * np.sqrt(pitch / SAMPLE_RATE) * (voicing > 0)
        noise = self.random.standard_normal(count, dtype=np.float32)
        self.source = np.concatenate((self.source, [pulses, noise]), axis=1, dtype=np.float32)
        self.made = stop


def excitation(windows: np.ndarray, voiced: np.ndarray) -> np.ndarray:
    """Compute the spectrum of each window before the filter, (n, 513) complex64.

    Args:
        windows: Pulses and noise in each window, (2, n, 256).
        voiced: Whether a window has pulses, (n,) bool. The other windows have only noise.
    """
    pulses, noise = windows
    spectra, loud = windowed_spectra(noise), np.flatnonzero(voiced)
    harmonic, noisy = shares_of_sources()
    parts = spectra.view(np.float32)  # real and imaginary parts, which NumPy scales faster than complex numbers
    parts[loud] = parts[loud] * noisy + windowed_spectra(pulses[loud]).view(np.float32) * harmonic
    return spectra


def windowed_spectra(windows: np.ndarray) -> np.ndarray:
    """Multiply windows (n, 256) by a Hann window, and compute their spectra, (n, 513) complex64."""
    padded = np.zeros((len(windows), FFT), np.float32)
    np.multiply(windows, HANN * FFT, out=padded[:, :WINDOW])
    return fft.rfft(padded, axis=1, norm="forward")  # NumPy's other norms compute in float64


def filters(envelopes: np.ndarray) -> np.ndarray:
    """Compute the filters of the windows from the first frame to the last one, (4 · (l − 1), 513) complex64.

    The logarithm of a filter is interpolated between those of two frames. So each window's filter is the
    filter of the window before, times one factor per pair of frames.

    Args:
        envelopes: Log magnitudes of the frames at ``mel_bins``, (l, 64).
    """
    logarithms = minimum_phase(envelopes)
    step = (logarithms[1:] - logarithms[:-1]) * np.float32(1 / PER_FRAME)
    factor = polar(step.real, step.imag)
    made = np.empty((len(step), PER_FRAME, BINS), np.complex64)
    polar(logarithms[:-1].real, logarithms[:-1].imag, made[:, 0])
    for window in range(1, PER_FRAME):
        np.multiply(made[:, window - 1], factor, out=made[:, window])
    return made.reshape(-1, BINS)


def between(rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Interpolate linearly between rows (l, …) float32. ``positions`` (n,) are row numbers. Returns (n, …)."""
    before = positions.astype(np.int64)
    share = (positions % 1).astype(np.float32).reshape(-1, *[1] * (rows.ndim - 1))
    values = rows[before]
    values *= 1 - share
    values += rows[before + 1] * share
    return values


def mel_bins(count: int) -> np.ndarray:
    """Return ``count`` unrounded FFT bins from 0 to 12 kHz that are evenly spaced in mels (O'Shaughnessy 1987)."""
    mels = np.linspace(0, 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700), count)
    return 700 * (10 ** (mels / 2595) - 1) / (SAMPLE_RATE / 2) * (BINS - 1)


@cache
def shares_of_sources() -> np.ndarray:
    """Return the factors by which to multiply pulses and noise in voiced windows, (2, 1026).

    A spectrum has two numbers per FFT bin, its real and its imaginary part, which have the same factor.
    """
    noise = np.interp(np.arange(BINS), mel_bins(len(NOISE)), NOISE).astype(np.float32).repeat(2)
    return np.stack((np.sqrt(np.maximum(1 - noise * noise, 0)), noise))


@cache
def envelope_positions() -> np.ndarray:
    """Return the position of each FFT bin among the 64 numbers of an envelope, (513,) float64.

    All positions are below 63, so every position has a next number to interpolate with.
    """
    positions = np.interp(np.arange(BINS), mel_bins(ENVELOPE), np.arange(ENVELOPE))
    return np.minimum(positions, np.nextafter(ENVELOPE - 1, 0))


def minimum_phase(envelopes: np.ndarray) -> np.ndarray:
    """Compute the complex logarithms of minimum-phase filters, (l, 513) complex64.

    ``envelopes`` holds the log magnitudes at ``mel_bins``, (l, 64). The function uses FFTs and no matrix product. BLAS
    would divide a product among threads, which wait for each other if the machine has other work.
    """
    logarithms = between(np.clip(envelopes, *LOGARITHMS).T, envelope_positions()).T
    cepstra = fft.irfft(np.ascontiguousarray(logarithms), n=FFT, axis=1)
    cepstra *= CAUSAL
    return fft.rfft(cepstra, axis=1, norm="forward")
