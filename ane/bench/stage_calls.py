"""Calls of every stage of a Tortoise model on a backend, with the sizes of a spoken sentence."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from ane.backends.base import Backend
from ane.bench.measure import MeasuredFunction
from ane.bench.records import BenchRow
from ane.models.tortoise.decoding import Embeddings
from ane.models.tortoise.diffusion import frame_count
from ane.models.tortoise.networks.univnet import SILENT_FRAMES
from ane.models.tortoise.settings import Settings

CODES = 86          # 4 s of speech
TOKENS = 40         # of the sentence's text

CLIP_FRAMES, DIFFUSION_CLIP_FRAMES = 517, 401       # of a clip, as ``ane.models.tortoise.voices`` crops it
RANKED = 8                                          # candidates that ``ane.models.tortoise.ranking`` ranks in one call
TIMESTEP = 2000
StageCall = Callable[[], object]


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

    def denoise(self, guided: bool, utterances: int = 1) -> StageCall:
        """A denoising step of utterances of ``work.frames`` each: in one call where the backend batches them."""
        frames = self.work.frames
        noisy = [self._normal(1, 100, frames) for _ in range(utterances)]
        denoiser = self.backend.denoiser([self._latents() for _ in noisy], self._voice(), [frames] * utterances)
        return lambda: denoiser(noisy, TIMESTEP, guided)

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
