"""The Core ML graphs of Tortoise's networks: the functions of each package, in default or requested lengths.

A bucket is one fixed shape; the runtime takes the smallest that fits and pads. Core ML compiles each bucket, so a few
well-spread ones are better than many.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ane.bundles import Model
from ane.models.tortoise.diffusion import frame_count
from ane.system.errors import UserError
from converters.coreml.graph import CoreMLGraph
from converters.coreml.options import CoreMLOptions
from converters.decoder_graphs import RECENT, cached_steps, slot_buckets
from converters.engine_limits import MAX_AXIS
from converters.tortoise import autoregressive as gpt2
from converters.tortoise import clvp, conditioning, univnet
from converters.tortoise import diffusion_decoder as diffusion
from converters.vocoders import hifigan

UPSTREAM_CODES = 500                            # max_codes of upstream's presets

# kind → smallest length that its probe supports
SMALLEST = {"prefill": 16, "step": 64, "condition": 16, "denoise": 64, "sample": 64, "clvp_text": 16, "clvp_speech": 16,
            "univnet": 4, "hifigan": 8}

# kind → what its length counts, for messages about --buckets
LENGTH_UNITS = {
    "prefill": "columns", "step": "slots", "condition": "latents", "denoise": "frames", "sample": "frames",
    "steps": "fused diffusion steps", "clvp_text": "tokens", "clvp_speech": "codes", "univnet": "frames",
    "hifigan": "frames",
}


def scale_of(network: str, reference: Any) -> float:
    """The factor that the host multiplies the decoder's input columns by; 1 for other networks."""
    return gpt2.stream_scale(reference) if network == "autoregressive" else 1.0


@dataclass(frozen=True)
class GraphSettings:
    """Lengths by kind of function, options, and the scale of the inputs (``scale_of``)."""

    lengths: Mapping[str, tuple[int, ...]]
    options: CoreMLOptions
    scale: float


def graphs_of(network: str, reference: Any, model: Model, options: CoreMLOptions, scale: float) -> list[CoreMLGraph]:
    """The functions of a network's package. Raises UserError for a bucket that is too long for the engine."""
    return GRAPHS[network](reference, GraphSettings(lengths(model) | dict(options.buckets), options, scale))


def check_buckets(options: CoreMLOptions, model: Model) -> None:
    """Raise UserError for lengths that are too small, longer than the model supports, or too long for the engine."""
    config = model.config("autoregressive")
    positions = rounded(config.max_text_tokens + config.max_mel_tokens, 64)
    if max(options.buckets.get("prefill", (0,))) > positions:
        raise UserError(f"buckets=prefill={max(options.buckets['prefill'])}: this model has {positions} positions")
    for kind, sizes in options.buckets.items():
        if min(sizes) < SMALLEST.get(kind, 1):
            raise UserError(f"buckets={kind}={min(sizes)}: must be at least {SMALLEST[kind]}")
    for slots in options.buckets.get("step", ()) if "state" in options.caches else ():
        if slots % RECENT:
            raise UserError(f"buckets=step={slots}: the slots of a state must be a multiple of {RECENT}; use "
                            f"{rounded(slots, RECENT)}, or cache io only")
    if "prefill" in options.buckets and "step" in options.buckets and (
            max(options.buckets["step"]) < max(options.buckets["prefill"]) + SMALLEST["step"] // 2):
        raise UserError(f"buckets=step={max(options.buckets['step'])}: a prefix of "
                        f"{max(options.buckets['prefill'])} columns must fit, and codes after it")
    default = pool_slots(config, max(options.lanes), lengths(model)["codes"][0])
    for kind, sizes in {"step": (default,), **options.buckets}.items():
        if max(sizes) > MAX_AXIS:
            raise UserError(f"--buckets {kind}={max(sizes)}: the Neural Engine takes no axis above {MAX_AXIS}; "
                            + ("use fewer lanes or smaller buckets" if kind == "step" else "use smaller buckets"))
    if "state" in options.caches and max(options.lanes) > RECENT:
        raise UserError(f"cache state takes at most {RECENT} lanes, got {max(options.lanes)}: use cache io only")


def lengths(model: Model) -> dict[str, tuple[int, ...]]:
    """The default buckets by kind, which cover what the model supports."""
    decoder = model.config("autoregressive")
    codes = min(model.settings.get("sampling", {}).get("max_codes", UPSTREAM_CODES), decoder.max_mel_tokens - 1)
    latents = doubling(64, codes)
    frames = tuple(dict.fromkeys(rounded(frame_count(count), 64) for count in latents))
    return {
        "prefill": doubling(64, decoder.max_text_tokens + 3),
        "codes": (codes,), "condition": latents, "denoise": frames, "sample": frames[:2], "steps": (5,),
        "clvp_text": doubling(64, decoder.max_text_tokens), "clvp_speech": (rounded(codes, 64),),
        "univnet": (14, 62), "hifigan": (14, 62),      # 62: no row above 16384 samples, margins included
    }


def doubling(first: int, most: int) -> tuple[int, ...]:
    """``first``, its doubles, and last ``most`` rounded up to a multiple of ``first``: (64, 128, 256, 448)."""
    found = []
    while first < most:
        found.append(first)
        first *= 2
    return (*found, rounded(most, found[0] if found else first))


def rounded(length: int, unit: int) -> int:
    """``length`` rounded up to a multiple of ``unit``."""
    return -(-length // unit) * unit


def _autoregressive(network: Any, settings: GraphSettings) -> list[CoreMLGraph]:
    """Prefills, and steps for each number of lanes, number of slots and kind of cache."""
    options, scale, sizes = settings.options, settings.scale, settings.lengths
    graphs, shape = gpt2.decoder_graphs(network, scale), network.config.decoder_shape
    pools = {lanes: sorted(sizes["step"]) if "step" in sizes else slot_buckets(
        pool_slots(network.config, lanes, sizes["codes"][0]), shape) for lanes in options.lanes}
    return [*(graphs.prefill(columns) for columns in sizes["prefill"]), *cached_steps(graphs, pools, options.caches)]


def pool_slots(config: Any, lanes: int, codes: int) -> int:
    """The largest default number of slots: a prefix and all codes of every lane; for one lane, all its positions."""
    own = config.max_mel_tokens if lanes == 1 else lanes * codes
    return rounded(config.max_text_tokens + 3, 64) + rounded(own, 64)


def _diffusion(network: Any, settings: GraphSettings) -> list[CoreMLGraph]:
    """The conditioning, one denoising step for one row and for a guided pair, and several fused steps."""
    sizes = settings.lengths
    batches = (1, 2)
    return [
        *(diffusion.condition(network, latents) for latents in sizes["condition"]),
        *(diffusion.denoise(network, batch, frames) for batch in batches for frames in sizes["denoise"]),
        *(diffusion.sample(network, steps, batch, frames) for steps in sizes["steps"] if steps > 1
          for batch in batches for frames in sizes["sample"]),
    ]


def _clvp(network: Any, settings: GraphSettings) -> list[CoreMLGraph]:
    return [*(clvp.clvp_text(network, positions) for positions in settings.lengths["clvp_text"]),
            *(clvp.clvp_speech(network, positions) for positions in settings.lengths["clvp_speech"])]


GRAPHS = {
    "autoregressive": _autoregressive,
    "conditioning_encoder": lambda network, _: [conditioning.ar_conditioning(network)],
    "contextual_embedder": lambda network, _: [conditioning.diffusion_conditioning(network)],
    "rlg_auto": lambda network, _: [conditioning.ar_random(network)],
    "rlg_diffuser": lambda network, _: [conditioning.diffusion_random(network)],
    "clvp": _clvp,
    "diffusion": _diffusion,
    "univnet": lambda network, settings: [univnet.univnet(network, n) for n in settings.lengths["univnet"]],
    "hifigan": lambda network, settings: [hifigan.hifigan(network, n) for n in settings.lengths["hifigan"]],
}
