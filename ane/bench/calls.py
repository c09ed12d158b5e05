"""The calls that are measured: every stage of a Tortoise model on a backend, with the sizes of a spoken sentence, and
the functions of Core ML packages one by one, without the host's part of a stage.

Inputs are random numbers in the declared shapes, which an engine copies only where it copies caches, too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ane.backends.base import Backend
from ane.backends.coreml.tools import CoreMLTools
from ane.backends.mil import Package
from ane.backends.mil.package import ProgramFunction
from ane.backends.packaged.functions import Runtime
from ane.bench.measure import MeasuredFunction, timed
from ane.bench.records import BenchRow
from ane.bundles.hashes import check_hashes
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.models.tortoise.decoding import Embeddings
from ane.models.tortoise.diffusion import frame_count
from ane.models.tortoise.networks.univnet import SILENT_FRAMES
from ane.models.tortoise.settings import Settings

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

CODES = 86          # 4 s of speech
TOKENS = 40         # of the sentence's text

CLIP_FRAMES, DIFFUSION_CLIP_FRAMES = 517, 401       # of a clip, as ``ane.models.tortoise.voices`` crops it
RANKED = 8                                          # candidates that ``ane.models.tortoise.ranking`` ranks in one call
TIMESTEP = 2000
StageCall = Callable[[], object]
CACHES = {"step": "io", "state": "state"}      # kind of a decoder's step function → kind of its cache


@dataclass(frozen=True)
class SentenceSizes:
    """Sizes of the arrays with which a sentence is spoken.

    Attributes:
        capacity: codes that a lane has slots for. frames: of its mel. prefix: positions before the first code.
    """

    capacity: int
    frames: int = frame_count(CODES)
    prefix: int = TOKENS + 4

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.sampling.max_codes)


class StageCalls:
    """Makes calls of a backend's stages, on random numbers and ids; their values do not affect time or memory."""

    def __init__(self, backend: Backend, work: SentenceSizes):
        self.backend, self.model, self.work = backend, backend.model, work
        self.rng = np.random.default_rng(0)

    def functions(self, spec: str, precision: str, threads: int | None,
                  lanes: Sequence[int]) -> Iterator[MeasuredFunction]:
        """Every stage that the model has a network for, as `ane bench` measures them.

        Args:
            spec: the backend, as ``--backend`` takes it. precision, threads: what it was asked for.
        """
        for network, kind, bucket, prepare in self._all(lanes):
            if network in self.model.networks:
                count = next(iter(bucket.values())) if kind in ("step", "denoise") else None
                row = BenchRow(spec, f"{kind}_{count}" if count else kind, settings={
                    "network": network, "kind": kind, "bucket": bucket, "precision": precision, "threads": threads,
                    "lanes": count if kind == "step" else None})
                yield MeasuredFunction(row, lambda network=network: self.backend.load(network),
                                       lambda loaded, prepare=prepare: prepare(), self.backend.release)

    def prefill(self) -> StageCall:
        decoder, prefix = self.backend.decoder(1, 1), self._prefix()
        return lambda: decoder.prefill(prefix)

    def step(self, lanes: int) -> StageCall:
        """A decoder step of all lanes in the middle of the sentence; each call writes the same positions."""
        length = min(CODES // 2, self.work.capacity - 1)
        decoder = self.backend.decoder(lanes, self.work.capacity)
        decoder.prefill(self._prefix())
        if length:
            decoder.step(self._normal(lanes, length, self.model.widths[0]), np.zeros(lanes, dtype=np.int64))
        columns, lengths = self._normal(lanes, 1, self.model.widths[0]), np.full(lanes, length)
        return lambda: decoder.step(columns, lengths)

    def denoise(self, guided: bool) -> StageCall:
        noisy = self._normal(1, 100, self.work.frames)
        denoiser = self.backend.denoiser([self._latents()], self._voice(), [self.work.frames])
        return lambda: denoiser([noisy], TIMESTEP, guided)

    def vocoder(self, network: str) -> StageCall:
        frames = self.work.frames
        if network == "univnet":
            noise = self._normal(1, self.model.config("univnet").noise_dim, frames + SILENT_FRAMES)
            return self._stage("univnet", mel=self._normal(1, 100, frames), noise=noise)
        if network == "bigvgan":
            return self._stage("bigvgan", mel=self._normal(1, 100, frames))
        width = self.model.widths[0]
        return self._stage("hifigan", frames=self._normal(1, width, frames), conditioning=self._normal(1, width))

    def _all(self, lanes: Sequence[int]) -> Iterator[tuple[str, str, dict[str, int], Callable[[], StageCall]]]:
        """Yield network, kind, bucket, and a function that prepares the call."""
        frames = self.work.frames
        yield "autoregressive", "prefill", {"columns": self.work.prefix}, self.prefill
        for count in lanes:
            yield "autoregressive", "step", {"columns": count}, lambda count=count: self.step(count)
        yield "clvp", "clvp_text", {"positions": TOKENS}, lambda: self._stage(
            "clvp_text", tokens=self._ids("num_text_tokens", 1, TOKENS))
        yield "clvp", "clvp_speech", {"batch": RANKED, "positions": CODES}, lambda: self._stage(
            "clvp_speech", codes=self._ids("num_speech_tokens", RANKED, CODES))
        yield "diffusion", "condition", {"latents": CODES}, lambda: lambda: self.backend.denoiser(
            [self._latents()], self._voice(), [frames])
        for batch in (1, 2):
            yield ("diffusion", "denoise", {"batch": batch, "frames": frames},
                   lambda batch=batch: self.denoise(batch == 2))
        for network in ("univnet", "bigvgan", "hifigan"):
            yield network, network, {"frames": frames}, lambda network=network: self.vocoder(network)
        yield "conditioning_encoder", "ar_conditioning", {"frames": CLIP_FRAMES}, lambda: self._stage(
            "ar_conditioning", mel=self._normal(1, 80, CLIP_FRAMES))
        yield "contextual_embedder", "diffusion_conditioning", {"frames": DIFFUSION_CLIP_FRAMES}, lambda: self._stage(
            "diffusion_conditioning", mel=self._normal(1, 100, DIFFUSION_CLIP_FRAMES))
        for index, (network, stage) in enumerate((("rlg_auto", "ar_random"), ("rlg_diffuser", "diffusion_random"))):
            yield network, stage, {}, lambda stage=stage, index=index: self._stage(
                stage, noise=self._normal(1, self.model.widths[index]))

    def _stage(self, stage: str, **inputs: np.ndarray) -> StageCall:
        return lambda: self.backend.run(stage, **inputs)

    def _normal(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape, dtype=np.float32)

    def _ids(self, limit: str, batch: int, length: int) -> np.ndarray:
        return self.rng.integers(0, getattr(self.model.config("clvp"), limit), (batch, length))

    def _latents(self) -> np.ndarray:
        """(1, codes, latent channels) for the fewest codes that give ``work.frames`` frames."""
        codes = next(count for count in range(1, self.work.frames + 1) if frame_count(count) >= self.work.frames)
        return self._normal(1, codes, self.model.config("diffusion").in_latent_channels)

    def _voice(self) -> np.ndarray:
        return 0.6 * self._normal(1, self.model.widths[1])

    def _prefix(self) -> np.ndarray:
        """Conditioning and text: (work.prefix, D)."""
        config = self.model.config("autoregressive")
        ids = self.rng.integers(1, config.number_text_tokens, self.work.prefix - 4)
        return Embeddings(**self.backend.embeddings()).prefix(self._normal(1, config.model_dim), ids.tolist(), config)


# Functions of packages

class TimedToolkit(CoreMLTools):
    """Measures the time of compiling."""

    _seconds: float | None = None

    def compile(self, package: Path, destination: Path) -> None:
        _, self._seconds = timed(lambda: CoreMLTools.compile(self, package, destination))

    def compile_seconds(self) -> float | None:
        """Seconds of the last compilation; None if there was none since the previous call."""
        seconds, self._seconds = self._seconds, None
        return seconds


def package_functions(model: "Bundle", packages: Iterable[PackageRecord], engine: Runtime, spec: str, units: str | None,
                      work: SentenceSizes | None,
                      compile_seconds: Callable[[], float | None] = lambda: None) -> Iterator[MeasuredFunction]:
    """Of these packages the functions that a sentence takes, and all of a decoder's steps and stores.

    Args:
        spec: the engine, as ``--backend`` takes it. units: compute units; None: the engine has none.
        work: None: of each kind the smallest function.
    """
    for package in packages:
        check_hashes(model.path, package.files)
        path = model.path / package.path
        declared = Package(path).functions
        for name in functions_of_a_sentence(package, work):
            record = package.functions[name]
            row = BenchRow(spec, name, settings={
                "network": package.network, "kind": record.kind, "bucket": dict(record.bucket),
                "precision": package.precision, "compute_units": units,
                "cache": CACHES.get(record.kind)})
            yield MeasuredFunction(
                row, lambda path=path, name=name, package=package: engine.load(
                    path, name, units or package.compute_units),
                lambda loaded, function=declared[name]: prediction(loaded, function, engine.in_place),
                compile_seconds=compile_seconds)


def prediction(loaded: Any, function: ProgramFunction, in_place: bool = False) -> Callable[[], object]:
    """A call of a loaded function, on small normal numbers and with its own state. ``in_place``: see ``Runtime``."""
    rng = np.random.default_rng(0)
    inputs = {name: np.zeros(type.shape, np.int32) if type.dtype == "int32" else
              0.1 * rng.standard_normal(type.shape, dtype=np.float32) for name, type in function.inputs.items()}
    state = loaded.make_state() if function.states else None
    if not in_place:
        return lambda: loaded.predict(inputs, state)
    large = {name: array for name, array in inputs.items() if array.dtype == np.float32}
    return lambda: loaded.predict({name: inputs[name] for name in inputs.keys() - large.keys()}, state, large)


def functions_of_a_sentence(package: PackageRecord, work: SentenceSizes | None) -> list[str]:
    lengths = {} if work is None else {
        "prefill": work.prefix, "condition": CODES, "clvp_text": TOKENS, "clvp_speech": CODES,
        **dict.fromkeys(("denoise", "univnet", "hifigan"), work.frames)}
    of_a_kind: dict[Any, list[str]] = {}        # functions that differ in their length only
    for name, record in package.functions.items():
        key = name if record.kind in (*CACHES, "store") else (record.kind, record.bucket.get("batch"))
        of_a_kind.setdefault(key, []).append(name)
    return [smallest_fitting(names, package.functions, lengths.get(package.functions[names[0]].kind, 0))
            for names in of_a_kind.values()]


def smallest_fitting(names: list[str], functions: Mapping[str, FunctionRecord], length: int) -> str:
    """The function with the smallest bucket that takes ``length`` columns, latents or frames, else the largest."""
    def size(name: str) -> int:
        bucket = functions[name].bucket
        return max((bucket[key] for key in ("columns", "latents", "frames", "positions") if key in bucket), default=0)

    fitting = [name for name in names if size(name) >= length]
    return min(fitting, key=size) if fitting else max(names, key=size)
