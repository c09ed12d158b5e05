"""How near an ONNX package comes to the reference: every graph is driven through the stage it serves, on both.

As ``converters.proof.parity``, with its probes. Graphs take any length, so each is driven with one, and not the one that it
was traced with.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ane.backends.base import Backend
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import DEVICES
from ane.backends.torch.backend import TorchBackend
from ane.bundles import Model
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.models.tortoise.embeddings import Embeddings
from ane.system.errors import UserError
from converters.proof.parity import PROBES, Probe, Unpublished, of_stage, prefix, snr

# dB that a graph must reach on the CPU. Random weights are the hardest to quantise.
BARS = {"fp32": 90.0, "fp16": 45.0, "int8": 20.0, "int4": 8.0}
LARGEST = 1e-4          # error of an fp32 graph at most, as a share of the largest value
# UnivNet predicts convolution kernels and amplifies rounding: torch's own float32 is 99 dB and 4e-5 from its float64
# with trained weights, 91 dB and 5e-4 with random ones.
UNIVNET = 80.0, 2e-3
FIGURE, ERROR = "cpu", "error"          # what is recorded

# kind → the lengths it is driven with; a probe leaves some of each unused
LENGTHS: dict[str, dict[str, int]] = {
    "prefill": {"columns": 40}, "step": {"columns": 3, "slots": 64}, "step_places": {"lanes": 4},
    "condition": {"latents": 17}, "denoise": {"frames": 67, "batch": 2},
    "clvp_text": {"places": 33}, "clvp_speech": {"places": 40}, "cvvp_speech": {"places": 40},
    "ar_conditioning": {"frames": 97}, "diffusion_conditioning": {"frames": 101}, "cvvp_clip": {"frames": 90},
    "univnet": {"frames": 19}, "hifigan": {"frames": 30}, "classifier": {"samples": 8000},
}


def places(backend: Backend, model: Model, lengths: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Lanes that see prefixes of different lengths and stand at different positions, a lane moved to another prefix.

    On the reference each lane is a decoder of its own.
    """
    lanes = lengths["lanes"]
    starts = [prefix(backend, model, length, rng) for length in (9, 14)]
    codes = Embeddings(**backend.embeddings()).code
    length, place = np.arange(lanes) % 3, np.arange(lanes) % 2
    before = codes[rng.integers(0, len(codes), (lanes, 2))]
    columns = codes[rng.integers(0, len(codes), (2, lanes, 1))]
    if isinstance(backend, OnnxBackend):
        decoder = backend.decoder(lanes, 8, len(starts), max(map(len, starts)))
        for number, start in enumerate(starts):
            decoder.prefill(start, number)
        decoder.step(before, np.zeros(lanes, dtype=np.int64), 0, place)
        seen = list(decoder.step(columns[0], length, 0, place))
        place[0], length[0] = 1, 0
        return seen + list(decoder.step(columns[1], length, 0, place))
    alone = [_alone(backend, starts, int(place[lane]), before[lane], columns[:, lane], int(length[lane]), lane == 0)
             for lane in range(lanes)]
    return [np.concatenate(part) for part in zip(*alone, strict=True)]


def _alone(backend: Backend, starts: list[np.ndarray], place: int, before: np.ndarray, columns: np.ndarray,
           length: int, moved: bool) -> list[np.ndarray]:
    decoder = backend.decoder(1, 8)
    decoder.prefill(starts[place])
    at = np.array([length])
    decoder.step(before[None], np.zeros(1, dtype=np.int64))
    seen = list(decoder.step(columns[0][None], at))
    if moved:
        decoder = backend.decoder(1, 8)
        decoder.prefill(starts[1])
        at = np.zeros(1, dtype=np.int64)
    return seen + list(decoder.step(columns[1][None], at))


def codes(backend: Backend, model: Model, lengths: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """CVVP's side of speech."""
    most = model.config("cvvp").mel_codes
    return [backend.run("cvvp_speech", codes=rng.integers(0, most, (1, lengths["places"])))]


ONNX_PROBES: dict[str, Probe] = PROBES | {
    "step_places": places,
    "cvvp_speech": codes,
    "cvvp_clip": of_stage("cvvp_clip", mel=lambda model, lengths: (1, 80, lengths["frames"])),
    "classifier": of_stage("classifier", audio=lambda model, lengths: (1, 1, lengths["samples"])),
}


def probed(backend: Backend, model: Any, kind: str) -> list[np.ndarray]:
    return ONNX_PROBES[kind](backend, model, LENGTHS.get(kind, {}), np.random.default_rng(0))


def measured(model: Model, package: PackageRecord, bundle: Path,
             progress: Callable[[str], None] = lambda function: None) -> dict[str, FunctionRecord]:
    """The package's functions with their parity on the CPU against the model's own networks on float32 torch.

    Raises:
        UserError: a function falls below its bar.
    """
    reference = TorchBackend(model, "cpu", "fp32", keep=True)
    unpublished = Unpublished(model, bundle, [package], reference)
    candidate = OnnxBackend(unpublished, DEVICES["cpu"], reference)
    records = {}
    for name, function in package.functions.items():
        progress(name)
        wanted, got = (probed(backend, unpublished, function.kind) for backend in (reference, candidate))
        figures = {FIGURE: round(snr(wanted, got), 1), ERROR: float(f"{error(wanted, got):.1e}")}
        records[name] = FunctionRecord(function.kind, {}, figures)
        hold_to_bar(package, name, figures)
    return records


def hold_to_bar(package: PackageRecord, name: str, figures: Mapping[str, float]) -> None:
    """Raise UserError when a function falls below its bar."""
    bar, largest = bars_of(package)
    if not figures[FIGURE] >= bar:
        raise UserError(f"{package.network}, function {name}, in {package.precision}: {figures[FIGURE]} dB against "
                        f"float32, and at least {bar} are asked for. It is not written: choose another --precision. "
                        "What was done before is kept for the same command")
    if package.precision == "fp32" and not figures[ERROR] <= largest:
        raise UserError(f"{package.network}, function {name}, in fp32: an error of {figures[ERROR]:.1e} of the largest "
                        f"value, and at most {largest:.0e} is asked for. It is not written")


def bars_of(package: PackageRecord) -> tuple[float, float]:
    """dB that a package's graphs must reach, and the largest error that they may have in fp32."""
    if package.precision not in BARS:
        raise UserError(f"{package.path}: this version knows no ONNX packages in {package.precision}; convert the "
                        "model again, or update tortoise-ane")
    return UNIVNET if package.network == "univnet" else (BARS[package.precision], LARGEST)


def error(wanted: list[np.ndarray], got: list[np.ndarray]) -> float:
    """The largest error, as a share of the largest value of the same array."""
    return max(float(np.abs(right - left).max() / np.abs(right).max())
               for right, left in zip(wanted, got, strict=True))
