"""State the options of Core ML packages, and check them against the model and the limits of the Neural Engine."""

from copy import deepcopy
from dataclasses import field, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from ane.bundles import Bundle
from ane.bundles.package_records import PackageRecord
from ane.bundles.precisions import CORE_ML, stored_precision
from ane.system.checked import read_record, validated
from ane.system.errors import NoEffectError, UserError
from converters.coreml.graph import Style
from converters.decoder_graphs import RECENT
from converters.function_table import GraphRequest, Sizes, convertible_model, network_spec
from converters.neural_engine import MAX_AXIS

STEP = "step"
PLACES_AFTER = 32  # after the longest prefix, a step's pool must have at least this many slots left for codes
DECODER_ONLY = {"lanes": "lanes", "caches": "cache"}  # option that only decoders have → name of the option for users


@validated
class CoreMLOptions:
    """Options for the packages of one precision.

    Attributes:
        precision: A name in ``ane.bundles.precisions.CORE_ML``.
        lanes: Numbers of lanes for which a decoder gets step functions. A lane is one of the sequences that the decoder
            decodes at the same time.
        caches: Kinds of kv-cache for which a decoder gets step functions: "io", "state"
            (``converters.decoder_graphs``).
        buckets: Fixed lengths of functions, by kind of function. They replace the model's default lengths
            (``converters.function_table``).
    """

    precision: Literal[tuple(CORE_ML)] = "fp16"  # type: ignore[valid-type]
    lanes: tuple[Annotated[int, Field(ge=1)], ...] = (1, 16)
    caches: tuple[Literal["io", "state"], ...] = ("io", "state")
    buckets: dict[str, tuple[Annotated[int, Field(ge=1)], ...]] = field(default_factory=dict)

    def style(self, network: str) -> Style:
        return Style("fp32" if self.stored(network) == "fp32" else "fp16")

    def stored(self, network: str) -> str:
        """Return the precision in which this network is stored.

        Some networks are always stored in fp32. Only the largest networks are compressed.
        """
        return stored_precision(CORE_ML, network_spec(network), self.precision)

    def request(self, reference: Any, model: Bundle, scale: float = 1.0) -> GraphRequest:
        """Combine these options with a model, one of its networks and the scale of this network."""
        return GraphRequest(reference, model, self.lanes, self.caches, self.buckets, scale)

    @classmethod
    def of(cls, package: PackageRecord) -> "CoreMLOptions":
        """Return the options with which a package was made. Raises UserError if its record lacks them."""
        options = deepcopy(package.source.get("options"))
        # earlier versions had two more options, ``heads`` and ``wide``. Only one value of each is still supported
        if (
            not isinstance(options, dict)
            or options.pop("heads", "matmul") != "matmul"
            or options.pop("wide", [])
            or (set(options) != {item.name for item in fields(cls)})
        ):
            raise UserError(
                f"{package.path}: bundle.json does not record the options it was made with: convert the model again"
            )
        return read_record(cls, options, package.path, ": convert the model again")


def check_options(options: CoreMLOptions, model: Bundle) -> None:
    """Raise UserError if an option has no effect on this model, or has a length that is too small or too large."""
    convertible = convertible_model(model)
    buckets = convertible.buckets
    for kind, sizes in options.buckets.items():
        if kind not in buckets:
            raise UserError(
                f"buckets={kind}: {model.name} is a {model.family.title} model, whose functions are "
                f"{', '.join(buckets)}"
            )
        bucket, where = buckets[kind], f"buckets={kind}={max(sizes)}"
        if min(sizes) < bucket.smallest:
            raise UserError(f"buckets={kind}={min(sizes)}: must be at least {bucket.smallest}")
        network = next(row.network for row in convertible.functions if row.kind == kind)
        if network not in model.networks:
            raise UserError(f"{where}: {model.name} has no {network}")
        if bucket.most and max(sizes) > bucket.most(model):
            raise UserError(f"{where}: this model takes at most {bucket.most(model)} {bucket.unit}")
        if max(sizes) > MAX_AXIS and kind != STEP:
            raise UserError(f"{where}: the Neural Engine takes no axis above {MAX_AXIS}: use smaller buckets")
    if convertible.slots:
        _check_steps(options, convertible.slots(model, max(options.lanes)))
        return
    for option, name in DECODER_ONLY.items():
        if getattr(options, option) != getattr(CoreMLOptions, option):
            raise NoEffectError(name, f"on {model.family.title} models, which have no decoder", "leave it out")


def _check_steps(options: CoreMLOptions, default: Sizes) -> None:
    """Raise UserError if the engine rejects a number of slots or lanes, or if the longest prefix does not fit.

    A slot is a position in the kv-cache, and a lane is a sequence.
    """
    sizes, prefill = options.buckets.get(STEP), options.buckets.get("prefill")
    most = max(sizes or default)
    if most > MAX_AXIS:
        raise UserError(
            f"buckets={STEP}={most}: the Neural Engine takes no axis above {MAX_AXIS}: use fewer lanes or "
            "smaller buckets"
        )
    if sizes and prefill and most < max(prefill) + PLACES_AFTER:
        raise UserError(f"buckets={STEP}={most}: a prefix of {max(prefill)} columns must fit, and codes after it")
    if "state" not in options.caches:
        return
    for slots in sizes or ():
        if slots % RECENT:
            raise UserError(
                f"buckets={STEP}={slots}: the slots of a state must be a multiple of {RECENT}: use "
                f"{-(-slots // RECENT) * RECENT}, or cache io only"
            )
    if max(options.lanes) > RECENT:
        raise UserError(
            f"cache state takes at most {RECENT} lanes, got {max(options.lanes)}: use cache io only", "cache"
        )
