"""Waves for the tests of sound."""

import numpy as np

RATE = 22050


def tone(seconds: float = 1.0, rate: int = RATE, peak: float = 0.5) -> np.ndarray:
    return (peak * np.sin(2 * np.pi * 220 * np.arange(round(seconds * rate)) / rate)).astype(np.float32)
