"""A source-filter vocoder: pulses and noise, filtered by a smooth envelope, in windows that overlap.

For each frame of 256 samples at 24 kHz there are 66 numbers: the logarithm of the envelope's magnitude at 64
frequencies that are equally spaced in mels; the pitch in octaves above 150 Hz; and whether there is a voice (a logit).
This is the model of WORLD (Morise et al. 2016, doi 10.1587/transinf.2015EDP7457), except that voiced frames have the
same shares of noise everywhere. Pulses have a flat spectrum below 11.5 kHz and a power of 1, as the noise has; the
filter of a window has the minimum phase of its envelope (Oppenheim and Schafer 1975, section 10.3).

``SourceFilter`` takes frames in pieces, and its samples are the same for any division into pieces: the phase of the
pulses, the noise and the overlaps continue.
"""

from functools import cache

import numpy as np

from ane.models.vocoders.harmonic_noise import SAMPLE_RATE, fft, polar, unit_harmonics

ENVELOPE = 64  # numbers of a frame's envelope
PARAMETERS = ENVELOPE + 2
NOISE = 0.0, 0.0, 0.1, 0.2, 0.4, 0.5, 0.6, 0.8  # share of noise in voiced frames, by frequency
HOP, WINDOW, STEP, FFT = 256, 256, 64, 1024
BINS, HALF = FFT // 2 + 1, WINDOW // 2
MIDDLE, HIGHEST = 150.0, 11500.0  # Hz: from which octaves are counted; upper limit of the harmonics
OCTAVES, LOUDEST = 2, 7  # from the middle at most; log magnitude: what lies beyond is no speech
HANN = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)).astype(np.float32)
WEIGHT = WINDOW / STEP / 2  # what the windows over a sample add up to


class SourceFilter:
    """The sound of frames that arrive in pieces. ``random`` draws the noise, a number a sample."""

    def __init__(self, random: np.random.Generator):
        self.random = random
        self.frames = np.empty((0, PARAMETERS), np.float32)  # from ``first`` on: those that later samples depend on
        self.first = self.received = 0  # frames
        self.windows = 0  # those that have been added
        self.source = np.zeros((2, HALF), np.float32)  # pulses and noise, from the start of the next window
        self.made = 0  # samples of the source
        self.pitches = 0.0  # sum of the pitch at these samples: exact in float64
        self.sums = np.zeros(FFT, np.float32)  # of the windows, from the start of the next one

    def feed(self, frames: np.ndarray) -> np.ndarray:
        """The next frames (l, 66) float32 → the samples (m,) that no later frame changes.

        They end at most 448 samples before the frames do.
        """
        self.frames = np.concatenate((self.frames, frames))
        self.received += len(frames)
        return self._sound(HOP // STEP * (self.received - 1) - HALF // STEP + 1)

    def finish(self) -> np.ndarray:
        """The remaining samples: with those before 256 for each frame."""
        if not self.received:
            return np.zeros(0, np.float32)
        self.frames = np.concatenate((self.frames, self.frames[-1:], self.frames[-1:]))
        return self._sound(HOP // STEP * self.received + HALF // STEP)

    def _sound(self, stop: int) -> np.ndarray:
        """Add the windows before ``stop``, and return the samples before the begin of the next one."""
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
        """Make pulses and noise up to sample ``stop``."""
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
        """The filtered source in these windows, (n, 513) complex64."""
        positions = windows * (STEP / HOP) - self.first  # in frames that are kept
        start = int(positions[0])
        voiced = between(self.frames[:, -1], positions) > 0
        logarithms = minimum_phase(self.frames[start : int(positions[-1]) + 2, :ENVELOPE])
        logarithms = between(logarithms.view(np.float32), positions - start).view(np.complex64)
        parts = np.lib.stride_tricks.sliding_window_view(self.source, WINDOW, axis=1)[:, : len(windows) * STEP : STEP]
        pulses, noise = fft.rfft(parts * (HANN * FFT), n=FFT, axis=2, norm="forward")  # other norms are in float64
        shares = shares_of_sources()[:, voiced.astype(np.int64)]
        pulses *= shares[0]
        noise *= shares[1]
        pulses += noise
        pulses *= polar(logarithms.real, logarithms.imag)
        return pulses


def between(rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rows (l, …) float32, interpolated linearly at positions (n,) in rows: (n, …)."""
    before = positions.astype(np.int64)
    share = (positions % 1).astype(np.float32).reshape(-1, *[1] * (rows.ndim - 1))
    found = rows[before]
    found *= 1 - share
    found += rows[before + 1] * share
    return found


def mel_bins(count: int) -> np.ndarray:
    """Bins, not rounded, of ``count`` frequencies that are equally spaced in mels (O'Shaughnessy 1987), 0 to 12 kHz."""
    mels = np.linspace(0, 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700), count)
    return 700 * (10 ** (mels / 2595) - 1) / (SAMPLE_RATE / 2) * (BINS - 1)


@cache
def shares_of_sources() -> np.ndarray:
    """Of pulses and of noise, in frames without and with a voice, at all bins: (2, 2, 513) float32."""
    noise = np.interp(np.arange(BINS), mel_bins(len(NOISE)), NOISE).astype(np.float32)
    noise = np.stack((np.ones_like(noise), noise))
    return np.stack((np.sqrt(np.maximum(1 - noise * noise, 0)), noise))


@cache
def envelope_positions() -> np.ndarray:
    """Where all bins lie among the numbers of an envelope, (513,) float64: below 63, so that a number follows each."""
    found = np.interp(np.arange(BINS), mel_bins(ENVELOPE), np.arange(ENVELOPE))
    return np.minimum(found, np.nextafter(ENVELOPE - 1, 0))


def minimum_phase(envelopes: np.ndarray) -> np.ndarray:
    """Log magnitudes at ``mel_bins`` (l, 64) float32 → the complex logarithms of the filters, (l, 513) complex64.

    By FFTs and not by a product: BLAS would share that among threads, which wait for each other beside other work.
    """
    logarithms = between(np.minimum(envelopes, LOUDEST).T, envelope_positions()).T
    cepstra = fft.irfft(logarithms, n=FFT, axis=1)
    cepstra[:, 1 : FFT // 2] *= 2
    cepstra[:, FFT // 2 + 1 :] = 0
    cepstra *= FFT
    return np.ascontiguousarray(fft.rfft(cepstra, axis=1, norm="forward"))  # NumPy's is not contiguous
