"""Combine backends: one backend computes some of the calls or networks, and passes all others on to another backend."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ane.backends.base import Backend, ModelStages, RowLimit
from ane.backends.decoding import Decoder
from ane.backends.denoising import Denoiser, bind_separately


class ForwardingBackend(Backend):
    """Passes every call to another backend, ``fallback``.

    Subclasses override the calls that they compute themselves.
    """

    fallback: Backend

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        return self.fallback.run(stage, **inputs)

    def embeddings(self) -> dict[str, np.ndarray]:
        return self.fallback.embeddings()

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        return self.fallback.decoder(lanes, capacity, prefixes, max_prefix_length)

    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        return self.fallback.denoiser(latents, conditioning, frames)

    def align(
        self, columns: np.ndarray, memory: np.ndarray, heads: Sequence[tuple[int, int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        return self.fallback.align(columns, memory, heads)

    def prefix_attention(self, columns: np.ndarray, prefix: int, heads: Sequence[tuple[int, int]]) -> np.ndarray:
        return self.fallback.prefix_attention(columns, prefix, heads)


class SharingBackend(ForwardingBackend):
    """Runs some networks itself. ``fallback`` runs all other networks.

    Attributes:
        stages: Stages of the model.
        computed: The networks that this backend runs itself, by name.
        keep: Whether these networks stay loaded after ``release``.
    """

    stages: ModelStages
    computed: Mapping[str, Any]

    @abstractmethod
    def _decoder(self, lanes: int, capacity: int, prefixes: int, max_prefix_length: int | None) -> Decoder:
        """Create a decoder that runs on this backend."""

    @abstractmethod
    def _denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Denoiser:
        """Create a denoiser that runs on this backend and is bound to one utterance."""

    @abstractmethod
    def _load(self, network: str) -> None:
        """Load the parts of this network that every call needs."""

    @abstractmethod
    def _unload(self, network: str) -> None:
        """Unload this network, if it is loaded."""

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        make = self._decoder if self.stages.decoder.network in self.computed else self.fallback.decoder
        return make(lanes, capacity, prefixes, max_prefix_length)

    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        if self.stages.denoiser.network not in self.computed:
            return self.fallback.denoiser(latents, conditioning, frames)
        return bind_separately(lambda rows, length: self._denoiser(rows, conditioning, length), latents, frames)

    def load(self, *networks: str) -> None:
        for network in networks:
            if network in self.computed:
                self._load(network)
        self.fallback.load(*(network for network in networks if network not in self.computed))

    def release(self, *networks: str) -> None:
        self.fallback.release(*networks)
        for network in () if self.keep else networks or tuple(self.computed):
            if network in self.computed:
                self._unload(network)


class DeferredBackend(ForwardingBackend):
    """Creates a backend with ``make`` at its first use.

    Creating the PyTorch backend would delay every start by 1 s.
    """

    def __init__(self, make: Callable[[], Backend]):
        self._make = make

    @cached_property
    def fallback(self) -> Backend:
        """Return the backend. The first access creates it."""
        return self._make()

    @property
    def name(self) -> str:
        return self.fallback.name

    def load(self, *networks: str) -> None:
        if networks:
            self.fallback.load(*networks)

    def release(self, *networks: str) -> None:
        if "fallback" in self.__dict__:
            self.fallback.release(*networks)


class PhasedBackend(ForwardingBackend):
    """Runs the decoder on one engine and all other networks on another engine.

    Args:
        network: Name of the decoder's network.
        decoding: Backend that runs the decoder.
        others: Backend that runs all other networks.
    """

    def __init__(self, network: str, decoding: Backend, others: Backend):
        self.network, self.decoding, self.fallback = network, decoding, others
        self.max_batched_frames, self.returns_attention = others.max_batched_frames, decoding.returns_attention
        self.blocks_python = decoding.blocks_python or others.blocks_python
        self.keep = decoding.keep and others.keep

    @property
    def name(self) -> str:
        return f"{self.decoding.name}; other networks: {self.fallback.name}"

    def run_all(self, stage: str, calls: Sequence[dict[str, np.ndarray]]) -> Iterator[np.ndarray]:
        return self.fallback.run_all(stage, calls)

    def row_limit(self, stage: str) -> RowLimit:
        return self.fallback.row_limit(stage)

    def embeddings(self) -> dict[str, np.ndarray]:
        return self.decoding.embeddings()

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        return self.decoding.decoder(lanes, capacity, prefixes, max_prefix_length)

    def prefix_attention(self, *arguments: Any) -> np.ndarray:
        return self.decoding.prefix_attention(*arguments)

    def load(self, *networks: str) -> None:
        self.decoding.load(*(name for name in networks if name == self.network))
        self.fallback.load(*(name for name in networks if name != self.network))

    def release(self, *networks: str) -> None:
        if not networks or self.network in networks:
            self.decoding.release(*([self.network] if networks else []))
        others = [name for name in networks if name != self.network]
        if others or not networks:
            self.fallback.release(*others)
