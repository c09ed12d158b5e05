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
OCTAVES, LOUDEST = 2, 7  # limits: octaves above and below MIDDLE, and the largest log magnitude
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
        self.sums = np.zeros(FFT, np.float32)  # unfinished samples, beginning with the next window

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
        count = stop - self.windows
        if count <= 0:
            return np.zeros(0, np.float32)
        self._extend_source((stop - 1) * STEP + HALF)
        spectra = self._spectra(np.arange(self.windows, stop))
        begin, self.windows = self.windows * STEP - HALF, stop
        sums = np.zeros(count * STEP + FFT, np.float32)
        sums[:FFT] = self.sums
        for index, window in enumerate(fft.irfft(spectra, n=FFT, axis=1).astype(np.float32, copy=False)):
            sums[index * STEP : index * STEP + FFT] += window
        self.sums, self.source = sums[count * STEP :], self.source[:, count * STEP :]
        kept = stop * STEP // HOP - self.first
        self.frames, self.first = self.frames[kept:], self.first + kept
        return sums[max(-begin, 0) : count * STEP] / np.float32(WEIGHT)

    def _extend_source(self, stop: int) -> None:
        """Make pulses and noise up to the sample with index ``stop``."""
        octaves, voicing = between(self.frames[:, -2:], np.arange(self.made, stop) / HOP - self.first).T
        pitch = np.float32(MIDDLE) * np.exp2(np.clip(octaves, -OCTAVES, OCTAVES))
        pitches = self.pitches + np.cumsum(pitch, dtype=np.float64)
        self.pitches = float(pitches[-1]) if len(pitches) else self.pitches
        pulses = unit_harmonics(pitches / SAMPLE_RATE, pitch, HIGHEST)
        pulses = np.where(voicing > 0, pulses * 2 * np.sqrt(pitch / SAMPLE_RATE), 0)
        noise = self.random.standard_normal(len(pulses), dtype=np.float32)
        self.source = np.concatenate((self.source, np.stack((pulses, noise)).astype(np.float32)), axis=1)
        self.made = stop

    def _spectra(self, windows: np.ndarray) -> np.ndarray:
        """Compute the spectra of pulses and noise in ``windows`` after the filter, (n, 513) complex64."""
        positions = windows * (STEP / HOP) - self.first  # centers of the windows, in frames of ``self.frames``
        start = int(positions[0])
        voiced = between(self.frames[:, -1], positions) > 0
        logarithms = minimum_phase(self.frames[start : int(positions[-1]) + 2, :ENVELOPE])
        logarithms = between(logarithms.view(np.float32), positions - start).view(np.complex64)
        parts = np.lib.stride_tricks.sliding_window_view(self.source, WINDOW, axis=1)[:, : len(windows) * STEP : STEP]
        pulses, noise = fft.rfft(
            parts * (HANN * FFT), n=FFT, axis=2, norm="forward"
        )  # NumPy's other norms compute in float64
        shares = shares_of_sources()[:, voiced.astype(np.int64)]
        pulses *= shares[0]
        noise *= shares[1]
        pulses += noise
        pulses *= polar(logarithms.real, logarithms.imag)
        return pulses


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
    """Return the factors of pulses and of noise at every FFT bin, (2, 2, 513) float32.

    On the first axis are pulses and noise. On the second axis are unvoiced frames and voiced frames.
    """
    noise = np.interp(np.arange(BINS), mel_bins(len(NOISE)), NOISE).astype(np.float32)
    noise = np.stack((np.ones_like(noise), noise))
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
    logarithms = between(np.minimum(envelopes, LOUDEST).T, envelope_positions()).T
    cepstra = fft.irfft(logarithms, n=FFT, axis=1)
    cepstra[:, 1 : FFT // 2] *= 2
    cepstra[:, FFT // 2 + 1 :] = 0
    cepstra *= FFT
    return np.ascontiguousarray(fft.rfft(cepstra, axis=1, norm="forward"))  # rfft's result is not contiguous
