"""Makes the golden probes of a package's functions (``ane.backends.packaged.probes``) when it is converted.

The inputs are those with which the function's own probe last called it, so that they are typical. What they must return
is computed by the interpreter in float32, which at the same time is compared with the networks on torch.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ane.backends.base import MASKED
from ane.backends.mil import Arithmetic, MilRuntime
from ane.backends.mil.package import Package
from ane.backends.packaged.functions import LoadedFunction, Runtime
from ane.backends.packaged.probes import FunctionProbe, narrowed, samples, widened

SLACK = 6.0             # dB below what fp16 reaches in the interpreter, subnormals kept or flushed
MOST = 60.0             # dB; any machine that computes a function right reaches it in fp32
FP16 = Arithmetic(fp16=True), Arithmetic(fp16=True, flush=True)


class CallRecorder(Runtime):
    """An engine that keeps the inputs of calls: of functions without a state the last, of a state those since it."""

    def __init__(self, engine: Runtime):
        self.engine, self.name = engine, engine.name
        self.single: dict[str, Mapping[str, np.ndarray]] = {}
        self.on_state: defaultdict[int, list[tuple[str, Mapping[str, np.ndarray]]]] = defaultdict(list)
        self.states: list[Any] = []         # kept, so that no other state gets the id of one

    def load(self, package: Path, function: str, compute_units: str) -> "CallOf":
        return CallOf(self, self.engine.load(package, function, compute_units), function)


class CallOf:
    """A loaded function that keeps its calls in a ``CallRecorder``."""

    def __init__(self, recorder: CallRecorder, loaded: LoadedFunction, function: str):
        self.recorder, self.loaded, self.function = recorder, loaded, function

    def predict(self, inputs: Mapping[str, np.ndarray], state: Any = None) -> dict[str, np.ndarray]:
        kept = {name: np.array(array) for name, array in inputs.items()}
        if state is None:
            self.recorder.single[self.function] = kept
        else:
            self.recorder.states.append(state)
            self.recorder.on_state[id(state)].append((self.function, kept))
        return self.loaded.predict(inputs, state)

    def make_state(self) -> Any:
        return self.loaded.make_state()


def golden_probe(recorder: CallRecorder, path: Path, name: str, threshold: float, fp16: bool) -> FunctionProbe | None:
    """The probe of a function of the package at ``path`` from calls that were recorded; None when it was not called.

    Args:
        threshold: dB that `ane verify` demands. fp16: whether it computes in fp16.
    """
    package = Package(path)
    calls = _calls(recorder, package, name)
    if not calls:
        return None
    rounded = []
    for called, inputs in calls:
        declared = package.function(called).inputs
        arrays = {key: array.astype({"fp16": np.float16, "int32": np.int32}.get(declared[key].dtype, np.float32))
                  for key, array in inputs.items()}
        arrays = {key: widened(narrowed(array), array.shape) for key, array in arrays.items()}
        rounded.append((called, used_columns(arrays)))

    def last(arithmetic: Arithmetic) -> Mapping[str, np.ndarray]:
        engine = MilRuntime(arithmetic, {path: package})
        functions = {called: engine.load(path, called, "CPU_ONLY") for called, _ in rounded}
        state = functions[rounded[0][0]].make_state()
        for called, inputs in rounded:
            outputs = functions[called].predict(inputs, state)
        return outputs

    probe = FunctionProbe(rounded, {key: samples(array) for key, array in last(Arithmetic()).items()}, 0.0)
    reached = [probe.decibels(last(arithmetic)) for arithmetic in (FP16 if fp16 else ())]
    return FunctionProbe(rounded, probe.expected, round(min(MOST, threshold, *(dB - SLACK for dB in reached)), 1))


def used_columns(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs of a decoder's function, with its first column in place of those that were not used.

    A column that sees nothing has scores of -10,000 and a little, which fp16 cannot tell apart; its values are dropped.
    """
    if "mask" not in inputs or "x" not in inputs:
        return dict(inputs)
    x, mask = inputs["x"].copy(), inputs["mask"].copy()
    unused = (mask[0, 0] <= MASKED).all(axis=-1) | ~x[0, :, 0].any(axis=0)
    x[..., unused], mask[:, :, unused] = x[..., :1], mask[:, :, :1]
    return {**inputs, "x": x, "mask": mask}


def _calls(recorder: CallRecorder, package: Package, name: str) -> list[tuple[str, Mapping[str, np.ndarray]]]:
    """The last call of a function, after what was stored before it; of a store, all until the first that reads them."""
    if name in recorder.single:
        return [(name, recorder.single[name])]
    for calls in reversed(recorder.on_state.values()):
        names = [called for called, _ in calls]
        if name in names:
            writes = [_writes(package, called) for called in names]
            last = len(names) - 1 - names[::-1].index(name)
            if writes[last]:
                last = next((index for index in range(last, len(names)) if not writes[index]), last)
            return [call for index, call in enumerate(calls) if index == last or (writes[index] and index < last)]
    return []


def _writes(package: Package, function: str) -> bool:
    return any(op.written_state for op in package.function(function).ops)
