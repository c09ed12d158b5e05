"""Inside a function: its values against what the twin's modules of the same names give, or against another run of it.

Modules of a twin give several layouts (``COLUMNS_FIRST``, ``FRAMES``, ``PACKED``); values of a package are (B, C, 1,
S), with padding. They meet as (rows, channels, columns), the true columns alone.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from ane.backends.mil import MilRuntime
from ane.backends.mil.interpreter import InterpreterState
from ane.backends.mil.package import ProgramFunction as Program
from ane.backends.packaged.decoder import MASKED
from ane.backends.packaged.functions import Engine, Runnable
from ane.bundles.packages import FunctionRecord
from ane.models.tortoise.networks.diffusion_decoder import DiffusionLayer, IntegratingConv, ResBlock
from ane.models.tortoise.networks.frames import FrameAttention, FrameConv, FrameNorm, PointwiseConv

FALL = 8.0          # dB below the lowest before it: drift
HEADROOM = 10.0     # dB above a function's bar that its values begin at, or higher
ROUNDED = 73.0      # dB of numbers that were rounded to fp16 once
BEST = 200.0        # dB that no comparison exceeds
DECODER, VOCODERS = ("prefill", "step", "state"), ("univnet", "hifigan")

# What modules give. Of these networks, all (B, T, C) or (B, C); elsewhere these (B, T, C), these (B · T, C), and all
# others (B, C), (B, C, T) or (B, C, 1, T).
COLUMNS_FIRST = frozenset({"autoregressive", "clvp"})
FRAMES = (FrameConv, FrameNorm)
PACKED = (PointwiseConv, FrameAttention, ResBlock, DiffusionLayer, IntegratingConv)

# Outputs have names of their own. Kind → output → the module that gives the same; "": the network.
OUTPUTS: dict[str, dict[str, str]] = {
    **{kind: {"hidden": "final_norm", "logits": "mel_head"} for kind in DECODER},
    **{kind: {"prediction": "out"} for kind in ("denoise", "sample")},
    **{kind: {"latent": ""} for kind in ("ar_conditioning", "diffusion_conditioning", "ar_random", "diffusion_random")},
    "clvp_text": {"latent": "to_text_latent"}, "clvp_speech": {"latent": "to_speech_latent"}, "hifigan": {"sound": ""},
}
STEP = re.compile(r"step_(\d+)__(.+)")              # a value of one step of several (converters.tortoise.diffusion_decoder)
DIGITS = re.compile(r"var_(\d+)")                   # coremltools' spelling of a name that is a number


@dataclass(frozen=True)
class Value:
    """A value of a function against another of the same.

    Attributes:
        error: largest absolute difference. snr: in dB, at most ``BEST``; −``BEST`` when a number is not finite.
        factor: power of two that the package's value was multiplied by first: streams are kept scaled.
        module: of the twin, where it is the other.
        lost: dB below the worst of the values it was made from, where the other is another run.
    """

    name: str
    op: str
    error: float
    snr: float
    factor: float = 1.0
    module: str | None = None
    lost: float | None = None


Activations = Iterator[tuple[str, str, np.ndarray]]     # name, type of operation, float32 array, in program order


@dataclass(frozen=True)
class Call:
    """What a function was called with, and where it may run.

    ``state`` is that before the call; None without one, or when it cannot be looked into.
    """

    inputs: Mapping[str, np.ndarray]
    state: InterpreterState | None
    units: str


class Source(Protocol):
    """Runs a function and gives its values. ``stateful``: also of functions that have a state."""

    stateful: bool

    def activations(self, package: Path, function: str, call: Call) -> Activations: ...

    def forget(self, package: Path) -> None:
        """Let go of what was read of a package."""


class Interpreted:
    """The interpreter as a ``Source``."""

    stateful = True

    def __init__(self, engine: MilRuntime):
        self.engine = engine

    def activations(self, package: Path, function: str, call: Call) -> Activations:
        return self.engine.load(package, function, "").activations(call.inputs, _copied(call.state))

    def forget(self, package: Path) -> None:
        self.engine.forget(package)


class Recording:
    """An engine that keeps the last call of each function, by name."""

    def __init__(self, engine: Engine):
        self.engine, self.name = engine, engine.name
        self.calls: dict[str, Call] = {}

    def load(self, package: Path, function: str, units: str) -> "Recorded":
        return Recorded(self.engine.load(package, function, units), function, units, self.calls)

    def forget(self, package: Path) -> None:
        self.engine.forget(package)


class Recorded:
    def __init__(self, loaded: Runnable, name: str, units: str, calls: dict[str, Call]):
        self.loaded, self.name, self.units, self.calls = loaded, name, units, calls

    def predict(self, inputs: Mapping[str, np.ndarray], state: Any = None) -> dict[str, np.ndarray]:
        copies = {key: np.array(array) for key, array in inputs.items()}        # pools are written to in place
        self.calls[self.name] = Call(copies, _copied(state if isinstance(state, InterpreterState) else None), self.units)
        return self.loaded.predict(inputs, state)

    def make_state(self) -> Any:
        return self.loaded.make_state()


def _copied(state: InterpreterState | None) -> InterpreterState | None:
    return state and InterpreterState({name: array.copy() for name, array in state.items()})


# Against the twin

class Heard:
    """What modules of a twin gave in their last ``steps`` calls, by path."""

    def __init__(self, network: str, function: FunctionRecord, names: Iterable[str], twin: nn.Module):
        self.kind, self.bucket, self.columns_first = function.kind, function.bucket, network in COLUMNS_FIRST
        self.steps = function.bucket.get("steps", 1)
        modules = dict(twin.named_modules())
        places = {name: self._place(name) for name in names}
        self.places = {name: place for name, place in places.items() if place[0] in modules}
        paths = {path for path, _ in self.places.values()} | ({"gpt.ln_f"} if self.kind in DECODER else set())
        self._outputs: dict[str, deque[np.ndarray]] = {path: deque(maxlen=self.steps) for path in paths}
        self._modules = {path: modules[path] for path in paths}

    def _place(self, name: str) -> tuple[str | None, int | None]:
        """Path of the module that a value stands for, and which of several steps it is of (None: of all)."""
        given = OUTPUTS.get(self.kind, {})
        if name in given:
            return given[name], self.steps - 1
        step = STEP.fullmatch(name)
        path = DIGITS.sub(r"\1", step[2] if step else name).replace("__", ".")
        return path or None, int(step[1]) if step else None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note what the modules give while this is open."""
        def note(path: str) -> Any:
            return lambda module, inputs, output: self._outputs[path].append(self._laid_out(module, _array(output)))

        hooks = [module.register_forward_hook(note(path)) for path, module in self._modules.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def __contains__(self, name: str) -> bool:
        return name in self.places and bool(self._outputs[self.places[name][0]])

    def compared(self, name: str, op: str, got: np.ndarray, call: Call) -> Value | None:
        """A value of the package against the module of its name; None where columns of the two do not correspond."""
        path, step = self.places[name]
        outputs = self._outputs[path]
        wanted = [outputs[-1 if step is None else step]]
        if step is None and self.steps > 1:         # of every step at once, a row each
            wanted = [output[:1] for output in outputs]
        pair = self._cut(np.concatenate(wanted), got.reshape(*got.shape[:2], -1), call)
        return pair and replace(compared(name, op, *pair, scaled=True), module=path or "(the network)")

    def _laid_out(self, module: nn.Module, output: np.ndarray) -> np.ndarray:
        """(rows, channels, columns); the decoder's rows are columns too."""
        if type(module) is nn.Sequential:
            module = module[-1]
        if isinstance(module, PACKED):
            rows = self.bucket.get("batch", 1)
        elif self.columns_first or isinstance(module, FRAMES):
            rows = 1 if self.kind in DECODER else len(output)
        else:
            return output.reshape(*output.shape[:2], -1)
        return output.reshape(rows, -1, output.shape[-1]).swapaxes(1, 2)

    def _cut(self, wanted: np.ndarray, got: np.ndarray, call: Call) -> tuple[np.ndarray, np.ndarray] | None:
        """The rows and columns that both have."""
        rows = min(len(wanted), len(got))       # what rows of a batch share, a package computes once
        wanted, got = wanted[:rows], got[:rows]
        if self.kind in DECODER:
            # the last call may hold but the end of what the twin took at once; of logits, the twin has only the last
            valid = min(_columns(call.inputs["mask"]), self._outputs["gpt.ln_f"][-1].shape[2])
            wanted, got = wanted[..., -valid:], got[..., :valid]
            got = got[..., got.shape[2] - wanted.shape[2]:]
        elif self.kind in VOCODERS and got.shape[2] > 1:
            frames = self.bucket["frames"]
            rate, rest = divmod(wanted.shape[2], self._outputs["conv_pre"][-1].shape[2])
            if rest or not rate:
                return None                     # what it gives is cropped
            margin = (got.shape[2] // rate - frames) // 2 * rate
            got = got[..., margin:margin + frames * rate]       # the chunk is the first of its sound
        width = min(wanted.shape[2], got.shape[2])
        return wanted[..., :width], got[..., :width]


def _array(output: Tensor | tuple) -> np.ndarray:
    output = output[0] if isinstance(output, tuple) else output
    return np.array(output.detach().float().cpu().numpy())


def _columns(mask: np.ndarray) -> int:
    """How many columns see anything: the first ones."""
    return int((mask[0, 0] > MASKED / 2).any(axis=-1).sum())


def against_twin(heard: Heard, activations: Activations, call: Call) -> list[Value]:
    """The values that have a module, in program order."""
    found = (heard.compared(name, op, array, call) for name, op, array in activations if name in heard)
    return [value for value in found if value is not None]


# Against another run

def against_run(program: Program, call: Call, reference: Source, candidate: Source, package: Path) -> list[Value]:
    """All values that both runs of a call give, in program order, with what each operation lost.

    Padding at the end is left out, and so are scores that are masked: their size would hide what is lost beside them.
    """
    call, length = _filled(call), _length(call)
    makers = {name: op for op in program.ops for name in op.outputs}
    found: dict[str, Value] = {}
    runs = (source.activations(package, program.name, call) for source in (reference, candidate))
    for (name, op, wanted), got in _in_step(*runs):
        if length and wanted.ndim and wanted.shape[-1] == call.inputs["inside"].shape[-1]:
            wanted, got = wanted[..., :length], got[..., :length]
        counted = wanted > MASKED / 2
        value = compared(name, op, wanted[counted], got[counted])
        parts = {part for argument in makers[name].arguments.values() for part in argument if isinstance(part, str)}
        before = min([ROUNDED, *(found[part].snr for part in parts if part in found)])
        found[name] = replace(value, lost=max(before - value.snr, 0.0))
    return list(found.values())


def _filled(call: Call) -> Call:
    """With the decoder's columns of padding, copies of the last true one that see nothing, seeing what that one sees.

    To see nothing is to see everything alike, rounded at the mask's size: no measure of anything.
    """
    mask = call.inputs.get("mask")
    if mask is None:
        return call
    mask, seeing = mask.copy(), _columns(mask)
    mask[:, :, seeing:] = mask[:, :, seeing - 1:seeing]
    return replace(call, inputs={**call.inputs, "mask": mask})


def _length(call: Call) -> int | None:
    """Places before the padding of a bucket; None where there is none, or on either side as in a vocoder's chunk."""
    inside = call.inputs.get("inside")
    return int(inside.sum()) if inside is not None and inside.flat[0] else None


def _in_step(reference: Activations,
             candidate: Activations) -> Iterator[tuple[tuple[str, str, np.ndarray], np.ndarray]]:
    """What both give, one value at a time; the candidate may leave some out."""
    given = next(candidate, None)
    for wanted in reference:
        if given is not None and wanted[0] == given[0]:
            yield wanted, given[2]
            given = next(candidate, None)


def compared(name: str, op: str, wanted: np.ndarray, got: np.ndarray, scaled: bool = False) -> Value:
    """``scaled``: up to a power of two."""
    wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    if not (np.isfinite(wanted).all() and np.isfinite(got).all()):
        return Value(name, op, float("inf"), -BEST)
    factor = 1.0
    if scaled:
        along = (wanted * got).sum()
        factor = float(2.0 ** np.round(np.log2(along / np.square(got).sum()))) if along > 0 else 1.0
    difference = wanted - factor * got
    noise, signal = np.square(difference).sum(), np.square(wanted).sum()
    snr = BEST if not noise else -BEST if not signal else float(np.clip(10 * np.log10(signal / noise), -BEST, BEST))
    return Value(name, op, float(np.abs(difference).max(initial=0)), snr, factor)


def drifting(values: Sequence[Value], bar: float) -> Value | None:
    """The first value that falls below all before it, or below the function's bar, by more than ``FALL``."""
    level = bar + HEADROOM
    for value in values:
        if value.snr < level - FALL:
            return value
        level = min(level, value.snr)
    return next((value for value in values if value.snr < bar - FALL), None)
