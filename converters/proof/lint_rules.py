"""The rules of the Neural Engine lint, each with its check and the source it was read in."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from converters.neural_engine import MAX_AXIS, MAX_CHANNELS, STATE_WIDTH
from converters.proof import lint_checks as checks
from converters.proof.lint_checks import LintedFunction, Violation

# severities: conversion of decoder and denoiser fails; may leave the engine; information
REFUSED, WARNING, NOTE = "refused", "warning", "note"

# sources of the rules: name and address
ANE_GUIDE = "ane-guide, chapters 4, 12, 17 and 19: https://github.com/sbryngelson/ane-guide"
ANE_GUIDE_WEIGHTS = "ane-guide, chapter 7: https://github.com/sbryngelson/ane-guide"
APPLE_RULES = "Apple, coreai-models, neural_engine_rules.md: https://github.com/apple/coreai-models"
APPLE_TRANSFORMERS = ("Apple, Deploying Transformers on the Apple Neural Engine: "
                      "https://machinelearning.apple.com/research/neural-engine-transformers")
HOLLANCE = "hollance/neural-engine, unsupported-layers.md: https://github.com/hollance/neural-engine"
ANEMLL = "Anemll: https://github.com/Anemll/Anemll"
FLUID_AUDIO = "FluidAudio: https://github.com/FluidInference/FluidAudio"
POCKET_TTS = "PocketTTS-CoreML, CONVERSION.md: https://github.com/smdesai/PocketTTS-CoreML"
STATE_ISSUE = "coremltools issue 2631: https://github.com/apple/coremltools/issues/2631"
PALETTE_ISSUE = "coremltools issue 2716: https://github.com/apple/coremltools/issues/2716"
VOXCPM = "VoxCPMANE: https://github.com/0seba/VoxCPMANE"


@dataclass(frozen=True)
class LintRule:
    """A rule.

    Attributes:
        text: the rule and its reason.
        check: yields the violations in a function.
        until: the last generation of chips that it applies to (1: M1); None: all.
    """

    id: str
    severity: str
    text: str
    source: str
    check: Callable[[LintedFunction], Iterable[Violation]]
    until: int | None = None


RULES = (
    LintRule("rank", REFUSED, "No value is above rank 4: the engine works on (batch, channels, height, width).",
             APPLE_TRANSFORMERS, checks.rank),
    LintRule("rank-of-engine", REFUSED, "The compiler rejects rank 6, and a matmul of rank 5.", ANE_GUIDE,
             checks.values_where(lambda op, type: len(type.shape) > checks.ENGINE_RANK - (op == "matmul"), "its rank")),
    LintRule("dynamic-shape", REFUSED, "Every dimension is fixed: one function for each shape.", APPLE_RULES,
             checks.values_where(lambda op, type: min(type.shape, default=0) < 0, "a dynamic dimension")),
    LintRule("integer-io", REFUSED, "Inputs and outputs are fp16: the compiler rejects int32 and bool.", ANE_GUIDE,
             checks.integer_io),
    LintRule("gather", REFUSED, "No gather: with rare exceptions it leaves the engine; the host does look-ups.",
             HOLLANCE, checks.of_types("gather", "gather_along_axis", "gather_nd")),
    LintRule("scatter", REFUSED, "No scatter: no chip supports it.", ANE_GUIDE,
             checks.of_types("scatter", "scatter_along_axis", "scatter_nd")),
    LintRule("no-such-op", WARNING,
             "No chip supports one_hot, logical ops, products along an axis, counting or sampling.", ANE_GUIDE,
             checks.of_types(
                 "band_part", "logical_and", "logical_not", "logical_or", "logical_xor", "mod", "non_zero", "one_hot",
                 "random_bernoulli", "random_categorical", "random_normal", "reduce_prod", "reverse_sequence", "shape",
                 "sliding_windows")),
    LintRule("comparison", WARNING, "No comparisons: they return bool, and the engine's values are fp16.", ANE_GUIDE,
             checks.of_types("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")),
    LintRule("topk", WARNING,
             "No topk and no sort: an M1 rejects them, and later chips have run them on the CPU or GPU.", ANE_GUIDE,
             checks.of_types("argsort", "topk")),
    LintRule("recurrent", WARNING, "No recurrent cells or loops.", HOLLANCE,
             checks.of_types("cond", "gru", "lstm", "rnn", "while_loop")),
    LintRule("fused-attention", WARNING, "No fused attention: with several queries it may drop its mask on the engine.",
             APPLE_RULES, checks.of_types("scaled_dot_product_attention")),
    LintRule("fp32", WARNING, "All values are fp16: an fp32 value leaves the engine and returns through a cast.",
             APPLE_RULES, checks.fp32_values),
    LintRule("dimension", WARNING, f"No axis is above {MAX_AXIS}, and channels not above {MAX_CHANNELS}.", ANE_GUIDE,
             checks.long_axis),
    LintRule("state-width", WARNING, f"The last axis of a state is a multiple of {STATE_WIDTH}: others fail on the "
             "engine.", STATE_ISSUE, checks.state_width),
    LintRule("4-bit-palette", WARNING,
             "4-bit palettes are reported to crash with a state after 100 to 200 predictions, and to return wrong "
             "values: check them on the Mac that runs them, with `ane verify --against coreml`.", PALETTE_ISSUE,
             checks.small_palette),
    LintRule("matmul-rows", WARNING, "The rows of a matmul's output fit 64 KB of kernel memory.", ANE_GUIDE,
             checks.matmul_rows),
    LintRule("branches", WARNING, "From twelve branches into one op on, compiling takes seconds for each such place.",
             ANE_GUIDE, checks.branches),
    LintRule("singleton-width", WARNING,
             "The last axis is padded to 64 bytes: one of size 1 costs 32 times its memory.", APPLE_RULES,
             checks.singleton_width),
    LintRule("kernel-width", WARNING, "A kernel is at most 13 wide in fp16 (15 or 16 on later chips).", ANE_GUIDE,
             checks.kernel),
    LintRule("dilation", WARNING,
             "Dilated convolutions may leave the engine (according to ane-guide they compile on an M1).", HOLLANCE,
             checks.dilation),
    LintRule("upsample", WARNING, "Upsampling by more than 2 may leave the engine.", HOLLANCE, checks.upsample),
    LintRule("odd-stride", WARNING, "A transposed convolution with an odd stride leaves the engine.", POCKET_TTS,
             checks.odd_stride),
    LintRule("sin-cos", WARNING, "sin and cos are supported from the M3 on.", ANE_GUIDE, checks.of_types("cos", "sin"),
             until=2),
    LintRule("reflection", WARNING, "Padding by reflection is supported from the M2 on.", ANE_GUIDE, checks.reflection,
             until=1),
    LintRule("computed-slice", WARNING, "An M1 does not support a slice at a computed index.", ANE_GUIDE,
             checks.computed_slice, until=1),
    LintRule("width-slice", WARNING,
             "A slice of the last axis with an offset is multiplied by 16 internally on an M1 or A14: values above "
             "4094 overflow.", ANE_GUIDE, checks.width_slice, until=1),
    LintRule("states", WARNING, "More than two states fail on the engine.", VOXCPM, checks.states),
    LintRule("too-heavy", WARNING,
             "A function has less than 950 MB of weights: above 1 GiB macOS 27 silently runs it on the CPU.", ANEMLL,
             checks.weights_where(lambda found: found > checks.MAX_BYTES)),
    LintRule("blockwise", WARNING,
             "Blockwise weights are expanded to fp16 in memory before the M3: no faster than fp16.", ANE_GUIDE_WEIGHTS,
             checks.of_form("blockwise"), until=2),
    LintRule("int8", WARNING,
             "int8 weights are expanded to fp16 in memory on an M1 (on A chips too, according to CoreML-LLM).",
             ANE_GUIDE_WEIGHTS, checks.of_form("int8"), until=1),
    LintRule("unaligned-width", NOTE, "The last axis is padded to 64 bytes, 32 values of fp16.", APPLE_RULES,
             checks.unaligned_width),
    LintRule("large-value", NOTE, "A value above 2 MB is divided and streams from memory.", ANE_GUIDE,
             checks.large_value),
    LintRule("moved-width", NOTE, "A transpose or reshape that moves the last axis copies the value.", APPLE_RULES,
             checks.moved_width),
    LintRule("groups", NOTE,
             f"Groups of a convolution that do not divide the engine's cores ({checks.CORES}) are slower.",
             ANE_GUIDE, checks.groups),
    LintRule("too-light", NOTE, "Below 50 MB of weights a function is often not worth a dispatch to the engine.",
             FLUID_AUDIO, checks.weights_where(lambda found: found < checks.MIN_BYTES)),
)
