"""Parity of Core ML packages: every function against the float32 networks, both driven by the same probe.

Probes belong to the model (``converters.tortoise.probes``).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ane.backends.base import Backend
from ane.backends.mil import Arithmetic, MilRuntime
from ane.backends.packaged.backend import PackagedBackend
from ane.backends.torch.backend import TorchBackend
from ane.bundles import Model
from ane.bundles.packages import FORMATS, FunctionRecord, PackageRecord
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from converters.coreml.compress import COMPRESSIONS
from converters.models import probes

MATHS, ROUNDING = "fp32 maths", "fp16 rounding"     # keys of a function's recorded parity: the interpreter's arithmetic
MAX_SNR = 200.0         # dB recorded for equal arrays

# Precision → dB that a function must reach with fp32 maths, and with every operation rounded to fp16. Trained weights,
# and random weights at the official size, reach 54 dB with rounding.
THRESHOLDS = {"fp32": (100.0, None), "fp16": (60.0, 50.0),
              **{name: (compression.threshold, compression.threshold) for name, compression in COMPRESSIONS.items()}}
# The same, by kind and precision, for kinds of function that are less exact
KIND_THRESHOLDS = {
    ("state", "fp32"): (60.0, None), ("store", "fp32"): (60.0, None),   # a state is always fp16
    ("sample", "fp32"): (90.0, None), ("sample", "fp16"): (50.0, 40.0),     # errors of several steps add up
    # HiFi-GAN: rounding only latents and slopes already limits a trained network to 56 dB
    ("hifigan", "fp16"): (60.0, 45.0), ("vocoder", "fp16"): (60.0, 45.0),
    # FastSpeech: random weights at the official size reach 61 dB, with rounding 58
    ("text", "fp16"): (55.0, 45.0), ("mel", "fp16"): (55.0, 45.0),
    # WaveGlow: 12 flows multiply their errors; random weights at the official size reach 59 dB
    ("waveglow", "fp16"): (55.0, 45.0),
}
# The same by network and precision, for networks of which all kinds are less exact. Cross-attention of random weights
# is nearly a choice of one position, which rounding of the scores moves.
NETWORK_THRESHOLDS = {("encoder", "fp16"): (50.0, 45.0), ("decoder", "fp16"): (50.0, 45.0)}


def reference_backend(model: Model, keep: bool = False) -> TorchBackend:
    """The model's own networks on float32 torch, as exact as it computes: what packages are compared with."""
    return TorchBackend(model, "cpu", "fp32", keep=keep, exact=True)


class UnpublishedModel:
    """A model with packages that are not in a bundle yet."""

    def __init__(self, model: Model, path: Path, packages: list[PackageRecord], reference: Backend):
        self.model, self.path, self.reference = model, path, reference
        self.packages, self.onnx_packages = ([package for package in packages if package.format == name]
                                             for name in FORMATS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def measure_parity(model: Model, package: PackageRecord, bundle: Path,
                   progress: Callable[[str], None] = lambda function: None) -> dict[str, FunctionRecord]:
    """The package's functions with their parity with the model's own networks on float32 torch.

    Raises:
        UserError: a function is below its threshold.
    """
    reference = reference_backend(model, keep=True)
    unpublished = UnpublishedModel(model, bundle, [package], reference)
    arithmetics = {MATHS: Arithmetic()} | ({ROUNDING: Arithmetic(fp16=True)} if package.precision != "fp32" else {})
    engines = {name: MilRuntime(arithmetic) for name, arithmetic in arithmetics.items()}
    records = {}
    for name, function in package.functions.items():
        progress(name)
        expected = run_probe(reference, unpublished, package, function)
        parity = {}
        for arithmetic, engine in engines.items():
            candidate = PackagedBackend(unpublished, engine, reference, only=companions(package, name))
            parity[arithmetic] = round(mean_snr_db(expected, run_probe(candidate, unpublished, package, function)), 1)
        records[name] = FunctionRecord(function.kind, function.bucket, parity)
        check_threshold(package, name, records[name])
    return records


def run_probe(backend: Backend, model: Model, package: PackageRecord, function: FunctionRecord) -> list[np.ndarray]:
    probe = probes("coreml", package.network).PROBES[function.kind]
    return probe(backend, model, function.bucket, np.random.default_rng(0))


def companions(package: PackageRecord, name: str) -> frozenset[str]:
    """The function, and those that its probe also calls; a state is shared by functions of the same capacity."""
    measured = package.functions[name]
    needed = probes("coreml", package.network).COMPANIONS.get(measured.kind, ())
    capacity = measured.bucket.get("capacity")
    return frozenset((name, *(other for other, record in package.functions.items() if record.kind in needed
                              and capacity in (None, record.bucket.get("capacity", capacity)))))


def threshold_of(package: PackageRecord, function: str, arithmetic: str | None) -> float:
    """dB that a function must reach with ``MATHS``; with other arithmetic, the threshold for rounding if there is one.

    Raises:
        UserError: an unknown precision or kind of function.
    """
    kind = package.functions[function].kind
    if package.precision not in THRESHOLDS or kind not in probes("coreml", package.network).PROBES:
        raise UserError(f"{package.path}, function {function}: {package.precision} {kind} is not supported; "
                        "convert the model again, or update tortoise-ane")
    maths, rounding = (KIND_THRESHOLDS.get((kind, package.precision))
                       or NETWORK_THRESHOLDS.get((package.network, package.precision))
                       or THRESHOLDS[package.precision])
    return maths if arithmetic == MATHS or rounding is None else rounding


def check_threshold(package: PackageRecord, name: str, record: FunctionRecord) -> None:
    """Raise UserError when a function's recorded parity is below its threshold."""
    for arithmetic, decibels in record.parity.items():
        threshold = threshold_of(package, name, arithmetic)
        if not decibels >= threshold:
            advice = ", or wide=norm,softmax" if arithmetic == ROUNDING and package.precision == "fp16" else ""
            raise UserError(f"{package.network}, function {name}, in {package.precision} with {arithmetic}: {decibels} "
                            f"dB against float32, below the threshold of {threshold}. It is not published: choose "
                            f"another precision{advice}. The same command reuses the packages that are done")


def mean_snr_db(references: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
    """Signal-to-noise ratio in dB, at most ``MAX_SNR``, of the mean of the arrays' noise-to-signal ratios."""
    noise = [10 ** (-snr_db(reference, output) / 10) for reference, output in zip(references, outputs, strict=True)]
    return float(-10 * np.log10(max(np.mean(noise), 10 ** (-MAX_SNR / 10))))
