"""Which ONNX packages of a bundle are used, and in which precision each network is stored."""

from typing import TYPE_CHECKING

from ane.backends.torch.backend import HALVED
from ane.bundles.packages import WEIGHTS, PackageRecord
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

PRECISIONS = ("fp32", "fp16", "int8", "int4")
QUANTISED = frozenset({"autoregressive"})       # each code reads all its weights: their size decides


def stored_precision(network: str, precision: str) -> str:
    """The precision in which a network is stored when ``precision`` is requested.

    Vocoders stay in fp32 because their rounding is audible, small networks because nothing is gained.
    """
    networks = {"fp16": HALVED, "int8": QUANTISED, "int4": QUANTISED}.get(precision, frozenset())
    return precision if network in networks else "fp32"


def choose(model: "Bundle", precision: str) -> dict[str, PackageRecord]:
    """One package for each network that has any; precision "auto": the first.

    Raises:
        UserError: the bundle has no ONNX packages, none in that precision, or one that was made from other weights.
    """
    packages = getattr(model, "onnx_packages", None)
    if not packages:
        raise UserError(f"{model.name} holds no ONNX packages: make them with `ane convert {model.path} --to onnx -o "
                        "DIR` and use --bundle DIR, or use --backend torch")
    if precision != "auto" and precision not in PRECISIONS:
        raise UserError(f"--precision {precision}: ONNX packages are in {', '.join(PRECISIONS)}")
    chosen: dict[str, PackageRecord] = {}
    for package in packages:
        if precision == "auto" or package.precision == stored_precision(package.network, precision):
            chosen.setdefault(package.network, package)
    for package in packages:
        if package.network not in chosen and stored_precision(package.network, precision) == precision:
            available = ", ".join(dict.fromkeys(p.precision for p in packages if p.network == package.network))
            raise UserError(f"{model.name} holds its {package.network} in {available}, not in {precision}: choose one "
                            f"of them, or convert again with --precision {precision}")
        weights = package.source.get(WEIGHTS)
        if weights and weights != model.manifest.networks[package.network].weights.sha256:
            raise UserError(f"{model.path / package.path} was made from other weights than those of the bundle: "
                            "convert the model again")
    for package in packages:
        chosen.setdefault(package.network, package)
    return chosen
