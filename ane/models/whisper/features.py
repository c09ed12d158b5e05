"""Whisper's log-mel spectrogram, and the windows that it is cut into (openai/whisper audio.py).

Computed in float64 and rounded once, block by block, so that a long recording needs little memory.
"""

from functools import lru_cache

import numpy as np

from ane.audio.mel import mel_filters

RATE = 16000  # Hz
WINDOW = 400  # samples of one Fourier transform
HOP = 160  # samples from one frame to the next
FRAME_SECONDS = HOP / RATE
WINDOW_SECONDS = 30  # of sound that the encoder takes at a time
FLOOR = 1e-10  # smallest power whose logarithm is taken
RANGE = 8.0  # decades below the loudest value that are kept
BLOCK = 4096  # frames computed at a time: 13 MB


def log_mel(audio: np.ndarray, bands: int, padding: int = 0) -> np.ndarray:
    """The log-mel spectrogram of a whole recording, scaled by its loudest value.

    Power of frames centred on every 160th sample, the ends mirrored; bands of 0–8 kHz on Slaney's scale; log10,
    limited to 8 decades below the loudest value of all frames, then (x + 4) / 4.

    Args:
        audio: (S,) float32 at 16 kHz. padding: zeros to append. S + padding must be more than 200.
        bands: 80, or 128 for large-v3.

    Returns:
        (bands, (S + padding) // 160) float32: the last frame is left out, as in the reference.
    """
    length = len(audio) + padding
    frames = length // HOP
    filters, window = whisper_filters(bands), np.hanning(WINDOW + 1)[:-1]
    result = np.empty((bands, frames), np.float32)
    for start in range(0, frames, BLOCK):
        end = min(start + BLOCK, frames)
        first = start * HOP - WINDOW // 2
        block = mirrored(audio, length, first, first + (end - start - 1) * HOP + WINDOW).astype(np.float64)
        spectrum = np.fft.rfft(np.lib.stride_tricks.sliding_window_view(block, WINDOW)[::HOP] * window)
        power = spectrum.real**2 + spectrum.imag**2  # (frames, 201)
        result[:, start:end] = np.log10(np.maximum(filters @ power.T, FLOOR))
    if frames:
        np.maximum(result, result.max() - np.float32(RANGE), out=result)
    result += 4
    result /= 4
    return result


def mirrored(audio: np.ndarray, length: int, start: int, stop: int) -> np.ndarray:
    """Samples ``start`` … ``stop`` of the audio with zeros appended up to ``length``, both ends mirrored around their
    last sample.
    """
    if start >= 0 and stop <= len(audio):
        return audio[start:stop]
    positions = np.abs(np.arange(start, stop))
    positions = np.minimum(positions, 2 * (length - 1) - positions)
    block, known = np.zeros(stop - start, audio.dtype), positions < len(audio)
    block[known] = audio[positions[known]]
    return block


def pad_or_cut(array: np.ndarray, length: int) -> np.ndarray:
    """Cut the last axis to ``length``, or append zeros to it."""
    array = array[..., :length]
    missing = length - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)]) if missing else array


@lru_cache(maxsize=2)
def whisper_filters(bands: int) -> np.ndarray:
    """Triangular filters of unit area on Slaney's scale, 0–8 kHz: (bands, 201) float64, read-only."""
    filters = mel_filters(RATE, bands, RATE / 2, "slaney", WINDOW)
    filters.flags.writeable = False
    return filters
