"""Parity of ONNX packages: every graph on the CPU against the float32 networks, both driven by the same probe.

As ``converters.proof.parity``, with the model's ONNX probes (``converters.tortoise.onnx_probes``).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ane.backends.base import Backend
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import DEVICES
from ane.bundles import Model
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.system.errors import UserError
from converters.models import probes
from converters.proof.parity import UnpublishedModel, mean_snr_db, reference_backend

# dB that a graph must reach on the CPU. Random weights are the hardest to quantise.
THRESHOLDS = {"fp32": 90.0, "fp16": 45.0, "int8": 20.0, "int4": 8.0}
MAX_ERROR = 1e-4        # of an fp32 graph, as a share of the largest value
# UnivNet predicts convolution kernels, which amplifies rounding: torch's own float32 is 99 dB and 4e-5 from its float64
# with trained weights, 91 dB and 5e-4 with random ones.
UNIVNET_THRESHOLDS = 80.0, 2e-3
SNR, ERROR = "cpu", "error"             # keys of a function's recorded parity: dB on the CPU, relative error


def run_probe(backend: Backend, model: Model, package: PackageRecord, kind: str) -> list[np.ndarray]:
    """Outputs of the probe of a kind of function on a backend."""
    module = probes("onnx", package.network)
    return module.PROBES[kind](backend, model, module.LENGTHS.get(kind, {}), np.random.default_rng(0))


def measure_parity(model: Model, package: PackageRecord, bundle: Path,
                   progress: Callable[[str], None] = lambda function: None) -> dict[str, FunctionRecord]:
    """The package's functions with their parity, on the CPU, with the model's own networks on float32 torch.

    Raises:
        UserError: a function is below its threshold.
    """
    reference = reference_backend(model, keep=True)
    unpublished = UnpublishedModel(model, bundle, [package], reference)
    candidate = OnnxBackend(unpublished, DEVICES["cpu"], reference)
    records = {}
    for name, function in package.functions.items():
        progress(name)
        expected, outputs = (run_probe(backend, unpublished, package, function.kind)
                             for backend in (reference, candidate))
        parity = {SNR: round(mean_snr_db(expected, outputs), 1),
                  ERROR: float(f"{relative_error(expected, outputs):.1e}")}
        records[name] = FunctionRecord(function.kind, {}, parity)
        check_threshold(package, name, parity)
    return records


def check_threshold(package: PackageRecord, name: str, parity: Mapping[str, float]) -> None:
    """Raise UserError when a function is below its threshold, or in fp32 has a larger error than allowed."""
    threshold, max_error = thresholds_of(package)
    where = f"{package.network}, function {name}, in {package.precision}"
    if not parity[SNR] >= threshold:
        raise UserError(f"{where}: {parity[SNR]} dB against float32, below the threshold of {threshold}. It is not "
                        "published: choose another precision. The same command reuses the packages that are done")
    if package.precision == "fp32" and not parity[ERROR] <= max_error:
        raise UserError(f"{where}: an error of {parity[ERROR]:.1e} of the largest value, above the threshold of "
                        f"{max_error:.0e}. It is not published")


def thresholds_of(package: PackageRecord) -> tuple[float, float]:
    """dB that a package's graphs must reach, and the largest relative error allowed in fp32."""
    if package.precision not in THRESHOLDS:
        raise UserError(f"{package.path}: ONNX packages in {package.precision} are not supported; convert the "
                        "model again, or update tortoise-ane")
    return UNIVNET_THRESHOLDS if package.network == "univnet" else (THRESHOLDS[package.precision], MAX_ERROR)


def relative_error(references: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
    """The largest error, as a share of the largest value of the same array."""
    return max(float(np.abs(reference - output).max() / np.abs(reference).max())
               for reference, output in zip(references, outputs, strict=True))
