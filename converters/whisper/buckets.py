"""The Core ML graphs of Whisper's networks: the functions of each package, in default or requested lengths."""

from typing import Any

from ane.bundles import Model
from ane.models.whisper.networks.text_decoder import WhisperDecoder, WhisperDecoderConfig
from ane.system.errors import UserError
from converters.coreml.graph import CoreMLGraph
from converters.coreml.options import CoreMLOptions
from converters.decoder_graphs import cached_steps
from converters.engine_limits import MAX_AXIS
from converters.whisper import audio_encoder, text_decoder

SMALLEST = {"prefill": 16, "step": 64}
LENGTH_UNITS = {"prefill": "columns", "step": "slots"}
GRAPHS = ("encoder", "decoder")


def scale_of(network: str, reference: Any) -> float:
    """The factor of the residual stream, by which the host multiplies the decoder's input columns."""
    return audio_encoder.encoder_scale(reference) if network == "encoder" else text_decoder.decoder_scale(reference)


def graphs_of(network: str, reference: Any, model: Model, options: CoreMLOptions, scale: float) -> list[CoreMLGraph]:
    """The functions of a network's package."""
    if network == "encoder":
        return [audio_encoder.encoder(reference, scale)]
    return _decoder(reference, options, scale)


def check_buckets(options: CoreMLOptions, model: Model) -> None:
    """Raise UserError for lengths that are too small, too large or unused."""
    config = model.config("decoder")
    for kind, sizes in options.buckets.items():
        if min(sizes) < SMALLEST[kind]:
            raise UserError(f"buckets={kind}={min(sizes)}: must be at least {SMALLEST[kind]}")
    longest = prefill_columns(config)[-1]
    if max(options.buckets.get("prefill", (0,))) > longest:
        raise UserError(f"buckets=prefill={max(options.buckets['prefill'])}: the longest prefix of this model fits "
                        f"in {longest}")
    for slots in options.buckets.get("step", [_slots(config, max(options.lanes))]):
        if slots > MAX_AXIS:
            raise UserError(f"--buckets step={slots}: the Neural Engine takes no axis above {MAX_AXIS}; use fewer "
                            "lanes or smaller buckets")


def prefill_columns(config: WhisperDecoderConfig) -> tuple[int, ...]:
    """The default lengths of a prefill: the start token alone fits in the first, the longest prompt in the last."""
    found, last = [], -(-_longest_prefix(config) // 32) * 32
    length = SMALLEST["prefill"]
    while length < last:
        found.append(length)
        length *= 4
    return (*found, last)


def _decoder(network: WhisperDecoder, options: CoreMLOptions, scale: float) -> list[CoreMLGraph]:
    """The memory's keys and values, prefills, and steps for each number of lanes and each kind of cache."""
    config, graphs = network.config, text_decoder.decoder_graphs(network, scale)
    pools = {lanes: sorted(options.buckets.get("step", (_slots(config, lanes),))) for lanes in options.lanes}
    prefills = options.buckets.get("prefill", prefill_columns(config))
    return [text_decoder.memory(network), *(graphs.prefill(columns) for columns in prefills),
            *cached_steps(graphs, pools, options.caches)]


def _longest_prefix(config: WhisperDecoderConfig) -> int:
    """A prompt with the tokens before and after it (``ane.models.whisper.decoding``)."""
    return config.n_text_ctx // 2 + 1


def _slots(config: WhisperDecoderConfig, lanes: int) -> int:
    """The default number of slots: one prefix, and all positions for each lane."""
    return sum(-(-length // 64) * 64 for length in (_longest_prefix(config), lanes * config.n_text_ctx))
