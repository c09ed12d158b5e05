"""Store and run golden cases: random inputs for the functions in a package, and the outputs that they must return.

The converter makes the golden cases, with a seed, and stores them in the package as ``probes.safetensors``. When a
machine first loads a function, it runs the function's golden case and compares the outputs. The comparison reveals
wrong numbers, subnormal numbers that became zero, and reads from a stale cache, before anybody hears such faults.

Most golden cases are a single call. If functions share a state (a kv-cache inside the engine), a golden case is a
sequence of calls on a new state: first a call that writes to the state, and then a call that reads the state. Only the
outputs of the last call are compared.

To keep the file small, the converter stores only the first columns of an input with more than ``MOST_VALUES`` values.
``widened`` repeats these columns before the call. The converter stores at most ``SAMPLES`` values of an output.
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
MOST_VALUES = 2**18  # largest number of values to store for each input
SAMPLES = 4096  # largest number of values to compare for each output
STEPS = 200  # number of runs for functions with a kv-cache; Core ML is known to crash in call 2 and in calls 100 to 200
CACHED = "keys", "values"  # names of kv-cache inputs end in one of these words

Arrays = Mapping[str, np.ndarray]
Inputs = Mapping[str, tuple[Sequence[int], str]]  # shape and NumPy dtype of each input of a function, by name
Predict = Callable[[Arrays, Any], Arrays]  # (inputs, state) → outputs


@dataclass(frozen=True)
class GoldenCase:
    """The golden case of one function: a test with stored inputs and outputs that comes with the package.

    Attributes:
        calls: For each call, the name of the function and its inputs.
        expected: Expected outputs of the last call, cut by ``samples``, by name.
        threshold: Smallest signal-to-noise ratio to the expected output, in dB, that an output may have.
    """

    calls: Sequence[tuple[str, Arrays]]
    expected: Arrays
    threshold: float

    @classmethod
    def read(cls, package: Path, function: str, declared: Mapping[str, Inputs]) -> "GoldenCase | None":
        """Read a function's golden case (a stored test) from the package.

        Args:
            package: Folder of the package.
            function: Name of the function.
            declared: Shape and dtype of each input that the runtime passes to its engine, by function name.

        Returns:
            The golden case, or ``None`` if the converter stored none for this function.

        Raises:
            UserError: The file of the golden cases is damaged.
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
        """Return the lowest signal-to-noise ratio of these outputs to the expected outputs, in dB."""
        return min(snr_db(self.expected[name], samples(outputs[name])) for name in self.expected)

    def run(self, predict: Callable[[str], Predict], state: Callable[[], Any], steps: int = STEPS) -> float:
        """Run the golden case and return the lowest signal-to-noise ratio, in dB.

        If the functions have a kv-cache, the golden case runs ``steps`` times on the same state. Every second run
        negates the kv-cache. If an engine wrongly reads the cache of an earlier run, its outputs are therefore wrong.

        Args:
            predict: Function that takes the name of a function in the package and returns a callable for it.
            state: Function that creates a new state.
            steps: Number of runs if the functions have a kv-cache. Otherwise the golden case runs once.
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
    """Write golden cases, by function name, into a package. Raises UserError if the file cannot be written."""
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
    """Keep as many of an input's first columns as have at most ``MOST_VALUES`` values, but at least one column."""
    columns = max(1, MOST_VALUES * array.shape[-1] // max(array.size, 1)) if array.size > MOST_VALUES else None
    return np.ascontiguousarray(array[..., :columns])


def widened(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Repeat the columns of an input, which ``narrowed`` has cut, until the input has this shape."""
    missing = shape[-1] - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)], mode="wrap") if missing else array


def samples(array: np.ndarray) -> np.ndarray:
    """Take at most ``SAMPLES`` values, spread evenly over all axes of an array, as float32."""
    step = -(-array.size // SAMPLES)
    while step > 1 and math.gcd(step, array.size) > 1:
        step += 1
    return np.ascontiguousarray(array.reshape(-1)[::step], np.float32)
