"""Which functions each package gets: the lengths that a model can need, unless others are asked for.

A bucket is one fixed shape; the runtime takes the smallest that fits and pads. Few and well spread is better than many:
each is compiled on its own by Core ML.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ane.diffusion import frames_of
from ane.errors import UserError
from ane.model import Model
from converters import clvp, conditioning, diffusion, gpt2, hifigan, univnet
from converters.graph import Graph

if TYPE_CHECKING:
    from converters.to_coreml import Options

UPSTREAM_CODES = 500                            # max_codes of upstream's presets
SLOTS_A_LANE = 256                              # 12 s of speech each; and as many for the prefix

# kind → what is counted, for the messages about --buckets
COUNTED = {
    "prefill": "columns", "step": "slots", "condition": "latents", "denoise": "frames", "sample": "frames",
    "steps": "fused diffusion steps", "clvp_text": "tokens", "clvp_speech": "codes", "univnet": "frames",
    "hifigan": "frames",
}


def scale_of(network: str, twin: Any) -> float:
    """Of the inputs that are a residual stream: the host gives them scaled."""
    return gpt2.stream_scale(twin) if network == "autoregressive" else 1.0


@dataclass(frozen=True)
class Wanted:
    """What the functions of a network depend on besides its weights: lengths by kind, options, scale of its inputs."""

    sizes: Mapping[str, tuple[int, ...]]
    options: "Options"
    scale: float


def graphs_of(network: str, twin: Any, model: Model, options: "Options", scale: float) -> list[Graph]:
    """The functions of a network's package. Raises UserError for buckets that cannot be."""
    if network not in GRAPHS:
        raise UserError(f"{network} is not converted; there are {', '.join(GRAPHS)}")
    return GRAPHS[network](twin, Wanted(lengths(model) | dict(options.buckets), options, scale))


def lengths(model: Model) -> dict[str, tuple[int, ...]]:
    """Buckets by kind that suit what the model can be asked for."""
    decoder = model.config("autoregressive")
    codes = min(model.settings.get("sampling", {}).get("max_codes", UPSTREAM_CODES), decoder.max_mel_tokens - 1)
    latents = doubling(64, codes)
    frames = tuple(dict.fromkeys(rounded(frames_of(count), 64) for count in latents))
    return {
        "prefill": doubling(64, decoder.max_text_tokens + 3),
        "condition": latents, "denoise": frames, "sample": frames[:2], "steps": (5,),
        "clvp_text": doubling(64, decoder.max_text_tokens), "clvp_speech": (rounded(codes, 64),),
        "univnet": (14, 62), "hifigan": (14, 62),      # 62: no row above 16384 samples, margins included
    }


def doubling(first: int, most: int) -> tuple[int, ...]:
    """first, twice that, … and last ``most`` rounded up to a multiple of ``first``: (64, 128, 256, 448)."""
    found = []
    while first < most:
        found.append(first)
        first *= 2
    return (*found, rounded(most, found[0] if found else first))


def rounded(length: int, unit: int) -> int:
    return -(-length // unit) * unit


def _autoregressive(twin: Any, wanted: Wanted) -> list[Graph]:
    """Prefills; steps for each number of lanes and each kind of cache."""
    options, scale, sizes = wanted.options, wanted.scale, wanted.sizes
    positions = rounded(twin.config.max_text_tokens + 3 + twin.config.max_mel_tokens, 64)
    pools = [(lanes, slots) for lanes in options.lanes for slots in sizes.get("step", (_slots(lanes, positions),))]
    steps = [gpt2.step(twin, lanes, slots, cache, scale) for cache in options.caches for lanes, slots in pools]
    # a state is filled by steps alone, so prefills are of use to the other kind
    return [*(gpt2.prefill(twin, columns, scale) for columns in sizes["prefill"] if "io" in options.caches), *steps]


def _slots(lanes: int, positions: int) -> int:
    """Slots for so many lanes; a single one gets every position there is."""
    return positions if lanes == 1 else SLOTS_A_LANE * (lanes + 1)


def _diffusion(twin: Any, wanted: Wanted) -> list[Graph]:
    """The part before the loop, the network for one row and for a guided pair, and several steps in one."""
    sizes = wanted.sizes
    batches = (1, 2)
    return [
        *(diffusion.condition(twin, latents) for latents in sizes["condition"]),
        *(diffusion.denoise(twin, batch, frames) for batch in batches for frames in sizes["denoise"]),
        *(diffusion.sample(twin, steps, batch, frames) for steps in sizes["steps"] if steps > 1
          for batch in batches for frames in sizes["sample"]),
    ]


def _clvp(twin: Any, wanted: Wanted) -> list[Graph]:
    return [*(clvp.clvp_text(twin, places) for places in wanted.sizes["clvp_text"]),
            *(clvp.clvp_speech(twin, places) for places in wanted.sizes["clvp_speech"])]


GRAPHS = {
    "autoregressive": _autoregressive,
    "conditioning_encoder": lambda twin, _: [conditioning.ar_conditioning(twin)],
    "contextual_embedder": lambda twin, _: [conditioning.diffusion_conditioning(twin)],
    "rlg_auto": lambda twin, _: [conditioning.ar_random(twin)],
    "rlg_diffuser": lambda twin, _: [conditioning.diffusion_random(twin)],
    "clvp": _clvp,
    "diffusion": _diffusion,
    "univnet": lambda twin, wanted: [univnet.univnet(twin, n) for n in wanted.sizes["univnet"]],
    "hifigan": lambda twin, wanted: [hifigan.hifigan(twin, n) for n in wanted.sizes["hifigan"]],
}
