"""Compute Whisper's log-mel spectrogram of a recording, and cut it into windows (openai/whisper audio.py).

The arithmetic is float64, and the result is rounded to float32 once. Frames are computed in blocks, so that a long
recording needs little memory.
"""

from functools import lru_cache

import numpy as np

from ane.audio.mel import mel_filters

RATE = 16000  # Hz
WINDOW = 400  # samples in one Fourier transform
HOP = 160  # samples from one frame to the next
FRAME_SECONDS = HOP / RATE
WINDOW_SECONDS = 30  # length of the window that the encoder takes
FLOOR = 1e-10  # smallest power; smaller powers become this value before the logarithm
RANGE = 8.0  # logarithms that are lower than the largest one by more than this are raised to that level
BLOCK = 4096  # number of frames to compute together; they take 13 MB


def log_mel(audio: np.ndarray, bands: int, padding: int = 0) -> np.ndarray:
    """Compute the log-mel spectrogram of a whole recording.

    A frame is centred on every 160th sample. Beyond both ends, the sound is mirrored. The power of each frame is summed
    in mel bands from 0 to 8 kHz on Slaney's scale. Then x is the logarithm of this sum to base 10. Values of x that are
    more than 8 below the recording's largest x are raised to 8 below it. The result is (x + 4) / 4.

    Args:
        audio: The recording, (S,) float32 at 16 kHz.
        bands: Number of mel bands: 128 for large-v3, and 80 for all other models.
        padding: Number of zeros to append. S + padding must be more than 200.

    Returns:
        The spectrogram, (bands, (S + padding) // 160) float32. The last frame is left out, as in openai-whisper.
    """
    length = len(audio) + padding
    frames = length // HOP
    filters, window = whisper_filters(bands), np.hanning(WINDOW + 1)[:-1]
    result = np.empty((bands, frames), np.float32)
    # Frames that contain only appended zeros are not computed, because their power is FLOOR.
    sounding = min(frames, -(-(len(audio) + WINDOW // 2) // HOP)) if padding > WINDOW else frames
    result[:, sounding:] = np.log10(FLOOR)
    for start in range(0, sounding, BLOCK):
        end = min(start + BLOCK, sounding)
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
    """Return the samples from ``start`` to ``stop`` of the audio, padded with zeros to ``length``.

    Positions before the beginning and after the end are possible. There, the padded sound is mirrored around its first
    or last sample.
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
    """Return the mel filters: triangles of unit area on Slaney's scale from 0 to 8 kHz.

    The array is (bands, 201) float64, and read-only.
    """
    filters = mel_filters(RATE, bands, RATE / 2, "slaney", WINDOW)
    filters.flags.writeable = False
    return filters
