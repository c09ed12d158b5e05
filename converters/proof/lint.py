"""What in a function a Neural Engine is known, or said, to refuse or to be slow at.

The sources conflict, and none of them is Apple's compiler: a warning says where it was read. ``MLComputePlan`` on a
Mac is the truth (`ane plan` shows it there).
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ane.backends.mil.package import ProgramFunction, ProgramOp, Package
from ane.backends.mil.values import Constant, TensorType
from converters.proof.cost import ALIGNMENT, form, nbytes, size, unique_bytes, unique_weights, values
from converters.proof.cost import scalars as constant_of

MAX_RANK, ENGINE_RANK = 4, 5
MAX_DIMENSION = 16384
MAX_KERNEL = 13
MAX_UPSAMPLE = 2
MAX_STATES = 2
MAX_BYTES, WORTH_BYTES = 950e6, 50e6

REFUSED, WARNING, NOTE = "refused", "warning", "note"       # never in a decoder or denoiser; suspect; good to know


@dataclass(frozen=True)
class Source:
    name: str
    url: str


ANE_GUIDE = Source("ane-guide, chapters 4, 12, 17 and 19", "https://github.com/sbryngelson/ane-guide")
ANE_GUIDE_WEIGHTS = Source("ane-guide, chapter 7", ANE_GUIDE.url)
APPLE_RULES = Source("Apple, coreai-models, neural_engine_rules.md", "https://github.com/apple/coreai-models")
APPLE_TRANSFORMERS = Source("Apple, Deploying Transformers on the Apple Neural Engine",
                            "https://machinelearning.apple.com/research/neural-engine-transformers")
HOLLANCE = Source("hollance/neural-engine, unsupported-layers.md", "https://github.com/hollance/neural-engine")
ANEMLL = Source("Anemll", "https://github.com/Anemll/Anemll")
FLUID_AUDIO = Source("FluidAudio", "https://github.com/FluidInference/FluidAudio")
POCKET_TTS = Source("PocketTTS-CoreML, CONVERSION.md", "https://github.com/smdesai/PocketTTS-CoreML")
VOXCPM = Source("VoxCPMANE", "https://github.com/0seba/VoxCPMANE")


class Found(NamedTuple):
    """One place where a rule is broken: type and name of the op (or "input", "weight", …), what, bytes of padding."""

    op: str
    name: str
    what: str
    wasted: int = 0


class View:
    """A function as the checks ask about it."""

    def __init__(self, package: Package, function: ProgramFunction):
        self.package, self.function, self.ops = package, function, function.ops
        self.types = values(function)

    @cached_property
    def activations(self) -> list[tuple[str, str, TensorType]]:
        """(what makes it, name, type) of inputs, states and all that ops make."""
        inputs = [("input", name, type) for name, type in self.function.inputs.items()]
        states = [("state", name, type) for name, type in self.function.states.items()]
        return inputs + states + [(op.type, name, type) for op in self.ops for name, type in op.outputs.items()]

    @cached_property
    def makers(self) -> dict[str, str]:
        """The type of the op that makes a value."""
        return {name: op.type for op in self.ops for name in op.outputs}

    def type(self, op: ProgramOp, key: str) -> TensorType:
        binding = op.arguments[key][0]
        return self.types[binding] if isinstance(binding, str) else binding.type

    def given(self, op: ProgramOp, key: str) -> Any:
        """A constant argument as a list of numbers or a string; None when it is not given, or computed."""
        return constant_of(op.arguments[key][0], self.function, self.package) if key in op.arguments else None


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        says: the rule, and why. until: last generation of chips that it is about (1: M1); None: all.
        check: a function → where it breaks the rule.
    """

    id: str
    severity: str
    says: str
    source: Source
    check: Callable[[View], Iterable[Found]]
    until: int | None = None


@dataclass(frozen=True)
class Warning:
    """A rule broken in one place."""

    rule: str
    severity: str
    op: str
    name: str
    what: str
    why: str
    source: str
    wasted: int = 0
    until: int | None = None


@dataclass(frozen=True)
class Summary:
    """A rule broken ``count`` times, with one example; ``wasted`` bytes of padding in all."""

    rule: str
    severity: str
    count: int
    ops: dict[str, int]
    example: Warning
    wasted: int

    @property
    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def lint(package: Package, function: str | None = None) -> list[Warning]:
    """All warnings of a function, the refused first. Raises UserError when the package has no such function."""
    view = View(package, package.function(function))
    found = [Warning(rule.id, rule.severity, *place[:3], rule.says, f"{rule.source.name}: {rule.source.url}",
                     place.wasted, rule.until) for rule in RULES for place in rule.check(view)]
    return sorted(found, key=lambda warning: (REFUSED, WARNING, NOTE).index(warning.severity))


def concerning(warnings: Iterable[Warning], generations: Iterable[int]) -> list[Warning]:
    """Those that are about at least one of these generations of chips."""
    oldest = min(generations)
    return [warning for warning in warnings if warning.until is None or oldest <= warning.until]


def summarised(warnings: Iterable[Warning]) -> list[Summary]:
    """A line for each rule that is broken, in the order of its first warning; the worst place is the example."""
    by_rule: dict[str, list[Warning]] = {}
    for warning in warnings:
        by_rule.setdefault(warning.rule, []).append(warning)
    summaries = []
    for rule, group in by_rule.items():
        ops: dict[str, int] = {}
        for warning in group:
            ops[warning.op] = ops.get(warning.op, 0) + 1
        example = max(group, key=lambda warning: warning.wasted)        # the first, where nothing is wasted
        summaries.append(Summary(rule, group[0].severity, len(group), ops, example, sum(w.wasted for w in group)))
    return summaries


# Checks of shapes and types

def _rank(view: View) -> Iterator[Found]:
    constants = [("weight", name, constant.type) for name, constant in unique_weights(view.function)]
    for op, name, type in view.activations + constants:
        if len(type.shape) > MAX_RANK:
            yield Found(op, name, f"rank {len(type.shape)}: {type.shape}")


def _engine_rank(view: View) -> Iterator[Found]:
    for op, name, type in view.activations:
        if len(type.shape) > ENGINE_RANK or (op == "matmul" and len(type.shape) == ENGINE_RANK):
            yield Found(op, name, f"rank {len(type.shape)}: {type.shape}")


def _dimension(view: View) -> Iterator[Found]:
    for op, name, type in view.activations:
        if max(type.shape, default=0) > MAX_DIMENSION:
            yield Found(op, name, f"a dimension of {max(type.shape)}: {type.shape}")


def _dynamic(view: View) -> Iterator[Found]:
    for op, name, type in view.activations:
        if min(type.shape, default=0) < 0:
            yield Found(op, name, f"an open dimension: {type.shape}")


def _singleton(view: View) -> Iterator[Found]:
    for op, name, type in view.activations:
        if type.shape and type.shape[-1] == 1 and size(type.shape) > 1:
            wasted = nbytes(type, ALIGNMENT) - nbytes(type)
            yield Found(op, name, f"{type.shape} takes {nbytes(type, ALIGNMENT):,} bytes for {nbytes(type):,}", wasted)


def _unaligned(view: View) -> Iterator[Found]:
    for op, name, type in view.activations:
        wasted = nbytes(type, ALIGNMENT) - nbytes(type)
        if wasted and type.shape[-1] > 1:
            yield Found(op, name, f"last axis {type.shape[-1]}: {nbytes(type, ALIGNMENT) / nbytes(type):.2f} times its "
                                  "memory", wasted)


def _integers(view: View) -> Iterator[Found]:
    for kind, types in (("input", view.function.inputs), ("output", view.function.outputs)):
        for name, type in types.items():
            if not type.dtype.startswith("fp"):
                yield Found(kind, name, f"{type.dtype} {type.shape}")


def _wide(view: View) -> Iterator[Found]:
    for name, type in view.function.inputs.items():
        if type.dtype == "fp32":
            yield Found("input", name, f"fp32 {type.shape}")
    for op in view.ops:
        if any(type.dtype == "fp32" for type in op.outputs.values()):
            yield Found(op.type, op.name, "computes in fp32")
        elif op.type == "cast" and view.type(op, "x").dtype == "fp32":
            yield Found(op.type, op.name, "casts from fp32")


# Checks of kinds of ops

def _of_types(*types: str) -> Callable[[View], Iterator[Found]]:
    """A check that finds every op of some types."""
    def check(view: View) -> Iterator[Found]:
        return (Found(op.type, op.name, op.type) for op in view.ops if op.type in types)
    return check


def _kernel(view: View) -> Iterator[Found]:
    for op in view.ops:
        if op.type in ("conv", "conv_transpose") and view.type(op, "weight").shape[-1] > MAX_KERNEL:
            yield Found(op.type, op.name, f"kernel width {view.type(op, 'weight').shape[-1]}")


def _dilation(view: View) -> Iterator[Found]:
    for op in view.ops:
        dilations = view.given(op, "dilations") if op.type in ("conv", "conv_transpose") else None
        if max(dilations or [1]) > 1:
            yield Found(op.type, op.name, f"dilations {dilations}")


def _odd_stride(view: View) -> Iterator[Found]:
    for op in view.ops:
        strides = (view.given(op, "strides") if op.type == "conv_transpose" else None) or []
        if any(stride > 1 and stride % 2 for stride in strides):
            yield Found(op.type, op.name, f"strides {strides}")


def _upsample(view: View) -> Iterator[Found]:
    for op in view.ops:
        if op.type.startswith(("upsample_", "resize")):
            before, after = view.type(op, "x").shape, op.outputs[op.name].shape
            factor = max((large / small for small, large in zip(before, after, strict=True)), default=1)
            if factor > MAX_UPSAMPLE:
                yield Found(op.type, op.name, f"by {factor:g}")


def _reflection(view: View) -> Iterator[Found]:
    for op in view.ops:
        if op.type == "pad" and view.given(op, "mode") == "reflect":
            yield Found(op.type, op.name, "pads by reflection")


def _computed_slice(view: View) -> Iterator[Found]:
    for op in view.ops:
        if op.type in ("slice_by_index", "slice_by_size") and view.given(op, "begin") is None:
            yield Found(op.type, op.name, "begins at a computed place")


BOUNDED = ("softmax", "sigmoid", "tanh", "sin", "cos")      # what they make never reaches the bound of such a slice


def _width_slice(view: View) -> Iterator[Found]:
    """A split of the last axis counts: all its parts but the first are such slices."""
    for op in view.ops:
        x = op.arguments.get("x", ("",))[0]
        if op.type in ("slice_by_index", "slice_by_size", "split") and view.makers.get(x) not in BOUNDED:
            rank = len(view.type(op, "x").shape)
            if op.type == "split":
                offset = (view.given(op, "axis") or [0])[0] % max(rank, 1) == rank - 1
            else:
                begin, masked = view.given(op, "begin"), view.given(op, "begin_mask")
                offset = bool(begin and begin[-1] and not (masked and masked[-1]))
            if offset:
                yield Found(op.type, op.name, f"a part of the last axis of {view.type(op, 'x').shape}")


# Checks of weights and states

def _states(view: View) -> Iterator[Found]:
    if len(view.function.states) > MAX_STATES:
        yield Found("state", next(iter(view.function.states)), f"{len(view.function.states)} states")


def _heavy(view: View) -> Iterator[Found]:
    if unique_bytes(view.function) > MAX_BYTES:
        yield Found("weight", view.function.name, f"{unique_bytes(view.function) / 1e6:.0f} MB of weights")


def _light(view: View) -> Iterator[Found]:
    if unique_bytes(view.function) < WORTH_BYTES:
        yield Found("weight", view.function.name, f"{unique_bytes(view.function) / 1e6:.1f} MB of weights")


def _of_form(wanted: str) -> Callable[[View], Iterator[Found]]:
    """A check that finds every weight of one form (``cost.form``)."""
    def check(view: View) -> Iterator[Found]:
        for name, constant in unique_weights(view.function):
            if form(constant) == wanted:
                yield Found(constant.op, name, _stored_as(constant))
    return check


def _stored_as(constant: Constant) -> str:
    parts = constant.arguments
    data = next((parts[key].type for key in ("data", "quantized_data") if key in parts), constant.type)
    return f"{data.dtype} {constant.type.shape}"


RULES = (
    Rule("rank", REFUSED, "Nothing is above rank 4: the engine works on (batch, channels, height, width).",
         APPLE_TRANSFORMERS, _rank),
    Rule("rank-of-engine", REFUSED, "The compiler rejects rank 6, and a matmul of rank 5.", ANE_GUIDE, _engine_rank),
    Rule("dynamic-shape", REFUSED, "Every dimension is a number: one function for each shape.", APPLE_RULES, _dynamic),
    Rule("integer-io", REFUSED, "Inputs and outputs are fp16: the compiler rejects int32 and bool.", ANE_GUIDE,
         _integers),
    Rule("gather", REFUSED, "No gather: it runs elsewhere, but for a narrow case; look-ups are the host's.", HOLLANCE,
         _of_types("gather", "gather_along_axis", "gather_nd")),
    Rule("scatter", REFUSED, "No scatter: no chip has it.", ANE_GUIDE,
         _of_types("scatter", "scatter_along_axis", "scatter_nd")),
    Rule("no-such-op", WARNING, "No chip has one_hot, logical ops, products along an axis, counting or sampling.",
         ANE_GUIDE, _of_types(
             "band_part", "logical_and", "logical_not", "logical_or", "logical_xor", "mod", "non_zero", "one_hot",
             "random_bernoulli", "random_categorical", "random_normal", "reduce_prod", "reverse_sequence", "shape",
             "sliding_windows")),
    Rule("comparison", WARNING, "No comparisons: they make bool, and the engine's values are fp16.", ANE_GUIDE,
         _of_types("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")),
    Rule("topk", WARNING, "No topk and no sort: an M1 rejects them, and later chips were seen to run them elsewhere.",
         ANE_GUIDE, _of_types("argsort", "topk")),
    Rule("recurrent", WARNING, "No recurrent cells or loops.", HOLLANCE,
         _of_types("cond", "gru", "lstm", "rnn", "while_loop")),
    Rule("fused-attention", WARNING, "No fused attention: with several queries it may drop its mask on the engine.",
         APPLE_RULES, _of_types("scaled_dot_product_attention")),
    Rule("fp32", WARNING, "All is fp16: an fp32 value leaves the engine and comes back through a cast.", APPLE_RULES,
         _wide),
    Rule("dimension", WARNING, "No axis is above 16384 (65536 from the M4 on, by the same source).", ANE_GUIDE,
         _dimension),
    Rule("singleton-width", WARNING, "The last axis is padded to 64 bytes: one of size 1 costs 32 times its memory.",
         APPLE_RULES, _singleton),
    Rule("kernel-width", WARNING, "A kernel is at most 13 wide in fp16 (15 or 16 on later chips).", ANE_GUIDE, _kernel),
    Rule("dilation", WARNING, "Dilated convolutions may run elsewhere (ane-guide has them compile on an M1).", HOLLANCE,
         _dilation),
    Rule("upsample", WARNING, "Upsampling by more than 2 may run elsewhere.", HOLLANCE, _upsample),
    Rule("odd-stride", WARNING, "A transposed convolution of odd stride runs elsewhere.", POCKET_TTS, _odd_stride),
    Rule("sin-cos", WARNING, "sin and cos are there from the M3 on.", ANE_GUIDE, _of_types("cos", "sin"), until=2),
    Rule("reflection", WARNING, "Padding by reflection is there from the M2 on.", ANE_GUIDE, _reflection, until=1),
    Rule("computed-slice", WARNING, "An M1 has no slice at a computed place.", ANE_GUIDE, _computed_slice, until=1),
    Rule("width-slice", WARNING, "A slice of the last axis that does not begin at its start is multiplied by 16 on the "
         "way on an M1 or A14: values above 4094 overflow.", ANE_GUIDE, _width_slice, until=1),
    Rule("states", WARNING, "More than two states fail on the engine.", VOXCPM, _states),
    Rule("too-heavy", WARNING, "A function stays below 950 MB: above 1 GiB macOS 27 silently runs it on the CPU.",
         ANEMLL, _heavy),
    Rule("blockwise", WARNING, "Blockwise weights are expanded to fp16 in memory before the M3: no faster than fp16.",
         ANE_GUIDE_WEIGHTS, _of_form("blockwise"), until=2),
    Rule("int8", WARNING, "int8 weights are expanded to fp16 in memory on an M1 (CoreML-LLM says: on A chips too).",
         ANE_GUIDE_WEIGHTS, _of_form("int8"), until=1),
    Rule("unaligned-width", NOTE, "The last axis is padded to 64 bytes, 32 values of fp16.", APPLE_RULES, _unaligned),
    Rule("too-light", NOTE, "Below 50 MB of weights a function is often not worth a dispatch to the engine.",
         FLUID_AUDIO, _light),
)
