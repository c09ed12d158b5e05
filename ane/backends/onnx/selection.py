"""Which ONNX packages of a bundle serve, and in which precision each network is kept."""

from typing import TYPE_CHECKING

from ane.backends.torch.backend import HALVED
from ane.bundles.packages import WEIGHTS, PackageRecord
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

PRECISIONS = ("fp32", "fp16", "int8", "int4")
QUANTISED = frozenset({"autoregressive"})       # whose weights are read once a code: bytes are all that counts


def stored(network: str, precision: str) -> str:
    """The precision that a network really has where this one is asked for: as on torch, a vocoder's rounding is heard
    and what is small gains nothing."""
    kept = {"fp16": HALVED, "int8": QUANTISED, "int4": QUANTISED}.get(precision, frozenset())
    return precision if network in kept else "fp32"


def choose(model: "Bundle", precision: str) -> dict[str, PackageRecord]:
    """One package for each network that has any; "auto": the first.

    Raises:
        UserError: the bundle holds none, not in that precision, or one that was made from other weights.
    """
    packages = getattr(model, "onnx_packages", None)
    if not packages:
        raise UserError(f"{model.name} holds no ONNX packages: make them with `ane convert {model.path} --to onnx -o "
                        "DIR` and use --bundle DIR, or take --backend torch")
    if precision != "auto" and precision not in PRECISIONS:
        raise UserError(f"--precision {precision}: ONNX packages are in {', '.join(PRECISIONS)}")
    found: dict[str, PackageRecord] = {}
    for package in packages:
        if precision == "auto" or package.precision == stored(package.network, precision):
            found.setdefault(package.network, package)
    for package in packages:
        if package.network not in found and stored(package.network, precision) == precision:
            there = ", ".join(dict.fromkeys(p.precision for p in packages if p.network == package.network))
            raise UserError(f"{model.name} holds its {package.network} in {there}, not in {precision}: choose one of "
                            f"them, or convert again with --precision {precision}")
        weights = package.source.get(WEIGHTS)
        if weights and weights != model.manifest.networks[package.network].weights.sha256:
            raise UserError(f"{model.path / package.path} was made from other weights than those beside it: convert "
                            "the model again")
    for package in packages:
        found.setdefault(package.network, package)
    return found
