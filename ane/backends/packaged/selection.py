"""Which package of a bundle is used for each network, and whether the chosen ones fit in memory."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ane.bundles.packages import WEIGHTS, PackageRecord
from ane.system.errors import UserError
from ane.system.machine import memory_bytes

if TYPE_CHECKING:
    from ane.backends.onnx.providers import OnnxDevice
    from ane.bundles.bundle import Bundle
    from ane.bundles.family import Network

ONNX_PRECISIONS = ("fp32", "fp16", "int8", "int4")
# precisions that a GPU's providers compute on the CPU, with copies there and back: CUDA lacks the operations that int8
# rounds activations with, TensorRT also the product of int4 (MatMulNBits, ONNX Runtime's own)
ON_CPU_ONLY = {"cpu": (), "cuda": ("int8",), "tensorrt": ("int8", "int4")}
LOADED_FUNCTIONS = 4        # of a network that a text uses, such as three buckets and the conditioning
MEMORY_SHARE = 0.4          # of the installed memory that loaded functions may take


def select_packages(model: "Bundle", precision: str,
                    packages: Sequence[PackageRecord] | None = None) -> dict[str, PackageRecord]:
    """One Core ML package for each network that has any: of this precision, or, where there is only one, of that.

    Args:
        packages: To choose from (default: those of the bundle).

    Raises:
        UserError: the bundle has no packages, none of that precision, or one made from other weights than the bundle's.
    """
    packages = model.packages if packages is None else packages
    if not packages:
        raise model.lacks_packages("coreml", "use backend=torch")
    converted = [name for name, network in model.family.networks.items()
                 if (network.fp16_package if precision in ("fp32", "fp16") else network.compressed)]
    return packages_in(model, packages, precision, {}, converted)


def stored_precision(network: "Network", precision: str) -> str:
    """The precision in which a network is stored when a model is converted with ``precision``.

    As on torch, vocoders stay in fp32 because their rounding is audible, and small networks because they gain nothing.
    """
    flag = {"fp16": "half_precision", "int8": "quantised", "int4": "quantised"}.get(precision)
    return precision if flag and getattr(network, flag) else "fp32"


def select_onnx_packages(model: "Bundle", precision: str, device: "OnnxDevice",
                         packages: Sequence[PackageRecord] | None = None) -> dict[str, PackageRecord]:
    """One package for each network that has any; "auto": the first that the device computes itself.

    Args:
        packages: To choose from (default: those of the bundle).

    Raises:
        UserError: the bundle has none, none in that precision, or one that was converted from other weights.
    """
    packages = model.onnx_packages if packages is None else packages
    if not packages:
        raise model.lacks_packages("onnx", "use backend=torch")
    if precision != "auto" and precision not in ONNX_PRECISIONS:
        raise UserError(f"precision must be one of {', '.join(ONNX_PRECISIONS)} for ONNX packages, got {precision}",
                        "precision")
    stored = {name: stored_precision(network, precision) for name, network in model.family.networks.items()}
    packages = sorted(packages, key=lambda package: package.precision in ON_CPU_ONLY.get(device.name, ()))
    return packages_in(model, packages, precision, stored, [name for name in stored if stored[name] == precision])


def refuse_cpu_precision(packages: Mapping[str, PackageRecord], device: "OnnxDevice") -> None:
    """Raise UserError for packages in a precision that a GPU's provider computes on the CPU."""
    for name, package in packages.items():
        if package.precision in ON_CPU_ONLY.get(device.name, ()):
            others = [other for other in ("fp16", "int4") if other not in ON_CPU_ONLY.get(device.name, ())]
            raise UserError(f"precision {package.precision} of {name} is for other devices: on onnx:{device.name} each "
                            f"product would wait for the CPU; use precision={' or '.join(others)}, for which `ane "
                            f"convert --to onnx --precision {','.join(others)}` makes packages, or backend=onnx:cpu")


def packages_in(model: "Bundle", packages: Sequence[PackageRecord], precision: str, stored: Mapping[str, str],
                converted: Collection[str]) -> dict[str, PackageRecord]:
    """One package for each network that has any; "auto": the first.

    Args:
        stored: for some networks, the precision of their packages when the others have ``precision``.
        converted: networks that can have ``precision``. Others, as UnivNet in fp16, may have any.

    Raises:
        UserError: a network has none in that precision, or a package was made from other weights than the bundle's.
    """
    found: dict[str, PackageRecord] = {}
    for package in packages:
        if precision == "auto" or package.precision == stored.get(package.network, precision):
            found.setdefault(package.network, package)
    for package in packages:
        if package.network not in found and package.network in converted:
            available = ", ".join(dict.fromkeys(p.precision for p in packages if p.network == package.network))
            raise UserError(f"{model.name} has its {package.network} in {available}, not in {precision}: choose one of "
                            f"them, or convert again in {precision}")
        weights = package.source.get(WEIGHTS)
        if weights and weights != model.manifest.networks[package.network].weights.sha256:
            raise UserError(f"{model.path / package.path} was converted from other weights than those in the bundle: "
                            "convert the model again")
    for package in packages:
        found.setdefault(package.network, package)
    return found


def fits_in_memory(packages: Mapping[str, PackageRecord], installed: int | None = None) -> bool:
    """Whether the functions of all networks can stay loaded, rather than of one stage at a time.

    Loaded functions take memory each, whether they share weights or not (apple/coremltools#2351): estimated as
    ``LOADED_FUNCTIONS`` times the weights of every package, at most ``MEMORY_SHARE`` of the installed bytes.
    """
    installed = memory_bytes() if installed is None else installed
    weights = sum(file.bytes for package in packages.values() for file in package.files)
    return installed is None or LOADED_FUNCTIONS * weights <= MEMORY_SHARE * installed


def describe_packages(runtime: str, packages: dict[str, PackageRecord], model: "Bundle") -> str:
    """A backend's name for reports: runtime, precisions of its packages, and the networks that run on torch."""
    precisions = "+".join(sorted({package.precision for package in packages.values()}))
    missing = sorted(name for name in model.networks - set(packages) if model.family.networks[name].for_speech)
    return f"{runtime} {precisions}" + (f", on torch: {', '.join(missing)}" if missing else "")
