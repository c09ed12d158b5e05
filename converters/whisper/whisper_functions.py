"""List the functions in the packages of Whisper's networks, and the default lengths of the Core ML functions."""

from ane.bundles import Bundle
from ane.models.whisper.networks import WhisperDecoderConfig
from converters.decoder_graphs import DecoderGraphBuilder, cached_steps, stores
from converters.function_table import Bucket, ConvertibleModel, Function, GraphRequest, Sizes
from converters.whisper import graphs
from converters.whisper import onnx_graphs as onnx
from converters.whisper import whisper_probes as probes

SHORTEST = 16  # smallest number of columns in a prefill


def prefill_columns(model: Bundle) -> Sizes:
    """Return the default numbers of columns (inputs) in a prefill, up to the longest prompt."""
    lengths, last = [], -(-longest_prefix(model.config("decoder")) // 32) * 32
    length = SHORTEST
    while length < last:
        lengths.append(length)
        length *= 4
    return (*lengths, last)


def longest_prefix(config: WhisperDecoderConfig) -> int:
    """Return the length of the longest prefix: the longest prompt and the tokens around it.

    ``ane.models.whisper.decoding`` explains these tokens.
    """
    return config.n_text_ctx // 2 + 1


def slots(model: Bundle, lanes: int) -> Sizes:
    """Return the default number of slots in the kv-cache.

    The slots hold a prefix and all positions of every lane (sequence).
    """
    config = model.config("decoder")
    return (sum(-(-length // 64) * 64 for length in (longest_prefix(config), lanes * config.n_text_ctx)),)


def _decoder(request: GraphRequest) -> DecoderGraphBuilder:
    return graphs.decoder_graphs(request.network, request.scale)


# with random weights, cross-attention attends to almost only one position, and rounding can change which position
ROUNDED = {"fp16": (50.0, 45.0)}
STATE = {**ROUNDED, "fp32": (60.0, None)}  # a state is always fp16
HIDDEN = {"hidden": "ln"}

FUNCTIONS = (
    Function(
        "encoder",
        "encoder",
        probes.encoder,
        coreml=lambda r: [graphs.encoder(r.network, r.scale)],
        onnx=onnx.encoder,
        outputs={"states": "ln_post"},
        thresholds=ROUNDED,
    ),
    Function(
        "memory",
        "decoder",
        probes.memory,
        coreml=lambda r: [graphs.memory(r.network)],
        onnx=onnx.memory,
        calls=("prefill", "step", "state", "store"),
        outputs=HIDDEN,
        thresholds=ROUNDED,
    ),
    Function(
        "prefill",
        "decoder",
        probes.prefill,
        onnx=onnx.prefill,
        onnx_lengths={"columns": 20},
        coreml=lambda r: [_decoder(r).prefill(columns) for columns in r.lengths("prefill")],
        bucket=Bucket("columns", SHORTEST, prefill_columns, lambda model: prefill_columns(model)[-1]),
        calls=("memory", "step", "state", "store"),
        outputs=HIDDEN,
        thresholds=ROUNDED,
    ),
    Function(
        "step",
        "decoder",
        probes.step,
        onnx=onnx.step,
        onnx_lengths={"columns": 4, "slots": 64, "windows": 1},
        coreml=lambda r: cached_steps(_decoder(r), r.pools("io"), "io"),
        bucket=Bucket("slots", 64),
        calls=("memory",),
        outputs=HIDDEN,
        thresholds=ROUNDED,
    ),
    Function(
        "state",
        "decoder",
        probes.step,
        coreml=lambda r: cached_steps(_decoder(r), r.pools("state"), "state"),
        calls=("memory", "prefill", "store"),
        outputs=HIDDEN,
        thresholds=STATE,
    ),
    Function(
        "store",
        "decoder",
        probes.store,
        coreml=lambda r: stores(_decoder(r), r.pools("state")),
        calls=("memory", "prefill", "state"),
        thresholds=STATE,
    ),
    Function("step_prefixes", "decoder", probes.step_prefixes, onnx=onnx.step_prefixes, onnx_lengths={"lanes": 5}),
)
LANES = 1, 8  # numbers of lanes; a window has at most five candidates
MODEL = ConvertibleModel(
    "ane.models.whisper.networks",
    FUNCTIONS,
    LANES,
    slots=slots,
    scales={"encoder": graphs.encoder_scale, "decoder": graphs.decoder_scale},
)
