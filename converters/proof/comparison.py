"""Compares two tensors that should be equal: the numbers that `ane verify --layers` shows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ane.system.decibels import snr_db

MAX_DROP = 8.0      # dB below the lowest earlier value; a larger drop is drift
HEADROOM = 10.0     # dB above the function's threshold: the level that the first value is compared with
MAX_SNR = 200.0     # dB recorded for equal arrays; −200 for arrays that are not finite


@dataclass(frozen=True)
class ComparedValue:
    """A value of a function compared with its reference.

    Attributes:
        error: largest absolute difference. snr: in dB, between ±``MAX_SNR``; −``MAX_SNR`` when a number is not finite.
        factor: power of two that the value was first multiplied by, because residual streams are scaled.
        module: the reference's module; None if the reference is another run.
        lost: dB below the worst of the op's inputs; None if the reference is a module.
    """

    name: str
    op: str
    error: float
    snr: float
    factor: float = 1.0
    module: str | None = None
    lost: float | None = None


def compare(name: str, op: str, expected: np.ndarray, actual: np.ndarray, scaled: bool = False) -> ComparedValue:
    """Compare two arrays; ``scaled``: first multiply ``actual`` by the power of two that fits best."""
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    if not (np.isfinite(expected).all() and np.isfinite(actual).all()):
        return ComparedValue(name, op, float("inf"), -MAX_SNR)
    factor = 1.0
    if scaled:
        product = (expected * actual).sum()
        factor = float(2.0 ** np.round(np.log2(product / np.square(actual).sum()))) if product > 0 else 1.0
    snr = float(np.clip(snr_db(expected, factor * actual), -MAX_SNR, MAX_SNR))
    return ComparedValue(name, op, float(np.abs(expected - factor * actual).max(initial=0)), snr, factor)


def first_drift(values: Sequence[ComparedValue], threshold: float) -> ComparedValue | None:
    """The first value more than ``MAX_DROP`` dB below all earlier ones, else the first as far below the threshold."""
    level = threshold + HEADROOM
    for value in values:
        if value.snr < level - MAX_DROP:
            return value
        level = min(level, value.snr)
    return next((value for value in values if value.snr < threshold - MAX_DROP), None)
