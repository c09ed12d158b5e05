"""Compare the values inside a function with the outputs of PyTorch modules, or with another run of the function.

A value is an array that an operation of the function computes. In a package, values have the shape (B, C, 1, S), with
padding. Modules of the PyTorch network, which is the reference, return several layouts (``COLUMNS_FIRST``, ``FRAMES``,
``PACKED``). Both are converted to (rows, channels, columns), without padding, and then compared.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from converters.function_table import functions_of
from converters.proof.elements import ALONE, ComparedValue, LayerComparison, compare

ROUNDED = 73.0  # SNR in dB of numbers that were rounded to fp16 once
DECODER, VOCODERS = ("prefill", "step", "state"), ("univnet", "hifigan", "vocoder")

# Layouts of module outputs. In the networks COLUMNS_FIRST, all modules except convolutions return (B, T, C) or (B, C).
# In other networks, modules of the classes FRAMES return (B, T, C), modules of the classes PACKED return (B · T, C),
# and all other modules return (B, C), (B, C, T) or (B, C, 1, T).
COLUMNS_FIRST = frozenset({"autoregressive", "clvp", "fastspeech", "encoder", "decoder"})
LAST_NORMS = {"autoregressive": "gpt.ln_f", "decoder": "ln"}  # decoder → its last module that returns every column
FRAMES = (FrameConv, FrameNorm)
PACKED = (PointwiseConv, FrameAttention, TimestepResBlock, DiffusionLayer, IntegratingConv)

NETWORK = "(the network)"  # shown instead of the empty path
DIGITS = re.compile(r"var_(\d+)")  # coremltools writes the name 12 as var_12

Activations = Iterator[tuple[str, str, np.ndarray]]  # (name, op type, float32 array), in program order


@dataclass(frozen=True)
class FunctionCall:
    """The arguments of one call of a function.

    Attributes:
        inputs: Input arrays, by name.
        state: Copy of the state before the call. ``None`` means that the function has no state, or that the engine
            cannot copy it.
        compute_units: Compute units of Core ML.
    """

    inputs: Mapping[str, np.ndarray]
    state: InterpreterState | None
    compute_units: str


@runtime_checkable
class ReadableState(Protocol):
    """A state that can be copied, as on the interpreter and Core AI. Core ML's states cannot be copied."""

    def copied(self) -> InterpreterState: ...


# runs a function of a package, and yields the values inside it. Raises UserError if this is not possible
ActivationSource = Callable[[Path, str, FunctionCall], Activations]


def interpreted(engine: Any) -> ActivationSource:
    """Return a source for an engine whose functions can return all values inside them.

    The interpreter and Core AI are such engines.
    """
    return lambda package, function, call: engine.load(package, function, "").activations(
        call.inputs, call.state and call.state.copied()
    )


class CallRecorder(Runtime):
    """An engine that runs functions on another engine, and records their calls.

    Attributes:
        calls: Last call of each function, by the function's name.
        on_state: For each state, by its Python id, the name and inputs of every call that used it, in order.
    """

    def __init__(self, engine: Runtime):
        self.engine, self.name = engine, engine.name
        self.calls: dict[str, FunctionCall] = {}
        self.on_state: dict[int, list[tuple[str, Mapping[str, np.ndarray]]]] = {}
        self.states: list[Any] = []  # keeps the states alive, so that no other state gets the same id

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
        copies = {key: np.array(array) for key, array in inputs.items()}  # the caller changes its kv-cache in place
        before = state.copied() if isinstance(state, ReadableState) else None
        self.recorder.calls[self.name] = FunctionCall(copies, before, self.compute_units)
        if state is not None:
            self.recorder.states.append(state)
            self.recorder.on_state.setdefault(id(state), []).append((self.name, copies))
        return self.loaded.predict(inputs, state)

    def make_state(self) -> Any:
        return self.loaded.make_state()


# Comparison with the modules of the PyTorch network


@contextmanager
def hooked(modules: Mapping[str, nn.Module], record: Callable[[str, np.ndarray], None]) -> Iterator[None]:
    """Within the ``with`` block, call ``record`` after every call of a module, with the module's path and output.

    If a module returns several outputs, ``record`` gets the first output.
    """

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
    """The outputs of PyTorch modules in their last calls, to compare with the values of a function.

    Args:
        network: Name of the network.
        function: Record of the function.
        names: Names of the values inside the function.
        reference: The PyTorch network.
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
        """Return the path of the PyTorch module whose output should equal a value."""
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
        """Compare a value with the output of its module. Return ``None`` if the two have different columns."""
        path = self.paths[name]
        pair = self._cut(self._outputs[path], actual.reshape(*actual.shape[:2], -1), call)
        return pair and replace(
            compare(name, op, *pair, scaled=True, layers=layers, path=path or NETWORK), module=path or NETWORK
        )

    def _laid_out(self, module: nn.Module, output: np.ndarray) -> np.ndarray:
        """Convert a module's output to (rows, channels, columns). For a decoder, rows of the output become columns."""
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
        """Cut both arrays to the rows and columns that they share. Return ``None`` if the arrays do not match."""
        rows = min(len(expected), len(actual))  # a package computes rows that are the same for a whole batch only once
        expected, actual = expected[:rows], actual[:rows]
        if self.kind in DECODER:
            # the package's last call may decode only the last columns of the PyTorch call, which returns only the last
            # logits
            valid = min(_columns(call.inputs["mask"]), self._outputs[self.last_norm].shape[2])
            expected, actual = expected[..., -valid:], actual[..., :valid]
            actual = actual[..., actual.shape[2] - expected.shape[2] :]
        elif self.kind in VOCODERS and actual.shape[2] > 1:
            frames = self.bucket["frames"]
            rate, rest = divmod(expected.shape[2], self._outputs["conv_pre"].shape[2])
            if rest or not rate:
                return None  # the module's output was cropped, so its columns do not match
            margin = (actual.shape[2] // rate - frames) // 2 * rate
            actual = actual[..., margin : margin + frames * rate]  # the recorded call computes the first segment
        width = min(expected.shape[2], actual.shape[2])
        return expected[..., :width], actual[..., :width]


def _columns(mask: np.ndarray) -> int:
    """Count the columns of a mask that attend to at least one position.

    These columns come before the unused columns.
    """
    return int((mask[0, 0] > MASKED / 2).any(axis=-1).sum())


def compare_with_modules(
    captured: CapturedOutputs, activations: Activations, call: FunctionCall, layers: LayerComparison = ALONE
) -> list[ComparedValue]:
    """Compare every value that corresponds to a PyTorch module with the output of this module, in program order."""
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
    """Run a call on two engines, and compare all values that both return, in program order.

    For each value, the result says how many dB the operation lost that computed the value. The comparison ignores
    padding at the end. It also ignores masked attention scores, whose large numbers would hide other errors.

    Args:
        program: The function.
        call: Arguments of the call.
        reference: Source of the reference's values.
        candidate: Source of the values to compare with them.
        package: Package that the candidate runs.
        reference_package: Package that the reference runs, which must have the same values. ``None`` means ``package``.
        exact: SNR in dB above which an operation's inputs count as exact.
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
    """Change the mask of a decoder's call so that padding columns attend to the same positions as its last used column.

    The unchanged mask forbids a padding column to attend to any position, by adding the same large negative number to
    all its scores. The column then attends to all positions, with scores that have lost most of their bits. A
    comparison of such values would measure nothing.
    """
    mask = call.inputs.get("mask")
    if mask is None:
        return call
    mask, columns = mask.copy(), _columns(mask)
    mask[:, :, columns:] = mask[:, :, columns - 1 : columns]
    return replace(call, inputs={**call.inputs, "mask": mask})


def _length(call: FunctionCall) -> int | None:
    """Return the length of the sequence in a call's inputs, without the padding after it.

    Return ``None`` if the function's inputs have no padding, or have padding on both sides, as for vocoders.
    """
    inside = call.inputs.get("inside")
    return int(inside.sum()) if inside is not None and inside.flat[0] else None


def _pairs(reference: Activations, candidate: Activations) -> Iterator[tuple[tuple[str, str, np.ndarray], np.ndarray]]:
    """Yield pairs of values with the same name. The candidate may lack values, but must have the reference's order."""
    actual = next(candidate, None)
    for expected in reference:
        if actual is not None and expected[0] == actual[0]:
            yield expected, actual[2]
            actual = next(candidate, None)
