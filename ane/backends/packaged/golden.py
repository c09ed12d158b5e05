"""Store and repeat golden cases: seeded inputs of a package's functions, and the outputs that any machine must give.

A conversion makes them and stores them in the package as ``probes.safetensors``. When a machine first loads a function,
it runs the function's golden case. So wrong or flushed values, and values from a stale cache, are noticed before
anything is spoken. A golden case is a sequence of calls on one new state, and the last call is compared. For most
functions it is a single call. If a function has a state, the case stores into it, and then calls a function that reads
it.

The file stays small. It stores the first columns of an input with more than ``MOST_VALUES`` values, which are then
repeated, and ``SAMPLES`` values of an output.
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
MOST_VALUES = 2**18  # largest number of values to store of an input
SAMPLES = 4096  # largest number of values to compare of an output
STEPS = 200  # calls of functions with a cache; known crashes come at the 2nd call, and at the 100th to 200th
CACHED = "keys", "values"  # ends of the names of inputs that form a cache

Arrays = Mapping[str, np.ndarray]
Inputs = Mapping[str, tuple[Sequence[int], str]]  # shape and NumPy dtype of a function's inputs, by name
Predict = Callable[[Arrays, Any], Arrays]  # inputs, state → outputs


@dataclass(frozen=True)
class GoldenCase:
    """The golden case of one function.

    Attributes:
        calls: Function name and inputs of each call.
        expected: Samples of the outputs that the last call must return, by name.
        threshold: Signal-to-noise ratio in dB that they must reach.
    """

    calls: Sequence[tuple[str, Arrays]]
    expected: Arrays
    threshold: float

    @classmethod
    def read(cls, package: Path, function: str, declared: Mapping[str, Inputs]) -> "GoldenCase | None":
        """Read the golden case of a package's function.

        Args:
            package: Folder of the package.
            function: Name of the function.
            declared: Inputs of each function, as they are passed to the engine.

        Returns:
            The case, or ``None`` if the package was converted without it.

        Raises:
            UserError: The file is damaged.
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
                for key in file.keys():  # noqa: SIM118  it is not a dict
                    owner, index, called, name = key.split("/")
                    if owner == function and index == EXPECTED:
                        expected[name] = file.get_tensor(key)
                    elif owner == function:
                        shape, dtype = declared[called][name]
                        array = widened(file.get_tensor(key), shape).astype(dtype)
                        calls.setdefault(int(index), (called, {}))[1][name] = array
                return cls([calls[index] for index in sorted(calls)], expected, float(threshold))
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise UserError(f"{package / FILE} is damaged: {error}: convert the model again") from error

    def decibels(self, outputs: Arrays) -> float:
        """Return the lowest signal-to-noise ratio of the outputs, in dB."""
        return min(snr_db(self.expected[name], samples(outputs[name])) for name in self.expected)

    def run(self, predict: Callable[[str], Predict], state: Callable[[], Any], steps: int = STEPS) -> float:
        """Run the case and return its lowest dB. A function with a cache runs it ``steps`` times.

        Every other run has a cache with the opposite sign, so that an engine that reads an older cache is noticed.

        Args:
            predict: Returns the call of a function by its name.
            state: Creates a new state.
            steps: Number of runs.
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
                measured = self.decibels(outputs)
            else:
                now = GoldenCase((), {name: samples(outputs[name]) for name in self.expected}, 0)
                opposite = opposite or now
                measured = opposite.decibels(outputs)
            lowest = min(lowest, measured)
            if not lowest >= self.threshold:
                break
        return lowest


def write_golden_cases(package: Path, cases: Mapping[str, GoldenCase]) -> None:
    """Write the golden cases of a package's functions into it. Raises UserError if that fails."""
    with replacing(package / FILE) as path:
        save_file(dict(_stored(cases)), path, {name: str(case.threshold) for name, case in cases.items()})


def _stored(cases: Mapping[str, GoldenCase]) -> Iterator[tuple[str, np.ndarray]]:
    for function, case in cases.items():
        for index, (called, inputs) in enumerate(case.calls):
            for name, array in inputs.items():
                yield f"{function}/{index}/{called}/{name}", narrowed(array)
        for name, array in case.expected.items():
            yield f"{function}/{EXPECTED}/{function}/{name}", array


def narrowed(array: np.ndarray) -> np.ndarray:
    """Return the first columns of an input: at most ``MOST_VALUES`` values, but at least one column."""
    columns = max(1, MOST_VALUES * array.shape[-1] // max(array.size, 1)) if array.size > MOST_VALUES else None
    return np.ascontiguousarray(array[..., :columns])


def widened(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Repeat the columns of ``array`` until the input has this shape."""
    missing = shape[-1] - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)], mode="wrap") if missing else array


def samples(array: np.ndarray) -> np.ndarray:
    """Return at most ``SAMPLES`` values of an array, float32, spread evenly over all axes."""
    step = -(-array.size // SAMPLES)
    while step > 1 and math.gcd(step, array.size) > 1:
        step += 1
    return np.ascontiguousarray(array.reshape(-1)[::step], np.float32)
