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

from ane.models.vocoders.harmonic_noise import SAMPLE_RATE, fft, unit_harmonics

ENVELOPE = 64                       # numbers of a frame's envelope
PARAMETERS = ENVELOPE + 2
NOISE = 0.0, 0.0, 0.1, 0.2, 0.4, 0.5, 0.6, 0.8      # share of noise in voiced frames, by frequency
HOP, WINDOW, STEP, FFT = 256, 256, 64, 1024
BINS, HALF = FFT // 2 + 1, WINDOW // 2
MIDDLE, HIGHEST = 150.0, 11500.0    # Hz: from which octaves are counted; upper limit of the harmonics
OCTAVES, LOUDEST = 2, 7             # from the middle at most; log magnitude: what lies beyond is no speech
HANN = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)).astype(np.float32)
WEIGHT = WINDOW / STEP / 2          # what the windows over a sample add up to


class SourceFilter:
    """The sound of frames that arrive in pieces. ``random`` draws the noise, a number a sample."""

    def __init__(self, random: np.random.Generator):
        self.random = random
        self.frames = np.empty((0, PARAMETERS), np.float32)     # from ``first`` on: those that later samples depend on
        self.first = self.received = 0                          # frames
        self.windows = 0                                        # those that have been added
        self.source = np.zeros((2, HALF), np.float32)           # pulses and noise, from the start of the next window
        self.made = 0                                           # samples of the source
        self.pitches = 0.0                                      # sum of the pitch at these samples: exact in float64
        self.sums = np.zeros(FFT, np.float32)                   # of the windows, from the start of the next one

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
            sums[index * STEP:index * STEP + FFT] += window
        self.sums, self.source = sums[count * STEP:], self.source[:, count * STEP:]
        kept = stop * STEP // HOP - self.first
        self.frames, self.first = self.frames[kept:], self.first + kept
        return sums[max(-begin, 0):count * STEP] / np.float32(WEIGHT)

    def _at(self, positions: np.ndarray, columns: slice) -> np.ndarray:
        """Parameters between frames, (n, columns); positions in frames of the sound."""
        before = positions.astype(np.int64) - self.first
        share = (positions % 1).astype(np.float32)[:, None]
        frames = self.frames[:, columns]
        return frames[before] * (1 - share) + frames[before + 1] * share

    def _extend_source(self, stop: int) -> None:
        """Make pulses and noise up to sample ``stop``."""
        octaves, voicing = self._at(np.arange(self.made, stop) / HOP, slice(-2, None)).T
        pitch = np.float32(MIDDLE) * np.exp2(np.clip(octaves, -OCTAVES, OCTAVES))
        pitches = self.pitches + np.cumsum(pitch, dtype=np.float64)
        self.pitches = float(pitches[-1]) if len(pitches) else self.pitches
        pulses = unit_harmonics(pitches / SAMPLE_RATE, pitch, HIGHEST)
        pulses = np.where(voicing > 0, pulses * 2 * np.sqrt(pitch / SAMPLE_RATE), 0)
        noise = self.random.standard_normal(len(pulses), dtype=np.float32)
        self.source = np.concatenate((self.source, np.stack((pulses, noise)).astype(np.float32)), axis=1)
        self.made = stop

    def _spectra(self, windows: np.ndarray) -> np.ndarray:
        """The filtered source in these windows, (n, 513) complex64; never one alone, whose product BLAS may round in
        another way."""
        frames = self._at(windows * (STEP / HOP), slice(None))
        noisy = np.where(frames[:, -1:] > 0, shares_of_noise(), np.float32(1))
        parts = np.lib.stride_tricks.sliding_window_view(self.source, WINDOW, axis=1)[:, :len(windows) * STEP:STEP]
        pulses, noise = fft.rfft(parts * HANN, n=FFT, axis=2).astype(np.complex64, copy=False)
        filters = np.exp(np.minimum(frames[:, :ENVELOPE], LOUDEST) @ minimum_phase())
        return (pulses * np.sqrt(np.maximum(1 - noisy * noisy, 0)) + noise * noisy) * filters


def mel_bins(count: int) -> np.ndarray:
    """Bins, not rounded, of ``count`` frequencies that are equally spaced in mels (O'Shaughnessy 1987), 0 to 12 kHz."""
    mels = np.linspace(0, 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700), count)
    return 700 * (10 ** (mels / 2595) - 1) / (SAMPLE_RATE / 2) * (BINS - 1)


@cache
def interpolation(count: int) -> np.ndarray:
    """Numbers at ``mel_bins`` → at all bins: (count, 513) float32."""
    return np.stack([np.interp(np.arange(BINS), mel_bins(count), row) for row in np.eye(count)]).astype(np.float32)


@cache
def shares_of_noise() -> np.ndarray:
    """In a voiced frame, at all bins: (513,) float32."""
    return np.asarray(NOISE, np.float32) @ interpolation(len(NOISE))


@cache
def minimum_phase() -> np.ndarray:
    """Log magnitudes at ``mel_bins`` → the complex logarithm of the filter with minimum phase: (64, 513) complex64."""
    cepstra = np.fft.irfft(interpolation(ENVELOPE), n=FFT, axis=1)
    causal = np.zeros(FFT)
    causal[0] = causal[FFT // 2] = 1
    causal[1:FFT // 2] = 2
    return np.fft.rfft(cepstra * causal, axis=1).astype(np.complex64)
