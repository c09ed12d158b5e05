"""Options of a conversion to Core ML."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields

from ane.bundles import Model
from ane.bundles.packages import PackageRecord
from ane.system.errors import UserError
from converters.coreml.compress import COMPRESSIONS
from converters.coreml.graph import Style
from converters.models import network_spec

DECODER_ONLY = {"lanes": "lanes", "caches": "cache"}    # option without effect without a decoder → its name for users
PRECISIONS = ("fp16", "fp32", *COMPRESSIONS)


@dataclass(frozen=True)
class CoreMLOptions:
    """One set of options, for packages of one precision.

    Attributes:
        precision: one of ``PRECISIONS``.
        heads, wide: see ``Style``.
        lanes: column counts of the decoder's step functions.
        caches: kinds of kv-cache to build step functions for: "io", "state".
        buckets: lengths by kind of function, instead of the model's defaults (``converters.tortoise.buckets``).
    """

    precision: str = "fp16"
    heads: str = "matmul"
    wide: frozenset[str] = frozenset()
    lanes: tuple[int, ...] = (1, 16)
    caches: tuple[str, ...] = ("io", "state")
    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def style(self, network: str) -> Style:
        return Style("fp32" if self.stored(network) == "fp32" else "fp16", self.wide, self.heads)

    def stored(self, network: str) -> str:
        """The precision of a network's package: some networks are always fp32, and only the largest are compressed."""
        spec = network_spec(network)
        if not spec.fp16_package:
            return "fp32"
        return self.precision if self.precision not in COMPRESSIONS or spec.compressed else "fp16"

    @classmethod
    def of(cls, package: PackageRecord) -> "CoreMLOptions":
        """The options that a package was made with.

        Raises:
            UserError: its record does not state them.
        """
        stated = package.source.get("options")
        if not isinstance(stated, dict) or set(stated) != {item.name for item in fields(cls)}:
            raise UserError(f"{package.path}: bundle.json does not state the options it was made with: convert the "
                            "model again")
        return cls(stated["precision"], stated["heads"], frozenset(stated["wide"]), tuple(stated["lanes"]),
                   tuple(stated["caches"]), {kind: tuple(sizes) for kind, sizes in stated["buckets"].items()})


def check_options(options: CoreMLOptions, model: Model, kinds: Collection[str]) -> None:
    """Raise UserError for options without effect on this model, whose functions are of these ``kinds``."""
    for kind in options.buckets:
        if kind not in kinds:
            raise UserError(f"buckets={kind}: {model.name} is a {model.family.title} model, whose functions are "
                            f"{', '.join(kinds)}")
    for option, name in DECODER_ONLY.items() if model.family.stages.decoder is None else ():
        if getattr(options, option) != getattr(CoreMLOptions, option):
            raise UserError(f"{name} has no effect: {model.name} is a {model.family.title} model, which has no decoder")
