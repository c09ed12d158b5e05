"""The mel that the fast voice is trained on: that of jik876's and NVIDIA's HiFi-GAN, which FastSpeech predicts."""

import numpy as np

from ane.audio.mel import FLOOR, HOP, WINDOW, mel_filters
from ane.models.fastspeech.stages import HIGHEST, SAMPLE_RATE

BANDS = 80
EDGE = (WINDOW - HOP) // 2      # samples mirrored at each end, so that frame i is centred on sample 256·i + 128


def trained_mel(audio: np.ndarray) -> np.ndarray:
    """Audio (256·L,) float32 at 22.05 kHz → (80, L) float32: natural logarithms of magnitudes in bands of 0–8 kHz."""
    window = np.hanning(WINDOW + 1)[:-1].astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(audio, EDGE, mode="reflect"), WINDOW)[::HOP]
    magnitude = np.abs(np.fft.rfft(frames * window))
    bands = mel_filters(SAMPLE_RATE, BANDS, HIGHEST, "slaney").astype(np.float32) @ magnitude.T
    return np.log(np.maximum(bands, FLOOR)).astype(np.float32)
