"""Golden probes: for each function of a Core ML package, seeded inputs and what they must return on any machine.

They are made at conversion and stored in the package as ``probes.safetensors``. The first load of a function on a
machine repeats its probe there, so that values that are wrong, flushed or of a stale cache are noticed before anything
is spoken. A probe is a sequence of calls on one new state, of which the last is compared: a single call for most
functions; stores into a state and a call that reads it for those with states.

The file stays small: inputs of more than ``MOST_VALUES`` values are their first columns, repeated, and outputs are
compared in ``SAMPLES`` values each.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ane.system.decibels import snr_db
from ane.system.errors import UserError
from ane.system.files import replacing

FILE = "probes.safetensors"
EXPECTED = "expected"
OTHER_VALUES = "it returns other values"
MOST_VALUES = 2**18  # stored of an input
SAMPLES = 4096  # compared of an output
STEPS = 200  # calls of functions with a cache: known crashes come at the 2nd and the 100th to 200th
CACHED = "keys", "values"  # ends of the names of inputs that a cache consists of

Arrays = Mapping[str, np.ndarray]
Inputs = Mapping[str, tuple[Sequence[int], str]]  # of a function: shape and NumPy dtype by name
Predict = Callable[[Arrays, Any], Arrays]  # inputs, state → outputs


@dataclass(frozen=True)
class GoldenCase:
    """The probe of one function.

    Attributes:
        calls: function and inputs of each. expected: samples of what the last one returns.
        threshold: dB that these must reach.
    """

    calls: Sequence[tuple[str, Arrays]]
    expected: Arrays
    threshold: float

    @classmethod
    def read(cls, package: Path, function: str, declared: Mapping[str, Inputs]) -> "GoldenCase | None":
        """The probe of a package's function; None when the package was converted without it.

        ``declared``: the inputs of each function, as they are passed to the engine. Raises UserError when the file is
        damaged.
        """
        if not (package / FILE).is_file():
            return None
        try:
            with safe_open(package / FILE, "np") as file:
                threshold = (file.metadata() or {}).get(function)
                if threshold is None:
                    return None
                calls: dict[int, tuple[str, dict[str, np.ndarray]]] = {}
                expected = {}
                for key in file.keys():  # noqa: SIM118  it is no dict
                    owner, index, called, name = key.split("/")
                    if owner == function and index == EXPECTED:
                        expected[name] = file.get_tensor(key)
                    elif owner == function:
                        shape, dtype = declared[called][name]
                        array = widened(file.get_tensor(key), shape).astype(dtype)
                        calls.setdefault(int(index), (called, {}))[1][name] = array
                return cls([calls[index] for index in sorted(calls)], expected, float(threshold))
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise UserError(f"{package / FILE} is damaged: {error}; convert the model again") from error

    def decibels(self, outputs: Arrays) -> float:
        """The lowest signal-to-noise ratio of the outputs."""
        return min(snr_db(self.expected[name], samples(outputs[name])) for name in self.expected)

    def repeat(self, predict: Callable[[str], Predict], state: Callable[[], Any], steps: int = STEPS) -> float:
        """The lowest dB of a call, and of ``steps`` of them in a function with a cache.

        Every other call has a cache of the opposite sign, so that an engine which reads an older cache is found.

        Args:
            predict: the call of a function, by name. state: makes a new state.
        """
        cached = any(name.endswith(CACHED) for _, inputs in self.calls for name in inputs)
        negated = [
            (called, {name: -array if name.endswith(CACHED) else array for name, array in inputs.items()})
            for called, inputs in self.calls
        ]
        predicts = {called: predict(called) for called, _ in self.calls}
        current, opposite, lowest = state(), None, math.inf
        for step in range(steps if cached else 1):
            for called, inputs in negated if step % 2 else self.calls:
                outputs = predicts[called](inputs, current)
            if step % 2 == 0:
                found = self.decibels(outputs)
            else:
                now = GoldenCase((), {name: samples(outputs[name]) for name in self.expected}, 0)
                opposite = opposite or now
                found = opposite.decibels(outputs)
            lowest = min(lowest, found)
            if not lowest >= self.threshold:
                break
        return lowest


def write_golden_cases(package: Path, probes: Mapping[str, GoldenCase]) -> None:
    """Write the probes of a package's functions into it. Raises UserError when that fails."""
    with replacing(package / FILE) as path:
        save_file(dict(_stored(probes)), path, {name: str(probe.threshold) for name, probe in probes.items()})


def _stored(probes: Mapping[str, GoldenCase]) -> Iterator[tuple[str, np.ndarray]]:
    for function, probe in probes.items():
        for index, (called, inputs) in enumerate(probe.calls):
            for name, array in inputs.items():
                yield f"{function}/{index}/{called}/{name}", narrowed(array)
        for name, array in probe.expected.items():
            yield f"{function}/{EXPECTED}/{function}/{name}", array


def narrowed(array: np.ndarray) -> np.ndarray:
    """The first columns of an input, ``MOST_VALUES`` values or one column at most."""
    columns = max(1, MOST_VALUES * array.shape[-1] // max(array.size, 1)) if array.size > MOST_VALUES else None
    return np.ascontiguousarray(array[..., :columns])


def widened(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """An input of this shape, whose columns are those of ``array``, repeated."""
    missing = shape[-1] - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)], mode="wrap") if missing else array


def samples(array: np.ndarray) -> np.ndarray:
    """At most ``SAMPLES`` values of an array, float32, evenly spread over all axes."""
    step = -(-array.size // SAMPLES)
    while step > 1 and math.gcd(step, array.size) > 1:
        step += 1
    return np.ascontiguousarray(array.reshape(-1)[::step], np.float32)
