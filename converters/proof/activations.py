"""Compare the values inside a function with the outputs of the reference's modules, or with another run.

The reference's modules return several layouts (``COLUMNS_FIRST``, ``FRAMES``, ``PACKED``). Values of a package are (B,
C, 1, S), with padding. Both are compared as (rows, channels, columns), without padding.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn

from ane.backends.base import MASKED
from ane.backends.mil.interpreter import InterpreterState
from ane.backends.mil.package import ProgramFunction as Program
from ane.backends.packaged.functions import LoadedFunction, Runtime
from ane.bundles.package_records import FunctionRecord
from ane.models.tortoise.networks.diffusion_decoder import DiffusionLayer, IntegratingConv, TimestepResBlock
from ane.models.tortoise.networks.frames import FrameAttention, FrameConv, FrameNorm, PointwiseConv
from ane.system.decibels import snr_db
from converters.function_table import functions_of
from converters.proof.elements import ALONE, LayerComparison

MAX_DROP = 8.0  # dB below the lowest earlier value. A larger drop is drift
HEADROOM = 10.0  # dB above the function's threshold: the level that the first value is compared with
MAX_SNR = 200.0  # dB recorded for equal arrays. −200 is recorded for arrays that are not finite


@dataclass(frozen=True)
class ComparedValue:
    """A value of a function compared with its reference.

    Attributes:
        name: Name of the value.
        op: Type of the operation that computes it.
        error: Largest absolute difference.
        snr: Signal-to-noise ratio in dB, between ±``MAX_SNR``. It is −``MAX_SNR`` if a number is not finite.
        factor: Power of two that first multiplied the value, because residual streams are scaled.
        module: Module of the reference. ``None`` means that the reference is another run.
        lost: dB below the worst of the op's inputs. ``None`` means that the reference is a module.
        outside: Number of elements whose error exceeds the tolerance, or that are not finite.
        count: Number of all elements.
        identical: Whether all elements are equal.
        published: The authors' name for the value, or "" if there is none.
    """

    name: str
    op: str
    error: float
    snr: float
    factor: float = 1.0
    module: str | None = None
    lost: float | None = None
    outside: int = 0
    count: int = 0
    identical: bool = False
    published: str = ""


def compare(
    name: str,
    op: str,
    expected: np.ndarray,
    actual: np.ndarray,
    scaled: bool = False,
    layers: LayerComparison = ALONE,
    path: str = "",
) -> ComparedValue:
    """Compare two arrays.

    Args:
        name: Name of the value.
        op: Type of the operation that computes it.
        expected: The reference's array.
        actual: The package's array.
        scaled: Whether to multiply ``actual`` first by the power of two that fits best.
        layers: Keeps both arrays under ``path``.
        path: Key in ``layers`` (default: ``name``).
    """
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    if not (np.isfinite(expected).all() and np.isfinite(actual).all()):
        layers.keep(path or name, expected, actual)
        both = np.isfinite(expected) & np.isfinite(actual)
        return ComparedValue(name, op, float("inf"), -MAX_SNR, outside=int((~both).sum()), count=expected.size)
    factor = 1.0
    if scaled:
        product = (expected * actual).sum()
        factor = float(2.0 ** np.round(np.log2(product / np.square(actual).sum()))) if product > 0 else 1.0
    actual = factor * actual
    layers.keep(path or name, expected, actual)
    errors, snr = np.abs(expected - actual), float(np.clip(snr_db(expected, actual), -MAX_SNR, MAX_SNR))
    return ComparedValue(
        name,
        op,
        float(errors.max(initial=0)),
        snr,
        factor,
        count=expected.size,
        outside=int((errors > layers.tolerance).sum()),
        identical=not errors.any(),
    )


def first_drift(values: Sequence[ComparedValue], threshold: float) -> ComparedValue | None:
    """Return the first value that is more than ``MAX_DROP`` dB below all earlier ones.

    If there is none, return the first value that is as far below the threshold, or ``None``.
    """
    level = threshold + HEADROOM
    for value in values:
        if value.snr < level - MAX_DROP:
            return value
        level = min(level, value.snr)
    return next((value for value in values if value.snr < threshold - MAX_DROP), None)


ROUNDED = 73.0  # dB of numbers that were rounded to fp16 once
DECODER, VOCODERS = ("prefill", "step", "state"), ("univnet", "hifigan", "vocoder")

# Layouts of module outputs. All modules of these networks return (B, T, C) or (B, C), except convolutions. In other
# networks, FRAMES return (B, T, C), PACKED (B · T, C), and all others (B, C), (B, C, T) or (B, C, 1, T).
COLUMNS_FIRST = frozenset({"autoregressive", "clvp", "fastspeech", "encoder", "decoder"})
LAST_NORMS = {"autoregressive": "gpt.ln_f", "decoder": "ln"}  # last norms of decoders, which return every column
FRAMES = (FrameConv, FrameNorm)
PACKED = (PointwiseConv, FrameAttention, TimestepResBlock, DiffusionLayer, IntegratingConv)

NETWORK = "(the network)"  # shown in place of the empty path
DIGITS = re.compile(r"var_(\d+)")  # coremltools' name for a value named by a number

Activations = Iterator[tuple[str, str, np.ndarray]]  # (name, op type, float32 array), in program order


@dataclass(frozen=True)
class FunctionCall:
    """Arguments of a function call.

    ``state`` is a copy from before the call. ``None`` means that there is no state, or that it cannot be read.
    """

    inputs: Mapping[str, np.ndarray]
    state: InterpreterState | None
    compute_units: str


@runtime_checkable
class ReadableState(Protocol):
    """A state that can be copied, as the states of the interpreter and of Core AI can, but not Core ML's."""

    def copied(self) -> InterpreterState: ...


# runs a function of a package and yields its values. Raises UserError if it cannot
ActivationSource = Callable[[Path, str, FunctionCall], Activations]


def interpreted(engine: Any) -> ActivationSource:
    """Return a source of the values that an engine's functions return by themselves.

    The interpreter and Core AI are such engines.
    """
    return lambda package, function, call: engine.load(package, function, "").activations(
        call.inputs, call.state and call.state.copied()
    )


class CallRecorder(Runtime):
    """An engine that records calls.

    Attributes:
        calls: Last call of each function, by name.
        on_state: Names and inputs of all calls, by state.
    """

    def __init__(self, engine: Runtime):
        self.engine, self.name = engine, engine.name
        self.calls: dict[str, FunctionCall] = {}
        self.on_state: dict[int, list[tuple[str, Mapping[str, np.ndarray]]]] = {}
        self.states: list[Any] = []  # holds the states, so that no other state gets the same id

    def load(self, package: Path, function: str, compute_units: str) -> "RecordedFunction":
        return RecordedFunction(self, self.engine.load(package, function, compute_units), function, compute_units)

    def default_units(self, units: str) -> str:
        return self.engine.default_units(units)

    def unload(self, package: Path) -> None:
        self.engine.unload(package)


class RecordedFunction:
    """A loaded function whose calls a ``CallRecorder`` records."""

    def __init__(self, recorder: CallRecorder, loaded: LoadedFunction, name: str, compute_units: str):
        self.recorder, self.loaded, self.name, self.compute_units = recorder, loaded, name, compute_units

    def predict(self, inputs: Mapping[str, np.ndarray], state: Any = None) -> dict[str, np.ndarray]:
        copies = {key: np.array(array) for key, array in inputs.items()}  # the host writes to pools in place
        before = state.copied() if isinstance(state, ReadableState) else None
        self.recorder.calls[self.name] = FunctionCall(copies, before, self.compute_units)
        if state is not None:
            self.recorder.states.append(state)
            self.recorder.on_state.setdefault(id(state), []).append((self.name, copies))
        return self.loaded.predict(inputs, state)

    def make_state(self) -> Any:
        return self.loaded.make_state()


# Comparison with the reference's modules


@contextmanager
def hooked(modules: Mapping[str, nn.Module], record: Callable[[str, np.ndarray], None]) -> Iterator[None]:
    """Call ``record`` with a module's path and (first) output after each of its calls, while the block lasts."""

    def hook(path: str, output: Tensor | tuple) -> None:
        output = output[0] if isinstance(output, tuple) else output
        record(path, np.array(output.detach().float().cpu().numpy()))

    handles = [
        module.register_forward_hook(lambda _, inputs, output, path=path: hook(path, output))
        for path, module in modules.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class CapturedOutputs:
    """The outputs of the reference's modules in their last calls, by path.

    ``names`` are the names of the function's values.
    """

    def __init__(self, network: str, function: FunctionRecord, names: Iterable[str], reference: nn.Module):
        self.network, self.kind, self.bucket = network, function.kind, function.bucket
        self.row = functions_of(network, "coreml")[self.kind]
        self.last_norm = LAST_NORMS[network] if self.kind in DECODER else ""
        modules = dict(reference.named_modules())
        candidates = {name: self._module(name) for name in names}
        self.paths = {name: path for name, path in candidates.items() if path in modules}
        paths = {*self.paths.values(), *([self.last_norm] if self.kind in DECODER else [])}
        self._modules = {path: modules[path] for path in paths}
        self._outputs: dict[str, np.ndarray] = {}

    def _module(self, name: str) -> str | None:
        """Return the path of the module that computes the same as a value."""
        if name in self.row.outputs:
            return self.row.outputs[name]
        return DIGITS.sub(r"\1", name).replace("__", ".") or None

    @contextmanager
    def capture(self) -> Iterator[None]:
        with hooked(
            self._modules,
            lambda path, output: self._outputs.update({path: self._laid_out(self._modules[path], output)}),
        ):
            yield

    def __contains__(self, name: str) -> bool:
        return self.paths.get(name) in self._outputs

    def compare(
        self, name: str, op: str, actual: np.ndarray, call: FunctionCall, layers: LayerComparison
    ) -> ComparedValue | None:
        """Compare a value of the package with its module's output, or return ``None`` if their columns do not match."""
        path = self.paths[name]
        pair = self._cut(self._outputs[path], actual.reshape(*actual.shape[:2], -1), call)
        return pair and replace(
            compare(name, op, *pair, scaled=True, layers=layers, path=path or NETWORK), module=path or NETWORK
        )

    def _laid_out(self, module: nn.Module, output: np.ndarray) -> np.ndarray:
        """Return a module's output as (rows, channels, columns). The decoder's rows become columns."""
        if type(module) is nn.Sequential:
            module = module[-1]
        if isinstance(module, PACKED):
            rows = self.bucket.get("batch", 1)
        elif isinstance(module, FRAMES) or (self.network in COLUMNS_FIRST and not isinstance(module, nn.Conv1d)):
            rows = 1 if self.kind in DECODER else len(output)
        else:
            return output.reshape(*output.shape[:2], -1)
        return output.reshape(rows, -1, output.shape[-1]).swapaxes(1, 2)

    def _cut(
        self, expected: np.ndarray, actual: np.ndarray, call: FunctionCall
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the rows and columns that both arrays have."""
        rows = min(len(expected), len(actual))  # a package computes shared rows of a batch once
        expected, actual = expected[:rows], actual[:rows]
        if self.kind in DECODER:
            # the recorded call may be only the end of the reference's, which returns only the last logits
            valid = min(_columns(call.inputs["mask"]), self._outputs[self.last_norm].shape[2])
            expected, actual = expected[..., -valid:], actual[..., :valid]
            actual = actual[..., actual.shape[2] - expected.shape[2] :]
        elif self.kind in VOCODERS and actual.shape[2] > 1:
            frames = self.bucket["frames"]
            rate, rest = divmod(expected.shape[2], self._outputs["conv_pre"].shape[2])
            if rest or not rate:
                return None  # the module's output is cropped
            margin = (actual.shape[2] // rate - frames) // 2 * rate
            actual = actual[..., margin : margin + frames * rate]  # the recorded call is the first one of its sound
        width = min(expected.shape[2], actual.shape[2])
        return expected[..., :width], actual[..., :width]


def _columns(mask: np.ndarray) -> int:
    """Return the number of columns that attend to anything. These come first."""
    return int((mask[0, 0] > MASKED / 2).any(axis=-1).sum())


def compare_with_modules(
    captured: CapturedOutputs, activations: Activations, call: FunctionCall, layers: LayerComparison = ALONE
) -> list[ComparedValue]:
    """Return the values that have a module, in program order."""
    compared = (captured.compare(name, op, array, call, layers) for name, op, array in activations if name in captured)
    return [value for value in compared if value is not None]


# Comparison with another run


def compare_with_run(
    program: Program,
    call: FunctionCall,
    reference: ActivationSource,
    candidate: ActivationSource,
    package: Path,
    reference_package: Path | None = None,
    exact: float = ROUNDED,
) -> list[ComparedValue]:
    """Return all values that both runs of a call return, in program order, with the dB that each operation lost.

    Padding at the end is left out. Masked scores are left out too, because their magnitude would hide other errors.

    Args:
        program: The function.
        call: Arguments of the call.
        reference, candidate: Sources of the values of both runs.
        package: The package that the candidate runs.
        reference_package: The package that the reference runs, with the same values. ``None`` means the same package.
        exact: dB of values that have lost nothing.
    """
    call, length = _with_padding_filled(call), _length(call)
    producers = {name: op for op in program.ops for name in (*op.outputs, op.written_state)}
    compared: dict[str, ComparedValue] = {}
    runs = (
        reference(reference_package or package, program.name, call),
        (item for item in candidate(package, program.name, call) if item[0] in producers),
    )
    for (name, op, expected), actual in _pairs(*runs):
        if length and expected.ndim and expected.shape[-1] == call.inputs["inside"].shape[-1]:
            expected, actual = expected[..., :length], actual[..., :length]
        unmasked = expected > MASKED / 2
        value = compare(name, op, expected[unmasked], actual[unmasked])
        parts = {part for argument in producers[name].arguments.values() for part in argument if isinstance(part, str)}
        before = min([exact, *(compared[part].snr for part in parts if part in compared)])
        compared[name] = replace(value, lost=max(before - value.snr, 0.0))
    return list(compared.values())


def _with_padding_filled(call: FunctionCall) -> FunctionCall:
    """Return the call with a mask that lets the decoder's padding columns attend where its last true column attends.

    A fully masked column attends to everything, rounded at the mask's magnitude, which measures nothing.
    """
    mask = call.inputs.get("mask")
    if mask is None:
        return call
    mask, columns = mask.copy(), _columns(mask)
    mask[:, :, columns:] = mask[:, :, columns - 1 : columns]
    return replace(call, inputs={**call.inputs, "mask": mask})


def _length(call: FunctionCall) -> int | None:
    """Return the length before the padding of a bucket.

    It is ``None`` without padding, or with padding on both sides (vocoders).
    """
    inside = call.inputs.get("inside")
    return int(inside.sum()) if inside is not None and inside.flat[0] else None


def _pairs(reference: Activations, candidate: Activations) -> Iterator[tuple[tuple[str, str, np.ndarray], np.ndarray]]:
    """Yield the values that both yield, one by one. The candidate may leave some out."""
    actual = next(candidate, None)
    for expected in reference:
        if actual is not None and expected[0] == actual[0]:
            yield expected, actual[2]
            actual = next(candidate, None)
