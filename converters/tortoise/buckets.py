"""Which functions each package gets: the lengths that a model can need, unless others are asked for.

A bucket is one fixed shape; the runtime takes the smallest that fits and pads. Few and well spread is better than many:
each is compiled on its own by Core ML.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ane.bundles import Model
from ane.models.tortoise.diffusion import frame_count
from ane.system.errors import UserError
from converters.coreml.graph import Graph
from converters.tortoise import autoregressive as gpt2
from converters.tortoise import clvp, conditioning, hifigan, univnet
from converters.tortoise import diffusion_decoder as diffusion

if TYPE_CHECKING:
    from converters.coreml.package import Options

MAX_DIMENSION = 16384                           # of the Neural Engine (converters.proof.lint)
UPSTREAM_CODES = 500                            # max_codes of upstream's presets
PREFILL_COLUMNS = 64                            # of a prefix at a time (apple/coreai-models: one by one drifts in fp16)
SLOTS_A_LANE = 256                              # 12 s of speech each; and as many for the prefix

# kind → the least length that its probe can be driven with
LEAST = {"prefill": 16, "step": 64, "condition": 16, "denoise": 64, "sample": 64, "clvp_text": 16, "clvp_speech": 16,
         "univnet": 4, "hifigan": 8}

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


def check_buckets(options: "Options", model: Model) -> None:
    """Raise UserError for lengths that no axis can have, and those beyond all that the model can be asked for."""
    config = model.config("autoregressive")
    positions = rounded(config.max_text_tokens + config.max_mel_tokens, 64)
    if max(options.buckets.get("prefill", (0,))) > positions:
        raise UserError(f"--buckets prefill={max(options.buckets['prefill'])}: this model has {positions} positions")
    for kind, sizes in options.buckets.items():
        if min(sizes) < LEAST.get(kind, 1):
            raise UserError(f"--buckets {kind}={min(sizes)}: at least {LEAST[kind]}; less serves nothing")
    if "prefill" in options.buckets and "step" in options.buckets and (
            max(options.buckets["step"]) < max(options.buckets["prefill"]) + LEAST["step"] // 2):
        raise UserError(f"--buckets step={max(options.buckets['step'])}: a prefix of "
                        f"{max(options.buckets['prefill'])} columns must fit in, and codes after it")
    largest = {"step": (_slots(max(options.lanes), 0),), **options.buckets}
    for kind, sizes in largest.items():
        if max(sizes) > MAX_DIMENSION:
            raise UserError(f"--buckets {kind}={max(sizes)}: the Neural Engine takes no axis above {MAX_DIMENSION}; "
                            + ("use fewer --lanes or smaller buckets" if kind == "step" else "use smaller buckets"))


def lengths(model: Model) -> dict[str, tuple[int, ...]]:
    """Buckets by kind that suit what the model can be asked for."""
    decoder = model.config("autoregressive")
    codes = min(model.settings.get("sampling", {}).get("max_codes", UPSTREAM_CODES), decoder.max_mel_tokens - 1)
    latents = doubling(64, codes)
    frames = tuple(dict.fromkeys(rounded(frame_count(count), 64) for count in latents))
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
    if "state" in options.caches:       # a state is filled by steps alone, and a prefix one by one would take long
        wide = {slots for lanes, slots in pools if lanes < PREFILL_COLUMNS and slots >= 2 * PREFILL_COLUMNS}
        steps += [gpt2.fill(twin, PREFILL_COLUMNS, slots, scale) for slots in sorted(wide)]
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
