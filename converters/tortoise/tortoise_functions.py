"""List the functions in the packages of Tortoise's networks, and the default lengths of the Core ML functions.

A Core ML function has fixed lengths. The runtime takes the shortest function that is long enough, and pads the input.
Core ML compiles every function, so the lengths are few and far apart.
"""

from typing import Any

from ane.bundles import Bundle
from ane.models.tortoise.diffusion import frame_count
from ane.models.tortoise.networks.univnet import SILENT_FRAMES
from converters.convnext import source_filter
from converters.decoder_graphs import DecoderGraphBuilder, cached_steps, slot_buckets, stores
from converters.function_table import Bucket, ConvertibleModel, Function, GraphRequest, Sizes, stage_probe
from converters.tortoise import autoregressive, clvp, conditioning, univnet
from converters.tortoise import diffusion_decoder as diffusion
from converters.tortoise import onnx_graphs as onnx
from converters.tortoise import tortoise_probes as probes
from converters.tortoise.tortoise_probes import id_probe
from converters.vocoders import bigvgan, hifigan

UPSTREAM_CODES = 500  # max_codes of upstream's presets
BATCHES = (1, 2)  # batch sizes of a denoising step: 1 without guidance, 2 with guidance


def rounded(length: int, unit: int) -> int:
    """Round ``length`` up to a multiple of ``unit``."""
    return -(-length // unit) * unit


def doubling(first: int, most: int) -> Sizes:
    """Return lengths of which each is twice the one before, such as (64, 128, 256, 448). The first length is ``first``.

    The last length is ``most``, rounded up to a multiple of ``first``.
    """
    sizes = []
    while first < most:
        sizes.append(first)
        first *= 2
    return (*sizes, rounded(most, sizes[0] if sizes else first))


def codes(model: Bundle) -> int:
    """Return the largest number of codes that a chunk of text may have."""
    most_codes = model.settings.get("sampling", {}).get("max_codes", UPSTREAM_CODES)
    return min(most_codes, model.config("autoregressive").max_mel_tokens - 1)


def positions(model: Bundle) -> int:
    config = model.config("autoregressive")
    return rounded(config.max_text_tokens + config.max_mel_tokens, 64)


def text(model: Bundle, extra: int = 0) -> Sizes:
    return doubling(64, model.config("autoregressive").max_text_tokens + extra)


def frames(model: Bundle) -> Sizes:
    return tuple(dict.fromkeys(rounded(frame_count(count), 64) for count in doubling(64, codes(model))))


def slots(model: Bundle, lanes: int) -> Sizes:
    config = model.config("autoregressive")
    return slot_buckets(pool_slots(config, lanes, codes(model)), config.decoder_shape)


def pool_slots(config: Any, lanes: int, codes: int) -> int:
    """Return the default number of slots in the decoder's cache for this number of lanes (sequences).

    The slots hold a prefix and all codes of every lane. A single lane gets slots for all positions that the decoder has
    for codes.
    """
    lane_slots = config.max_mel_tokens if lanes == 1 else lanes * codes
    return rounded(config.max_text_tokens + 3, 64) + rounded(lane_slots, 64)


def _decoder(request: GraphRequest) -> DecoderGraphBuilder:
    return autoregressive.decoder_graphs(request.network, request.scale)


# Thresholds in dB. If every operation is rounded, the decoder of `demo` reaches 50 to 58 dB in fp16. It reaches 29 dB
# with 8 bits, and 18 dB with 6 bits
DECODER: dict[str, tuple[float, float | None]] = {"fp16": (60.0, 46.0), "8bit": (26.0, 26.0), "6bit": (15.0, 15.0)}
STATE = {"fp32": (60.0, None), **DECODER}  # a state is always fp16
# A trained HiFi-GAN reaches at most 56 dB, even if only its latents and slopes are rounded. The HiFi-GAN of `demo`
# reaches 44.3 dB
VOCODER = {"fp16": (60.0, 41.0)}
# at least 6 dB below what the networks of `demo`, and random weights of the official size, reach
CLIP, DENOISER = {"fp16": (82.0, 50.0)}, {"fp16": (72.0, 50.0)}
PERIODIC = {"fp16": (47.0, 45.0)}  # random weights in NVIDIA's code reach 53 dB, because sine amplifies rounding
DECODED = {"hidden": "final_norm", "logits": "mel_head"}

FUNCTIONS = (
    Function(
        "prefill",
        "autoregressive",
        probes.prefill,
        onnx=onnx.prefill,
        onnx_lengths={"columns": 40},
        coreml=lambda r: [_decoder(r).prefill(columns) for columns in r.lengths("prefill")],
        bucket=Bucket("columns", 16, lambda model: text(model, 3), positions),
        calls=("step", "state", "store"),
        outputs=DECODED,
        thresholds=DECODER,
    ),
    Function(
        "step",
        "autoregressive",
        probes.step,
        onnx=onnx.step,
        onnx_lengths={"columns": 3, "slots": 64},
        coreml=lambda r: cached_steps(_decoder(r), r.pools("io"), "io"),
        bucket=Bucket("slots", 64),
        outputs=DECODED,
        thresholds=DECODER,
    ),
    Function(
        "state",
        "autoregressive",
        probes.step,
        coreml=lambda r: cached_steps(_decoder(r), r.pools("state"), "state"),
        calls=("prefill", "store"),
        outputs=DECODED,
        thresholds=STATE,
    ),
    Function(
        "store",
        "autoregressive",
        probes.store,
        coreml=lambda r: stores(_decoder(r), r.pools("state")),
        calls=("prefill", "state"),
        thresholds=STATE,
    ),
    Function(
        "step_prefixes", "autoregressive", probes.step_prefixes, onnx=onnx.step_prefixes, onnx_lengths={"lanes": 4}
    ),
    Function(
        "ar_conditioning",
        "conditioning_encoder",
        stage_probe("ar_conditioning", mel=lambda model, bucket: (1, 80, bucket["frames"])),
        coreml=lambda r: [conditioning.ar_conditioning(r.network)],
        onnx=onnx.clip(80),
        onnx_lengths={"frames": 97},
        outputs={"latent": ""},
        thresholds=CLIP,
    ),
    Function(
        "diffusion_conditioning",
        "contextual_embedder",
        stage_probe("diffusion_conditioning", mel=lambda model, bucket: (1, 100, bucket["frames"])),
        coreml=lambda r: [conditioning.diffusion_conditioning(r.network)],
        onnx=onnx.clip(100),
        onnx_lengths={"frames": 101},
        outputs={"latent": ""},
        thresholds=CLIP,
    ),
    Function(
        "ar_random",
        "rlg_auto",
        stage_probe("ar_random", noise=lambda model, bucket: (1, model.widths[0])),
        coreml=lambda r: [conditioning.ar_random(r.network)],
        onnx=onnx.random,
        outputs={"latent": ""},
    ),
    Function(
        "diffusion_random",
        "rlg_diffuser",
        stage_probe("diffusion_random", noise=lambda model, bucket: (1, model.widths[1])),
        coreml=lambda r: [conditioning.diffusion_random(r.network)],
        onnx=onnx.random,
        outputs={"latent": ""},
    ),
    Function(
        "clvp_text",
        "clvp",
        id_probe("clvp_text", "tokens", "num_text_tokens"),
        coreml=lambda r: [clvp.clvp_text(r.network, size, r.scale) for size in r.lengths("clvp_text")],
        onnx=onnx.clvp_text,
        onnx_lengths={"positions": 33},
        bucket=Bucket("tokens", 16, text),
        outputs={"latent": "to_text_latent"},
    ),
    Function(
        "clvp_speech",
        "clvp",
        id_probe("clvp_speech", "codes", "num_speech_tokens"),
        coreml=lambda r: [clvp.clvp_speech(r.network, size, r.scale) for size in r.lengths("clvp_speech")],
        onnx=onnx.clvp_speech,
        onnx_lengths={"positions": 40},
        bucket=Bucket("codes", 16, lambda model: (rounded(codes(model), 64),)),
        outputs={"latent": "to_speech_latent"},
    ),
    Function(
        "condition",
        "diffusion",
        probes.condition,
        onnx=onnx.condition,
        onnx_lengths={"latents": 17},
        coreml=lambda r: [diffusion.condition(r.network, size) for size in r.lengths("condition")],
        bucket=Bucket("latents", 16, lambda model: doubling(64, codes(model))),
        calls=("denoise",),
        thresholds=DENOISER,
    ),
    Function(
        "denoise",
        "diffusion",
        probes.denoise,
        onnx=onnx.denoise,
        onnx_lengths={"frames": 67, "batch": 2},
        coreml=lambda r: [
            diffusion.denoise(r.network, batch, size) for batch in BATCHES for size in r.lengths("denoise")
        ],
        bucket=Bucket("frames", 64, frames),
        calls=("condition",),
        outputs={"prediction": "out"},
        thresholds=DENOISER,
    ),
    Function(
        "univnet",
        "univnet",
        stage_probe(
            "univnet",
            mel=lambda model, bucket: (1, 100, bucket["frames"] - 1),
            noise=lambda model, bucket: (1, model.config("univnet").noise_dim, bucket["frames"] - 1 + SILENT_FRAMES),
        ),
        coreml=lambda r: [univnet.univnet(r.network, size) for size in r.lengths("univnet")],
        onnx=onnx.univnet,
        onnx_lengths={"frames": 19},
        bucket=Bucket("frames", 4, lambda model: (14, 62)),  # so that no row has more than 16384 samples
        # UnivNet predicts convolution kernels, which amplifies rounding. Even torch's float32 differs from torch's
        # float64: by 99 dB and 4e-5 with trained weights, and by 91 dB and 5e-4 with random weights
        onnx_fp32=(80.0, 2e-3),
    ),
    Function(
        "hifigan",
        "hifigan",
        probes.hifigan,
        coreml=lambda r: [hifigan(r.network, size) for size in r.lengths("hifigan")],
        onnx=onnx.hifigan,
        onnx_lengths={"frames": 30},
        bucket=Bucket("frames", 8, lambda model: (14, 62)),
        outputs={"sound": ""},
        thresholds=VOCODER,
    ),
    Function(
        "bigvgan",
        "bigvgan",
        stage_probe("bigvgan", mel=lambda model, lengths: (1, 100, lengths["frames"])),
        coreml=lambda r: [bigvgan(r.network, size) for size in r.lengths("bigvgan")],
        onnx=onnx.bigvgan,
        onnx_lengths={"frames": 19},
        bucket=Bucket("frames", 8, lambda model: (14, 62)),
        outputs={"sound": ""},
        thresholds=PERIODIC,
    ),
    source_filter("source_filter"),
    source_filter("mel_source_filter"),
)
MODEL = ConvertibleModel(
    "ane.models.tortoise.networks",
    FUNCTIONS,
    slots=slots,
    before_tracing=onnx.make_traceable,
    scales={"autoregressive": autoregressive.stream_scale, "clvp": clvp.stream_scale},
)
