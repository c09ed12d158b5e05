"""Choose a package for each network of a bundle, and estimate whether the chosen packages fit in memory."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ane.bundles.package_records import NAMES, WEIGHTS, PackageRecord
from ane.bundles.precisions import ONNX, PACKAGES, stored_precision
from ane.system.errors import UserError
from ane.system.machine import memory_bytes

if TYPE_CHECKING:
    from ane.backends.onnx.providers import OnnxDevice
    from ane.bundles.bundle import Bundle

LOADED_FUNCTIONS = 4  # estimate: a text uses 4 functions of a network, such as three buckets and the conditioning
MEMORY_SHARE = 0.4  # loaded functions may take this share of the installed memory


def select_packages(
    model: "Bundle",
    precision: str,
    packages: Sequence[PackageRecord] | None = None,
    format: str = "coreml",
    device: str = "",
) -> dict[str, PackageRecord]:
    """Choose one package for each network that has packages.

    Args:
        model: The bundle.
        precision: Precision of the packages. If a network cannot be stored in this precision, the function chooses the
            precision that the converter uses in its place. "auto" means the first package of a network. For ONNX,
            "auto" prefers a package whose precision the device computes itself, instead of leaving it to the CPU.
        packages: Packages to choose from. ``None`` means the packages of the bundle.
        format: Format of the packages, "coreml" or "onnx".
        device: Name of ONNX Runtime's device.

    Raises:
        UserError: The bundle has no packages, or none of this precision. Or a package was converted from weights that
            differ from the weights in the bundle.
    """
    if packages is None:
        packages = model.onnx_packages if format == "onnx" else model.packages
    if not packages:
        raise model.lacks_packages(format, "use backend=torch")
    known = PACKAGES[format]
    if precision not in ("auto", *known):
        raise UserError(
            f"precision must be one of {', '.join(known)} for {NAMES[format]} packages, got {precision}", "precision"
        )
    packages = sorted(
        packages, key=lambda package: package.precision in known and device in known[package.precision].on_cpu
    )
    stored = (
        {}
        if precision == "auto"
        else {name: stored_precision(known, network, precision) for name, network in model.family.networks.items()}
    )
    chosen: dict[str, PackageRecord] = {}
    for package in packages:
        if package.precision == stored.get(package.network, package.precision):
            chosen.setdefault(package.network, package)
    for package in packages:
        if package.network not in chosen and stored[package.network] == precision:
            available = ", ".join(dict.fromkeys(p.precision for p in packages if p.network == package.network))
            raise UserError(
                f"{model.name} has {package.network} in {available}, not in {precision}: choose one of "
                f"these precisions, or convert again in {precision}"
            )
        weights = package.source.get(WEIGHTS)
        if weights and weights != model.manifest.networks[package.network].weights.sha256:
            raise UserError(
                f"{model.path / package.path} was converted from other weights than the bundle has: "
                "convert the model again"
            )
    first = {package.network: package for package in reversed(packages)} | chosen
    return {package.network: first[package.network] for package in packages}


def refuse_cpu_precision(packages: Mapping[str, PackageRecord], device: "OnnxDevice") -> None:
    """Raise UserError if ONNX Runtime would compute the precision of a package on the CPU instead of the chosen GPU."""
    for name, package in packages.items():
        if device.name in ONNX[package.precision].on_cpu:
            others = [other for other, row in ONNX.items() if other != "fp32" and device.name not in row.on_cpu]
            raise UserError(
                f"precision {package.precision} of {name} is too slow on onnx:{device.name}, where every product "
                f"would wait for the CPU: use backend=onnx:cpu, or convert with `ane convert --to onnx --precision "
                f"{','.join(others)}` and use precision={' or '.join(others)}"
            )


def fits_in_memory(packages: Mapping[str, PackageRecord], installed: int | None = None) -> bool:
    """Return whether the functions of all networks can stay loaded together.

    Every loaded function takes memory for its weights, even if functions share weights in the package
    (apple/coremltools#2351). The estimate is ``LOADED_FUNCTIONS`` times the weights of every package. The estimate may
    be at most ``MEMORY_SHARE`` of the ``installed`` bytes. If ``installed`` is ``None``, this machine's memory counts.
    """
    installed = memory_bytes() if installed is None else installed
    weights = sum(file.bytes for package in packages.values() for file in package.files)
    return installed is None or LOADED_FUNCTIONS * weights <= MEMORY_SHARE * installed


def describe_packages(runtime: str, packages: dict[str, PackageRecord], model: "Bundle") -> str:
    """Describe a backend for reports: its runtime, its packages' precisions, and the networks that run on torch."""
    precisions = "+".join(sorted({package.precision for package in packages.values()}))
    missing = sorted(name for name in model.networks - set(packages) if model.family.networks[name].for_speech)
    return f"{runtime} {precisions}" + (f", on torch: {', '.join(missing)}" if missing else "")
