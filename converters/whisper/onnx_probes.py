"""Test inputs for Whisper's ONNX graphs: the probes of ``converters.whisper.probes``, and that of ONNX alone.

ONNX graphs take any length; each is probed with another length than it was traced with.
"""

from collections.abc import Mapping

import numpy as np

from ane.backends.base import Backend
from ane.bundles import Model
from converters.models import Probe
from converters.whisper import probes

# kind → the lengths it is probed with; the inputs are a little shorter
LENGTHS: dict[str, dict[str, int]] = {
    "prefill": {"columns": 20}, "step": {"columns": 4}, "step_prefixes": {"lanes": 5}}


def step(backend: Backend, model: Model, lengths: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Lanes of one window that advance, one of which restarts, then several positions at once on one lane."""
    lanes = lengths["columns"]
    decoder = backend.decoder(lanes, 6)
    decoder.set_memory(probes.states(model, rng))
    outputs = [*decoder.prefill(probes.columns(backend, rng, 1, probes.PREFIX)[0])]
    length = np.zeros(lanes, dtype=np.int64)
    for index in range(3):
        length[-1] *= index != 2
        outputs += decoder.step(probes.columns(backend, rng, lanes, 1, probes.PREFIX), length)
        length += 1
    return [*outputs, *decoder.step(probes.columns(backend, rng, 1, 3, probes.PREFIX), length[-1:], lanes - 1)]


def step_prefixes(backend: Backend, model: Model, lengths: Mapping[str, int],
                  rng: np.random.Generator) -> list[np.ndarray]:
    """Lanes of several windows, more of one than of another, at different positions; one lane changes its window."""
    lanes, windows = lengths["lanes"], 3
    decoder = backend.decoder(lanes, 6, windows, probes.PREFIX)
    for window in range(windows):
        decoder.set_memory(probes.states(model, rng), window)
        decoder.prefill(probes.columns(backend, rng, 1, probes.PREFIX - window)[0], window)
    window_of, length = np.arange(lanes) ** 2 % windows, np.zeros(lanes, dtype=np.int64)
    outputs = [*decoder.step(probes.columns(backend, rng, lanes, 2, probes.PREFIX), length, 0, window_of)]
    length += 1 + np.arange(lanes) % 2
    window_of[0], length[0] = 2, 0
    return [*outputs, *decoder.step(probes.columns(backend, rng, lanes, 1, probes.PREFIX), length, 0, window_of)]


PROBES: dict[str, Probe] = probes.PROBES | {"step": step, "step_prefixes": step_prefixes}
