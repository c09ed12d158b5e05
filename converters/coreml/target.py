"""Core ML as a target of conversion."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ane.backends.mil.package import Package
from ane.bundles import Model
from ane.bundles.packages import PackageRecord
from ane.system.errors import UserError
from converters.coreml.graph import ct
from converters.coreml.package import COMPRESSIONS, CoreMLOptions, finish_package, write_package
from converters.decoder_graphs import RECENT
from converters.functions import ConvertibleModel, Sizes, check_precision, convertible_model, convertible_networks
from converters.neural_engine import MAX_AXIS
from converters.proof.lint import STRICT, lint
from converters.proof.lint_rules import REFUSED
from converters.proof.parity import measure_parity

STEP = "step"
PLACES_AFTER = 32       # slots of a step that must be left after the longest prefix
DECODER_ONLY = {"lanes": "lanes", "caches": "cache"}    # option without effect without a decoder → its name for users


class CoreMLTarget:
    """``converters.conversion.ConversionTarget`` that makes .mlpackage folders."""

    name = "coreml"
    unmerged = 1

    @property
    def networks(self) -> tuple[str, ...]:
        return convertible_networks(self.name)

    def check(self, options: Sequence[CoreMLOptions], model: Model) -> None:
        for option in options:
            check_precision(model, option.precision, "compressed", COMPRESSIONS)
            check_options(option, model)

    def versions(self) -> tuple[str, ...]:
        return (ct.__version__,)

    def package(self, model: Model, network: str, options: CoreMLOptions, work: Path,
                progress: Callable[[str], None], licence: str) -> PackageRecord:
        package = write_package(model, network, options, work, lambda function: progress(f"building {function}"))
        broken = lint(Package(work / package.path))
        if network in STRICT and broken and broken[0].rule.severity == REFUSED:
            raise UserError(f"{package.path} contains what the Neural Engine refuses, {broken[0].rule.id}: "
                            f"{broken[0].example}: it is not published")
        functions = measure_parity(model, package, work, lambda function: progress(f"measuring {function}"))
        return finish_package(work, package, functions, [rule.record() for rule in broken], licence)


def check_options(options: CoreMLOptions, model: Model) -> None:
    """Raise UserError for options without effect on this model, and for lengths that it or the engine does not take."""
    convertible = convertible_model(model)
    buckets = convertible.buckets
    for kind, sizes in options.buckets.items():
        if kind not in buckets:
            raise UserError(f"buckets={kind}: {model.name} is a {model.family.title} model, whose functions are "
                            f"{', '.join(buckets)}")
        bucket, where = buckets[kind], f"buckets={kind}={max(sizes)}"
        if min(sizes) < bucket.smallest:
            raise UserError(f"buckets={kind}={min(sizes)}: must be at least {bucket.smallest}")
        if network_of(convertible, kind) not in model.networks:
            raise UserError(f"{where}: {model.name} has no {network_of(convertible, kind)}")
        if bucket.most and max(sizes) > bucket.most(model):
            raise UserError(f"{where}: this model takes at most {bucket.most(model)} {bucket.unit}")
        if max(sizes) > MAX_AXIS and kind != STEP:
            raise UserError(f"{where}: the Neural Engine takes no axis above {MAX_AXIS}; use smaller buckets")
    if convertible.slots:
        _check_steps(options, convertible.slots(model, max(options.lanes)))
        return
    for option, name in DECODER_ONLY.items():
        if getattr(options, option) != getattr(CoreMLOptions, option):
            raise UserError(f"{name} has no effect: {model.name} is a {model.family.title} model, which has no decoder",
                            name)


def network_of(model: ConvertibleModel, bucket: str) -> str:
    return next(row.network for row in model.functions if bucket in row.buckets)


def _check_steps(options: CoreMLOptions, default: Sizes) -> None:
    """Raise UserError for steps of a decoder that the engine does not take, or that no prefix fits in."""
    sizes, prefill = options.buckets.get(STEP), options.buckets.get("prefill")
    most = max(sizes or default)
    if most > MAX_AXIS:
        raise UserError(f"buckets={STEP}={most}: the Neural Engine takes no axis above {MAX_AXIS}; use fewer lanes or "
                        "smaller buckets")
    if sizes and prefill and most < max(prefill) + PLACES_AFTER:
        raise UserError(f"buckets={STEP}={most}: a prefix of {max(prefill)} columns must fit, and codes after it")
    if "state" not in options.caches:
        return
    for slots in sizes or ():
        if slots % RECENT:
            raise UserError(f"buckets={STEP}={slots}: the slots of a state must be a multiple of {RECENT}; use "
                            f"{-(-slots // RECENT) * RECENT}, or cache io only")
    if max(options.lanes) > RECENT:
        raise UserError(f"cache state takes at most {RECENT} lanes, got {max(options.lanes)}: use cache io only",
                        "cache")
