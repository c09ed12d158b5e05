"""Check Core ML functions against rules for the Neural Engine, most of which were found by users of the engine.

A rule describes operations or weights because of which a function may not run on the engine. The sources of the rules
contradict each other, and no source is Apple's compiler, so every rule names its source. Only ``MLComputePlan`` on a
Mac (`ane plan`) shows where a function really runs. A bundle records which rules its packages break.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ane.backends.mil.package import Package
from converters.neural_engine import MAX_AXIS, MAX_CHANNELS, STATE_WIDTH
from converters.proof.cost import form, nbytes, size, unique_bytes
from converters.proof.lint_checks import (
    Check,
    LintedFunction,
    Violation,
    above_rank_4,
    fp32_values,
    integer_io,
    is_long,
    many_branches,
    odd_stride,
    ops,
    upsampled,
    values_where,
    weights_where,
    width_slice,
)

MAX_KERNEL = 13
MAX_STATES = 2
MAX_BYTES = 950e6  # largest size of a function's weights in bytes
KERNEL_MEMORY = 2**16  # bytes of memory for the rows of a matmul's output
CONVOLUTIONS = "conv", "conv_transpose"
SLICES = "slice_by_index", "slice_by_size"
NO_SUCH_OPS = (
    *(f"logical_{name}" for name in ("and", "not", "or", "xor")),
    *(f"random_{name}" for name in ("bernoulli", "categorical", "normal")),
    *("band_part", "mod", "non_zero", "one_hot", "reduce_prod", "reverse_sequence", "shape", "sliding_windows"),
)

# Severities. A broken rule of severity REFUSED stops the conversion of the networks in STRICT. WARNING means that an
# operation may run outside the engine
REFUSED, WARNING = "refused", "warning"

# sources of the rules, each with its name and address
ANE_GUIDE = "ane-guide, chapters 4, 12, 17 and 19: https://github.com/sbryngelson/ane-guide"
ANE_GUIDE_WEIGHTS = "ane-guide, chapter 7: https://github.com/sbryngelson/ane-guide"
APPLE_RULES = "Apple, coreai-models, neural_engine_rules.md: https://github.com/apple/coreai-models"
APPLE_TRANSFORMERS = (
    "Apple, Deploying Transformers on the Apple Neural Engine: "
    "https://machinelearning.apple.com/research/neural-engine-transformers"
)
HOLLANCE = "hollance/neural-engine, unsupported-layers.md: https://github.com/hollance/neural-engine"
ANEMLL = "Anemll: https://github.com/Anemll/Anemll"
POCKET_TTS = "PocketTTS-CoreML, CONVERSION.md: https://github.com/smdesai/PocketTTS-CoreML"
STATE_ISSUE = "coremltools issue 2631: https://github.com/apple/coremltools/issues/2631"
PALETTE_ISSUE = "coremltools issue 2716: https://github.com/apple/coremltools/issues/2716"
VOXCPM = "VoxCPMANE: https://github.com/0seba/VoxCPMANE"


@dataclass(frozen=True)
class LintRule:
    """A rule for the operations and weights of a Core ML function.

    Attributes:
        id: Name of the rule.
        severity: ``REFUSED`` or ``WARNING``.
        text: The rule and its reason.
        source: Name and address of the document that states the rule.
        check: Python function that yields the violations in a Core ML function.
        accepted: Reason why our packages may break the rule.
        until: Last generation of chips to which the rule applies. An M1 has generation 1. ``None`` means that the rule
            applies to all chips.
    """

    id: str
    severity: str
    text: str
    source: str
    check: Check
    accepted: str = "not examined yet"
    until: int | None = None


OWN = "the network's own"
RULES = (
    LintRule(
        "rank",
        REFUSED,
        "No value has more than four axes: the engine works on (batch, channels, height, width).",
        APPLE_TRANSFORMERS,
        above_rank_4,
    ),
    LintRule(
        "dynamic-shape",
        REFUSED,
        "Every axis has a fixed length: each shape needs its own function.",
        APPLE_RULES,
        values_where(lambda op, type: min(type.shape, default=0) < 0, "a dynamic dimension"),
    ),
    LintRule(
        "integer-io",
        REFUSED,
        "Inputs and outputs are fp16: the compiler rejects int32 and bool.",
        ANE_GUIDE,
        integer_io,
    ),
    LintRule(
        "gather",
        REFUSED,
        "No gather: with rare exceptions it runs outside the engine, so the caller looks up embeddings.",
        HOLLANCE,
        ops("gather", "gather_along_axis", "gather_nd"),
    ),
    LintRule(
        "scatter",
        REFUSED,
        "No scatter: no chip supports it.",
        ANE_GUIDE,
        ops("scatter", "scatter_along_axis", "scatter_nd"),
    ),
    LintRule(
        "no-such-op",
        WARNING,
        "No chip supports one_hot, logical operations, products along an axis, counting or sampling.",
        ANE_GUIDE,
        ops(*NO_SUCH_OPS),
    ),
    LintRule(
        "comparison",
        WARNING,
        "No comparisons: they return bool, and the engine's values are fp16.",
        ANE_GUIDE,
        ops("equal", "greater", "greater_equal", "less", "less_equal", "not_equal"),
    ),
    LintRule(
        "topk",
        WARNING,
        "No topk and no sort: an M1 rejects them, and later chips have run them on CPU or GPU.",
        ANE_GUIDE,
        ops("argsort", "topk"),
    ),
    LintRule(
        "recurrent", WARNING, "No recurrent cells or loops.", HOLLANCE, ops("cond", "gru", "lstm", "rnn", "while_loop")
    ),
    LintRule(
        "fused-attention",
        WARNING,
        "No fused attention: with several queries it may drop its mask on the engine.",
        APPLE_RULES,
        ops("scaled_dot_product_attention"),
    ),
    LintRule(
        "fp32",
        WARNING,
        "All values are fp16: an fp32 value is computed outside the engine, and a cast brings it back.",
        APPLE_RULES,
        fp32_values,
        "requested: an fp32 package",
    ),
    LintRule(
        "dimension",
        WARNING,
        f"No axis is longer than {MAX_AXIS}, except channels, of which there are at most {MAX_CHANNELS}.",
        ANE_GUIDE,
        values_where(is_long, "a long dimension"),
        "a vocoder's samples: it runs on the GPU or the CPU",
    ),
    LintRule(
        "state-width",
        WARNING,
        f"The last axis of a state is a multiple of {STATE_WIDTH}: other lengths fail on the engine.",
        STATE_ISSUE,
        lambda function: [
            Violation("state", name, f"last axis {type.shape[-1]}")
            for name, type in function.function.states.items()
            if type.shape and type.shape[-1] % STATE_WIDTH
        ],
        "requested: --buckets step of another length",
    ),
    LintRule(
        "4-bit-palette",
        WARNING,
        "4-bit palettes are reported to crash with a state after 100 to 200 predictions, and to return wrong "
        "values: check them on the Mac that runs them, with `ane verify --against coreml`.",
        PALETTE_ISSUE,
        weights_where(lambda weight: form(weight) == "palette" and weight.arguments["indices"].type.dtype == "uint4"),
        "requested: --precision 4bit, to be checked with `ane verify --against coreml`",
    ),
    LintRule(
        "matmul-rows",
        WARNING,
        "The rows of a matmul's output fit in the 64 KB of kernel memory.",
        ANE_GUIDE,
        ops(
            "matmul",
            where=lambda function, op: 2 * (rows := op.outputs[op.name].shape[-2]) > KERNEL_MEMORY and f"{rows} rows",
        ),
    ),
    LintRule(
        "branches",
        WARNING,
        "An operation takes at most 11 computed values: with more values, compiling the operation takes seconds.",
        ANE_GUIDE,
        ops(where=many_branches),
        f"{OWN} concatenations",
    ),
    LintRule(
        "singleton-width",
        WARNING,
        "The last axis is longer than 1: the engine pads it to 64 bytes, which is 32 times the size of one number.",
        APPLE_RULES,
        values_where(
            lambda op, type: type.shape[-1:] == (1,) and size(type.shape) > 1 and nbytes(type) > 0, "a last axis of 1"
        ),
        "inherently one column, such as a latent or a single lane: a few kB per call",
    ),
    LintRule(
        "kernel-width",
        WARNING,
        "A kernel is at most 13 wide in fp16 (15 or 16 on later chips).",
        ANE_GUIDE,
        ops(
            *CONVOLUTIONS,
            where=lambda function, op: (
                (width := function.argument_type(op, "weight").shape[-1]) > MAX_KERNEL and f"kernel width {width}"
            ),
        ),
        f"{OWN} kernels",
    ),
    LintRule(
        "dilation",
        WARNING,
        "Dilated convolutions may run outside the engine (according to ane-guide they compile on an M1).",
        HOLLANCE,
        ops(
            *CONVOLUTIONS,
            where=lambda function, op: (
                max(dilations := function.constant(op, "dilations") or [1]) > 1 and f"dilations {dilations}"
            ),
        ),
        f"{OWN} dilations",
    ),
    LintRule(
        "upsample",
        WARNING,
        "Upsampling by more than 2 may run outside the engine.",
        HOLLANCE,
        ops(where=upsampled),
        f"{OWN} strides",
    ),
    LintRule(
        "odd-stride",
        WARNING,
        "A transposed convolution with an odd stride runs outside the engine.",
        POCKET_TTS,
        ops("conv_transpose", where=odd_stride),
        f"{OWN} strides",
    ),
    LintRule("sin-cos", WARNING, "sin and cos need an M3 or later.", ANE_GUIDE, ops("cos", "sin"), until=2),
    LintRule(
        "reflection",
        WARNING,
        "Padding by reflection needs an M2 or later.",
        ANE_GUIDE,
        ops("pad", where=lambda function, op: function.constant(op, "mode") == "reflect" and "by reflection"),
        f"{OWN} padding",
        until=1,
    ),
    LintRule(
        "computed-slice",
        WARNING,
        "An M1 does not support a slice at a computed index.",
        ANE_GUIDE,
        ops(
            *SLICES, where=lambda function, op: function.constant(op, "begin") is None and "begins at a computed index"
        ),
        until=1,
    ),
    LintRule(
        "width-slice",
        WARNING,
        "An M1 or A14 internally multiplies a slice of the last axis that has an offset by 16: values above 4094 "
        "overflow.",
        ANE_GUIDE,
        ops(*SLICES, "split", where=width_slice),
        "queries in blocks, or a cropped margin: values stay far below 4094 there",
        until=1,
    ),
    LintRule(
        "states",
        WARNING,
        "More than two states fail on the engine.",
        VOXCPM,
        lambda function: [
            Violation("state", next(iter(states)), f"{len(states)} states")
            for states in [function.function.states]
            if len(states) > MAX_STATES
        ],
    ),
    LintRule(
        "too-heavy",
        WARNING,
        "A function has less than 950 MB of weights: macOS 27 silently runs a function of more than 1 GiB on the CPU.",
        ANEMLL,
        lambda function: [
            Violation("weight", function.function.name, f"{weights / 1e6:.1f} MB of weights")
            for weights in [unique_bytes(function.function)]
            if weights > MAX_BYTES
        ],
        "requested: larger buckets or more functions than usual",
    ),
    LintRule(
        "blockwise",
        WARNING,
        "Chips before the M3 expand blockwise weights to fp16 in memory, so these weights are no faster than fp16.",
        ANE_GUIDE_WEIGHTS,
        weights_where(lambda weight: form(weight) == "blockwise"),
        until=2,
    ),
    LintRule(
        "int8",
        WARNING,
        "An M1 expands int8 weights to fp16 in memory (A chips do so too, according to CoreML-LLM).",
        ANE_GUIDE_WEIGHTS,
        weights_where(lambda weight: form(weight) == "int8"),
        "requested: --precision 8bit, where on an M1 only the file is smaller",
        until=1,
    ),
)

# networks whose conversion fails if they break a rule of severity REFUSED
STRICT = frozenset({"autoregressive", "diffusion", "encoder", "decoder"})


@dataclass
class BrokenRule:
    """A rule that some functions of a package break.

    Attributes:
        rule: The rule.
        example: The first violation.
        functions: Names of the functions that break the rule.
        ops: Number of violations, by type of operation.
    """

    rule: LintRule
    example: Violation
    functions: list[str] = field(default_factory=list)
    ops: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return self.ops.total()

    def add(self, function: str, violation: Violation) -> None:
        if function not in self.functions:
            self.functions.append(function)
        self.ops[violation.op] += 1

    def record(self) -> dict[str, Any]:
        """Return the broken rule as a dictionary for bundle.json."""
        return {
            "rule": self.rule.id,
            "severity": self.rule.severity,
            "count": self.count,
            "functions": self.functions,
            "example": str(self.example),
            "why": self.rule.text,
            "source": self.rule.source,
            "accepted": self.rule.accepted,
        }


def lint(package: Package, functions: Iterable[str] | None = None, generation: int = 1) -> list[BrokenRule]:
    """Check functions of a package against all rules, and return the broken rules. ``REFUSED`` rules come first.

    Args:
        package: The package.
        functions: Names of the functions to check (default: all functions).
        generation: Generation of the oldest chip on which the package must run. An M1 has generation 1.

    Raises:
        UserError: The package has no such function.
    """
    broken_rules: dict[str, BrokenRule] = {}
    for name in sorted(package.functions) if functions is None else functions:
        linted = LintedFunction(package, package.function(name))
        for rule in RULES:
            if rule.until is None or generation <= rule.until:
                for violation in rule.check(linted):
                    broken_rules.setdefault(rule.id, BrokenRule(rule, violation)).add(name, violation)
    return sorted(broken_rules.values(), key=lambda broken: (REFUSED, WARNING).index(broken.rule.severity))
