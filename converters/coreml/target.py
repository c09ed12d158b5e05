"""Core ML as a target of conversion."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ane.bundles import Model
from ane.bundles.packages import PackageRecord
from ane.system.errors import UserError
from converters.coreml.compress import COMPRESSIONS
from converters.coreml.graph import ct
from converters.coreml.options import CoreMLOptions, check_options
from converters.coreml.package import finish_package, write_package
from converters.models import check_precision, chosen_networks, convertible_networks, graph_builder
from converters.proof.accepted_warnings import STRICT, refusals, warnings_of
from converters.proof.parity import measure_parity


class CoreMLTarget:
    """``converters.conversion.ConversionTarget`` that makes .mlpackage folders."""

    name = "coreml"
    unmerged = 1
    networks = convertible_networks(name)

    def check(self, options: Sequence[CoreMLOptions], model: Model) -> None:
        if sys.platform == "win32":
            raise UserError("conversion runs on macOS and Linux: coremltools has no Windows build")
        builder = graph_builder(self.name, chosen_networks(model, None, self.networks)[0])
        for option in options:
            check_precision(model, option.precision, "compressed", COMPRESSIONS)
            check_options(option, model, builder.LENGTH_UNITS)
            builder.check_buckets(option, model)

    def versions(self) -> tuple[str, ...]:
        return (ct.__version__,)

    def package(self, model: Model, network: str, options: CoreMLOptions, work: Path,
                progress: Callable[[str], None], licence: str) -> PackageRecord:
        package = write_package(model, network, options, work, lambda function: progress(f"building {function}"))
        warnings = warnings_of(work / package.path)
        refused = refusals(warnings) if network in STRICT else []
        if refused:
            raise UserError(f"{package.path} contains what the Neural Engine refuses, {refused[0]}: it is not "
                            "published")
        functions = measure_parity(model, package, work, lambda function: progress(f"measuring {function}"))
        return finish_package(work, package, functions, warnings, licence)
