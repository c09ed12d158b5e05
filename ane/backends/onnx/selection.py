"""Which ONNX package of a bundle is used for each network, and the precision that each network is stored in."""

from typing import TYPE_CHECKING

from ane.backends.packaged.backend import packages_in
from ane.bundles.packages import PackageRecord, missing_packages
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle
    from ane.bundles.family import Network

ONNX_PRECISIONS = ("fp32", "fp16", "int8", "int4")


def stored_precision(network: "Network", precision: str) -> str:
    """The precision in which a network is stored when a model is converted with ``precision``.

    As on torch, vocoders stay in fp32 because their rounding is audible, and small networks because they gain nothing.
    """
    flag = {"fp16": "half_precision", "int8": "quantised", "int4": "quantised"}.get(precision)
    return precision if flag and getattr(network, flag) else "fp32"


def select_onnx_packages(model: "Bundle", precision: str) -> dict[str, PackageRecord]:
    """One package for each network that has any; "auto": the first.

    Raises:
        UserError: the bundle has none, none in that precision, or one that was converted from other weights.
    """
    packages = getattr(model, "onnx_packages", None)
    if not packages:
        raise missing_packages(model, "onnx", "use backend=torch")
    if precision != "auto" and precision not in ONNX_PRECISIONS:
        raise UserError(f"precision must be one of {', '.join(ONNX_PRECISIONS)} for ONNX packages, got {precision}")
    stored = {name: stored_precision(network, precision) for name, network in model.family.networks.items()}
    return packages_in(model, packages, precision, stored, [name for name in stored if stored[name] == precision])
