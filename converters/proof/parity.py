"""How near a package comes to the reference: every function is driven through the stage it serves, on both.

A probe is a deterministic use of one function through ``ane.backends.base``, host side and all; it gives arrays, and the same
probe on the float32 torch backend gives what they should be.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ane.backends.base import Backend
from ane.backends.mil import Arithmetic, MilRuntime
from ane.backends.packaged.backend import PackagedBackend
from ane.backends.torch.backend import TorchBackend
from ane.bundles import Model
from ane.bundles.packages import FORMATS, FunctionRecord, PackageRecord
from ane.models.tortoise.diffusion import Diffusion, sample
from ane.models.tortoise.embeddings import Embeddings
from ane.models.tortoise.networks.univnet import SILENT_FRAMES
from ane.models.tortoise.vocoding import hifigan_sound
from ane.system.errors import UserError
from converters.coreml.compress import COMPRESSIONS

# dB that a function must reach: in the interpreter's float32, and with rounding to fp16 after every operation. 54 with
# rounding is what trained weights reach, and random ones of official size.
BARS = {"fp32": (100.0, None), "fp16": (60.0, 50.0),
        **{name: (compression.bar, compression.bar) for name, compression in COMPRESSIONS.items()}}
EXCEPTIONS = {
    ("state", "fp32"): (60.0, None), ("fill", "fp32"): (60.0, None),    # a state is fp16 whatever the rest is
    # several steps of a run from noise to speech add up what each parts by
    ("sample", "fp32"): (90.0, None), ("sample", "fp16"): (50.0, 40.0),
    ("hifigan", "fp16"): (60.0, 45.0),      # rounded latents and slopes alone cost a trained one all but 56 dB
}
MATHS, ROUNDING = "fp32 maths", "fp16 rounding"

Probe = Callable[[Backend, Model, Mapping[str, int], np.random.Generator], list[np.ndarray]]


class Unpublished:
    """A model with packages that are not in a bundle yet."""

    def __init__(self, model: Model, path: Path, packages: list[PackageRecord], reference: Backend):
        self.model, self.path, self.reference = model, path, reference
        self.packages, self.onnx_packages = ([package for package in packages if package.format == name]
                                             for name in FORMATS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def prefill(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Hidden states and logits of texts, the longest of which nearly fills the bucket."""
    decoder = backend.decoder(1, 1)
    return [array for missing in (5, 3, 2, 9)
            for array in decoder.prefill(prefix(backend, model, bucket["columns"] - missing, rng))]


def step(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Lanes that advance, one of them begun anew, and a tail of several positions on one lane."""
    start, tail = prefix(backend, model, 12, rng), 3
    lanes = min(bucket["columns"], (bucket["slots"] - len(start)) // 4)
    decoder = backend.decoder(lanes, min(8, (bucket["slots"] - len(start)) // lanes))
    seen = [*decoder.prefill(start)]
    codes = Embeddings(**backend.embeddings()).code
    length = np.zeros(lanes, dtype=np.int64)
    for turn in range(3):
        length[-1] *= turn != 2
        seen += decoder.step(codes[rng.integers(0, len(codes), (lanes, 1))], length)
        length += 1
    seen += decoder.step(codes[rng.integers(0, len(codes), (1, tail))], length[-1:], lanes - 1)
    return seen


def prefix(backend: Backend, model: Model, length: int, rng: np.random.Generator) -> np.ndarray:
    """Columns (length, D), or as many as the decoder has positions for, as a text makes them."""
    config = model.config("autoregressive")
    length = min(length, config.text_positions + 2)
    tokens = rng.integers(1, config.number_text_tokens, length - 4)
    conditioning = rng.standard_normal((1, config.model_dim), dtype=np.float32)
    return Embeddings(**backend.embeddings()).prefix(conditioning, tokens.tolist(), config)


def condition(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """A step on latents that nearly fill the bucket: what follows hears the conditioning alone."""
    return _denoised(backend, model, bucket["latents"] - 3, 40, False, rng)      # 40 frames fit into any bucket


def denoise(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    frames = bucket["frames"] - 7
    return _denoised(backend, model, max(frames // 5, 1), frames, bucket["batch"] == 2, rng)


def spoken(model: Model, count: int, rng: np.random.Generator) -> np.ndarray:
    """Latents (count, D) of the model's own decoder on random codes: what diffusion and HiFi-GAN are given."""
    decoder = model.reference.decoder(1, count)
    decoder.prefill(prefix(model.reference, model, 12, rng))
    codes = Embeddings(**model.reference.embeddings()).code
    return decoder.step(codes[rng.integers(0, len(codes), (1, count))], np.zeros(1, dtype=np.int64))[0][0]


def _denoised(backend: Backend, model: Model, latents: int, frames: int, guided: bool,
              rng: np.random.Generator) -> list[np.ndarray]:
    denoiser = bound(backend, model, latents, frames, rng)
    return [denoiser(rng.standard_normal((1, 100, frames), dtype=np.float32), 2000, guided)]


def bound(backend: Backend, model: Model, latents: int, frames: int, rng: np.random.Generator) -> Any:
    """A denoiser for an utterance of so many latents."""
    voice = 0.6 * rng.standard_normal((1, 2 * model.config("diffusion").model_channels), dtype=np.float32)
    return backend.denoiser(spoken(model, latents, rng)[None], voice, frames)


def of_stage(stage: str, **shapes: Callable[[Model, Mapping[str, int]], tuple[int, ...]]) -> Probe:
    """A stateless stage on normal numbers of these shapes."""
    def probe(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
        return [backend.run(stage, **{name: rng.standard_normal(shape(model, bucket), dtype=np.float32)
                                      for name, shape in shapes.items()})]

    return probe


def hifigan(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    voice = rng.standard_normal((1, model.config("hifigan").cond_channels), dtype=np.float32)
    latents = spoken(model, max(bucket["frames"] // 5, 1), rng)
    return [hifigan_sound(backend, voice, latents)[None, None]]


def of_ids(stage: str, name: str, ids: str) -> Probe:
    """A side of CLVP on ids that nearly fill the bucket."""
    def probe(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
        most = getattr(model.config("clvp"), ids)
        return [backend.run(stage, **{name: rng.integers(0, most, (1, bucket["places"] - 5))})]

    return probe


def steps(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """A sampling run of exactly the steps that the function takes at once."""
    frames = bucket["frames"] - 7
    denoiser = bound(backend, model, max(frames // 5, 1), frames, rng)
    run = Diffusion(bucket["steps"], "ddim", 2.0 if bucket["batch"] == 2 else None)
    return [sample(denoiser, frames, run, rng, prediction=model.config("diffusion").prediction)]


PROBES: dict[str, Probe] = {
    "prefill": prefill, "fill": prefill, "step": step, "state": step, "condition": condition, "denoise": denoise,
    "sample": steps,
    "clvp_text": of_ids("clvp_text", "tokens", "num_text_tokens"),
    "clvp_speech": of_ids("clvp_speech", "codes", "num_speech_tokens"),
    "ar_conditioning": of_stage("ar_conditioning", mel=lambda model, bucket: (1, 80, bucket["frames"])),
    "diffusion_conditioning": of_stage("diffusion_conditioning", mel=lambda model, bucket: (1, 100, bucket["frames"])),
    "ar_random": of_stage("ar_random", noise=lambda model, bucket: (1, model.widths[0])),
    "diffusion_random": of_stage("diffusion_random", noise=lambda model, bucket: (1, model.widths[1])),
    "univnet": of_stage(
        "univnet", mel=lambda model, bucket: (1, 100, bucket["frames"] - 1),
        noise=lambda model, bucket: (1, model.config("univnet").noise_dim, bucket["frames"] - 1 + SILENT_FRAMES)),
    "hifigan": hifigan,
}


def measured(model: Model, package: PackageRecord, bundle: Path,
             progress: Callable[[str], None] = lambda function: None) -> dict[str, FunctionRecord]:
    """The package's functions with their parity against the model's own networks on float32 torch.

    Raises:
        UserError: a function falls below its bar.
    """
    reference = TorchBackend(model, "cpu", "fp32", keep=True)
    unpublished = Unpublished(model, bundle, [package], reference)
    precision = "fp32" if package.precision == "fp32" else "fp16"
    arithmetics = {MATHS: Arithmetic()} | ({ROUNDING: Arithmetic(fp16=True)} if precision == "fp16" else {})
    engines = {name: MilRuntime(arithmetic) for name, arithmetic in arithmetics.items()}
    records = {}
    for name, function in package.functions.items():
        progress(name)
        wanted = probed(reference, unpublished, function)
        parity = {}
        for arithmetic, engine in engines.items():
            candidate = PackagedBackend(unpublished, engine, reference, only=companions(package, name))
            parity[arithmetic] = round(snr(wanted, probed(candidate, unpublished, function)), 1)
        records[name] = FunctionRecord(function.kind, function.bucket, parity)
        hold_to_bar(package, name, records[name])
    return records


def probed(backend: Backend, model: Model, function: FunctionRecord) -> list[np.ndarray]:
    return PROBES[function.kind](backend, model, function.bucket, np.random.default_rng(0))


def companions(package: PackageRecord, name: str) -> frozenset[str]:
    """The function with the least of others that its probe cannot do without."""
    kind = package.functions[name].kind
    needed = {"prefill": ("step",), "fill": ("state",), "denoise": ("condition",), "condition": ("denoise",),
              "sample": ("condition", "denoise")}.get(kind, ())
    others = [other for other, record in package.functions.items() if record.kind in needed]
    return frozenset((name, *others))


def bar_of(package: PackageRecord, function: str, figure: str | None) -> float:
    """dB that a function must reach in ``MATHS``; otherwise with rounding, where its precision has such a bar.

    Raises:
        UserError: a precision or a kind of function that this version does not know.
    """
    kind = package.functions[function].kind
    if package.precision not in BARS or kind not in PROBES:
        raise UserError(f"{package.path}, function {function}: this version knows no {package.precision} {kind}; "
                        "convert the model again, or update tortoise-ane")
    maths, rounding = EXCEPTIONS.get((kind, package.precision), BARS[package.precision])
    return maths if figure == MATHS or rounding is None else rounding


def hold_to_bar(package: PackageRecord, name: str, record: FunctionRecord) -> None:
    """Raise UserError when a function's recorded parity falls below its bar."""
    for figure, reached in record.parity.items():
        bar = bar_of(package, name, figure)
        if not reached >= bar:
            advice = ", or --wide norm,softmax" if figure == ROUNDING and package.precision == "fp16" else ""
            raise UserError(f"{package.network}, function {name}, in {package.precision} with {figure}: {reached} dB "
                            f"against float32, and at least {bar} are asked for. It is not written: choose another "
                            f"--precision{advice}. What was done before is kept for the same command")


def snr(wanted: list[np.ndarray], got: list[np.ndarray]) -> float:
    """Signal-to-noise ratio in dB, at most 200: −10·log10 of Σ (wanted − got)² / Σ wanted², the mean over arrays."""
    noise = [np.square(right.astype(np.float64) - left).sum() / np.square(right.astype(np.float64)).sum()
             for right, left in zip(wanted, got, strict=True)]
    return float(-10 * np.log10(max(np.mean(noise), 1e-20)))
