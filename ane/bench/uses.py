"""The stages on torch, each used as saying the sentence uses it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ane.backends.torch.backend import TorchBackend
from ane.bench.figures import CODES, TOKENS, Calls
from ane.bench.figures import Row as Figures
from ane.bench.measure import Subject
from ane.bench.nearness import hold_to_bar
from ane.models.tortoise.embeddings import Embeddings
from ane.models.tortoise.networks.univnet import SILENT_FRAMES

CLIP_FRAMES, DIFFUSION_CLIP_FRAMES = 517, 401       # of a reference clip, as ``ane.models.tortoise.voice_encoding`` crops it
RANKED = 8                                          # candidates that ``ane.models.tortoise.ranking`` ranks in one call
Call = Callable[[], object]


class Uses:
    """Calls of a torch backend with numbers that do not matter: normal ones, and random ids."""

    def __init__(self, backend: TorchBackend, calls: Calls):
        self.backend, self.model, self.calls = backend, backend.model, calls
        self.rng = np.random.default_rng(0)
        self._near = False

    def subjects(self, threads: int | None, precision: str, spec: str, lanes: Sequence[int]) -> Iterator[Subject]:
        """All that the model has networks for."""
        for network, kind, bucket, prepare in self._all(lanes):
            if network in self.model.networks:
                several = next(iter(bucket.values())) if kind in ("step", "denoise") else None
                row = Figures(spec, network, f"{kind}_{several}" if several else kind, kind, bucket, precision,
                              threads=threads, lanes=several if kind == "step" else None)
                yield Subject(row, lambda network=network: self._load(network, precision),
                              lambda loaded, prepare=prepare: prepare(), self.backend.release)

    def _load(self, network: str, precision: str) -> Any:
        """The network. Raises UserError for a decoder in int8 that is not near enough to itself in float32."""
        if precision == "int8" and not self._near:
            hold_to_bar(self.model)
            self._near = True
        return self.backend.network(network)

    def _all(self, lanes: Sequence[int]) -> Iterator[tuple[str, str, dict[str, int], Callable[[], Call]]]:
        frames = self.calls.frames
        yield "autoregressive", "prefill", {"columns": self.calls.prefix}, self._prefill
        for count in lanes:
            yield "autoregressive", "step", {"columns": count}, lambda count=count: self._step(count)
        yield "clvp", "clvp_text", {"places": TOKENS}, lambda: self._stage(
            "clvp_text", tokens=self._ids("num_text_tokens", 1, TOKENS))
        yield "clvp", "clvp_speech", {"batch": RANKED, "places": CODES}, lambda: self._stage(
            "clvp_speech", codes=self._ids("num_speech_tokens", RANKED, CODES))
        yield "diffusion", "condition", {"latents": CODES}, lambda: self._bind
        for batch in (1, 2):
            yield ("diffusion", "denoise", {"batch": batch, "frames": frames},
                   lambda batch=batch: self._denoise(batch == 2))
        yield "univnet", "univnet", {"frames": frames}, lambda: self._stage(
            "univnet", mel=self._normal(1, 100, frames),
            noise=self._normal(1, self.model.config("univnet").noise_dim, frames + SILENT_FRAMES))
        yield "hifigan", "hifigan", {"frames": frames}, lambda: self._stage(
            "hifigan", frames=self._normal(1, self.model.widths[0], frames),
            conditioning=self._normal(1, self.model.widths[0]))
        yield "conditioning_encoder", "ar_conditioning", {"frames": CLIP_FRAMES}, lambda: self._stage(
            "ar_conditioning", mel=self._normal(1, 80, CLIP_FRAMES))
        yield "contextual_embedder", "diffusion_conditioning", {"frames": DIFFUSION_CLIP_FRAMES}, lambda: self._stage(
            "diffusion_conditioning", mel=self._normal(1, 100, DIFFUSION_CLIP_FRAMES))
        for index, (network, stage) in enumerate((("rlg_auto", "ar_random"), ("rlg_diffuser", "diffusion_random"))):
            yield network, stage, {}, lambda stage=stage, index=index: self._stage(
                stage, noise=self._normal(1, self.model.widths[index]))

    def _stage(self, stage: str, **inputs: np.ndarray) -> Call:
        return lambda: self.backend.run(stage, **inputs)

    def _normal(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape, dtype=np.float32)

    def _ids(self, most: str, batch: int, length: int) -> np.ndarray:
        return self.rng.integers(0, getattr(self.model.config("clvp"), most), (batch, length))

    def _prefix(self) -> np.ndarray:
        config = self.model.config("autoregressive")
        ids = self.rng.integers(1, config.number_text_tokens, TOKENS)
        return Embeddings(**self.backend.embeddings()).prefix(self._normal(1, config.model_dim), ids.tolist(), config)

    def _prefill(self) -> Call:
        decoder, prefix = self.backend.decoder(1, 1), self._prefix()
        return lambda: decoder.prefill(prefix)

    def _step(self, lanes: int) -> Call:
        """A step in the middle of the sentence; the same positions are written each time."""
        length = min(CODES // 2, self.calls.capacity - 1)
        decoder = self.backend.decoder(lanes, self.calls.capacity)
        decoder.prefill(self._prefix())
        columns, lengths = self._normal(lanes, 1, self.model.widths[0]), np.full(lanes, length)
        return lambda: decoder.step(columns, lengths)

    def _bind(self) -> Any:
        config = self.model.config("diffusion")
        return self.backend.denoiser(self._normal(1, CODES, config.in_latent_channels),
                                     0.6 * self._normal(1, self.model.widths[1]), self.calls.frames)

    def _denoise(self, guided: bool) -> Call:
        denoiser, x = self._bind(), self._normal(1, 100, self.calls.frames)
        return lambda: denoiser(x, 2000, guided)
