"""Measure the loudness, true peak and level of mono sound (ITU-R BS.1770-4, EBU R 128), and limit its peaks.

The sound may arrive in pieces. The two filters of the K-weighting are applied as one finite impulse response, because
NumPy convolves fast. The part of the response that is cut off is below -140 dB. The filters' coefficients for any
sample rate come from libebur128 (MIT).
"""

import math
from functools import cache

import numpy as np

ABSOLUTE_GATE = -70.0  # LUFS (BS.1770-4, annex 1)
RELATIVE_GATE = -10.0  # LU, relative to the loudness of all blocks above the absolute gate
OFFSET = -0.691  # dB, so that a sine of 997 Hz at full scale in one channel has -3.01 LUFS
RESPONSE = 0.2  # length of the filters' impulse response in seconds
OVERSAMPLING = 4  # true peaks are measured at this many times the sample rate (BS.1770-4, annex 2)
TAPS = 32  # taps per phase of the oversampling filter
LOOKAHEAD = 0.02  # the limiter lowers the sound this many seconds before and after a peak


class LoudnessMeter:
    """A meter of integrated loudness, true peak, RMS level and noise floor. ``feed`` adds sound to the measurement."""

    def __init__(self, rate: int):
        self.rate, self._hop = rate, round(0.1 * rate)
        self._response = k_weighting(rate)
        self._tail = np.zeros(len(self._response) - 1)  # end of the last convolution, which is added to the next piece
        self._rest = np.zeros((2, 0))
        self._powers: list[np.ndarray] = []  # mean squares of 100 ms, (2, n): row 0 is K-weighted, row 1 is unweighted
        self._context = np.zeros(TAPS, np.float32)
        self.peak = 0.0

    def feed(self, audio: np.ndarray) -> None:
        """Add sound (S,) float32 to the measurement."""
        if not len(audio):
            return
        size = len(audio) + len(self._tail)
        length = 1 << (size - 1).bit_length()
        spectrum = np.fft.rfft(audio.astype(np.float64), length) * np.fft.rfft(self._response, length)
        filtered = np.fft.irfft(spectrum, length)[:size]
        filtered[: len(self._tail)] += self._tail
        self._tail = filtered[len(audio) :]
        hops = np.concatenate((self._rest, np.stack((filtered[: len(audio)], audio))), axis=1)
        whole = hops.shape[1] // self._hop * self._hop
        self._rest = hops[:, whole:]
        self._powers.append(np.square(hops[:, :whole]).reshape(2, -1, self._hop).mean(axis=2))
        together = np.concatenate((self._context, audio))
        known = true_peaks(together)[TAPS // 2 : -(TAPS // 2)]  # peaks at samples whose neighbours are known
        self.peak = max(self.peak, float(known.max(initial=0.0)))
        self._context = together[-TAPS:]

    def include(self, other: "LoudnessMeter") -> None:
        """Add the sound that another meter has measured to this measurement."""
        self._powers += other._powers
        self.peak = max(self.peak, other.peak)

    def _hops(self, row: int) -> np.ndarray:
        return np.concatenate([np.zeros(0), *(powers[row] for powers in self._powers)])

    @property
    def rms(self) -> float:
        """The RMS level of the whole sound in dB: 0 for a square wave at full scale, and -inf for silence."""
        powers = self._hops(1)
        return 10 * math.log10(powers.mean()) if powers.any() else -math.inf

    @property
    def noise_floor(self) -> float:
        """The RMS level of the quietest half second in dB.

        The level is -inf for silence, and for less than half a second of sound.
        """
        powers = self._hops(1)
        quietest = np.convolve(powers, np.full(5, 0.2), "valid").min() if len(powers) >= 5 else 0.0
        return 10 * math.log10(quietest) if quietest > 0 else -math.inf

    @property
    def true_peak(self) -> float:
        """True peak in dBTP, or -inf for silence."""
        return 20 * math.log10(self.peak) if self.peak else -math.inf

    @property
    def loudness(self) -> float:
        """Integrated loudness in LUFS, or -inf if no block of 400 ms is above the absolute gate."""
        powers = self._hops(0)
        if len(powers) < 4:
            return -math.inf
        blocks = np.convolve(powers, np.full(4, 0.25), "valid")  # a block of 400 ms begins every 100 ms
        blocks = blocks[blocks > 10 ** ((ABSOLUTE_GATE - OFFSET) / 10)]
        if not len(blocks):
            return -math.inf
        blocks = blocks[blocks > blocks.mean() * 10 ** (RELATIVE_GATE / 10)]
        return OFFSET + 10 * math.log10(blocks.mean())


class PeakLimiter:
    """A limiter that multiplies sound by ``gain``, and by less where its true peak would exceed ``ceiling``.

    For each sample, the limiter looks for peaks within ``LOOKAHEAD`` seconds before and after the sample. It finds the
    lowest gain that any of these peaks needs. The limiter then multiplies each sample by the weighted mean of the
    lowest gains within ``LOOKAHEAD`` seconds, so that the gain changes smoothly. If the sample is a peak, all these
    gains are low enough for it, and so is their mean.
    """

    def __init__(self, rate: int, gain: float, ceiling: float):
        self.gain, self.ceiling, self._reach = gain, ceiling, max(1, round(LOOKAHEAD * rate))
        self._margin = 2 * self._reach + TAPS
        self._held = np.zeros(self._margin, np.float32)
        window = np.hanning(2 * self._reach + 3)[1:-1]
        self._window = window / window.sum()

    def feed(self, audio: np.ndarray) -> np.ndarray:
        """Take the next samples (S,) float32, and return the samples that are ready, (n,) float32."""
        sound = np.concatenate((self._held, audio * np.float32(self.gain)))
        ready = len(sound) - 2 * self._margin
        if ready <= 0:
            self._held = sound
            return sound[:0]
        self._held = sound[ready:]
        limited = sound[self._margin : self._margin + ready]
        needed = np.minimum(1.0, self.ceiling / np.maximum(true_peaks(sound), 1e-9))
        if needed.min() < 1:
            least = sliding_minimum(needed, 2 * self._reach + 1)
            gains = np.convolve(least, self._window, "valid")  # (len(sound) - 4 * reach,)
            limited = (limited * gains[TAPS : TAPS + ready]).astype(np.float32)
        return limited

    def finish(self) -> np.ndarray:
        """Return the sound that is still held, (n,) float32. Call this after the last ``feed``."""
        self.gain = 1.0
        return self.feed(np.zeros(self._margin, np.float32))


@cache
def k_weighting(rate: int) -> np.ndarray:
    """Compute the impulse response of the K-weighting, the two filters of BS.1770-4, (N,) float64."""
    k, quality = math.tan(math.pi * 1681.974450955533 / rate), 0.7071752369554196
    high = 10 ** (3.999843853973347 / 20)
    band = high**0.4996667741545416
    shelf = (
        [high + band * k / quality + k * k, 2 * (k * k - high), high - band * k / quality + k * k],
        [1 + k / quality + k * k, 2 * (k * k - 1), 1 - k / quality + k * k],
    )
    k, quality = math.tan(math.pi * 38.13547087602444 / rate), 0.5003270373238773
    norm = 1 + k / quality + k * k
    high_pass = ([norm, -2 * norm, norm], [norm, 2 * (k * k - 1), 1 - k / quality + k * k])
    response = np.zeros(round(RESPONSE * rate))
    response[0] = 1.0
    for numerator, denominator in (shelf, high_pass):
        response = _filtered(response, numerator, denominator)
    return response


def _filtered(signal: np.ndarray, numerator: list[float], denominator: list[float]) -> np.ndarray:
    """Apply a second-order recursive filter (transposed direct form II)."""
    b, a = np.array(numerator) / denominator[0], np.array(denominator) / denominator[0]
    result, first, second = np.empty_like(signal), 0.0, 0.0
    for index, value in enumerate(signal):
        out = b[0] * value + first
        first, second = b[1] * value - a[1] * out + second, b[2] * value - a[2] * out
        result[index] = out
    return result


def true_peaks(audio: np.ndarray) -> np.ndarray:
    """Find the true peak between each sample and the next sample, by oversampling by four.

    Input and output have the shape (S,).
    """
    peaks = np.abs(audio).astype(np.float64)
    positions = np.arange(TAPS) - TAPS // 2 + 1
    for phase in range(1, OVERSAMPLING):
        distance = positions - phase / OVERSAMPLING
        taps = np.sinc(distance) * np.cos(np.pi * distance / (TAPS + 1)) ** 2
        between = np.convolve(audio, taps[::-1] / taps.sum())[TAPS // 2 :][: len(audio)]
        np.maximum(peaks, np.abs(between), out=peaks)
    return peaks


def sliding_minimum(values: np.ndarray, width: int) -> np.ndarray:
    """Compute the minimum of every ``width`` successive values: (S,) → (S - width + 1,).

    The time does not depend on the width. The algorithm is from van Herk 1992, "A fast algorithm for local minimum and
    maximum filters".
    """
    rows = -(-len(values) // width)
    blocks = np.concatenate((values, np.full(rows * width - len(values), np.inf))).reshape(rows, width)
    forward = np.minimum.accumulate(blocks, axis=1).ravel()
    backward = np.minimum.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
    count = len(values) - width + 1
    return np.minimum(backward[:count], forward[width - 1 : width - 1 + count])
