"""What the engines on a bundle's packages have in common: which networks have one, and what runs the others."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.base import Backend, Decoder, Stage, check_inputs
from ane.backends.denoising import Denoiser, each_alone
from ane.backends.packaged.selection import describe_packages
from ane.bundles.hashes import check_hashes
from ane.bundles.packages import PackageRecord

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle


class PackagedEngine(Backend):
    """Runs the networks that have a package there, and the others on ``fallback``.

    Args:
        packages: by network. runtime: its name. fallback: also returns attention, which is one pass a chunk or window
            and which no package returns, and the decoder's tables.
        keep: keep what is loaded of released networks.
    """

    returns_attention = True

    def __init__(self, model: "Bundle", packages: dict[str, PackageRecord], runtime: str, fallback: Backend,
                 keep: bool):
        self.model, self.packages, self.fallback, self.keep = model, packages, fallback, keep
        self.stages, self.name = model.family.stages, describe_packages(runtime, packages, model)
        self._tables: dict[str, dict[str, np.ndarray]] = {}
        self._checked: set[str] = set()

    @abstractmethod
    def _run(self, declared: Stage, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Run a stage of a network that has a package."""

    @abstractmethod
    def _decoder(self, lanes: int, capacity: int, prefixes: int, max_prefix_length: int | None) -> Decoder:
        """A decoder on its package."""

    @abstractmethod
    def _denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Denoiser:
        """A denoiser of one utterance on its package."""

    @abstractmethod
    def _load(self, network: str) -> None:
        """Load what is known to be needed of a network's package."""

    @abstractmethod
    def _unload(self, network: str) -> None:
        """Free what is loaded of a network's package."""

    def _attempt(self, network: str, work: Callable[[], Any]) -> Any:
        """The result of ``work``, a call of this network."""
        return work()

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        declared = self.stages.calls[stage]
        check_inputs(stage, declared, inputs)
        return self._attempt(declared.network, lambda: (
            self._run(declared, stage, inputs) if declared.network in self.packages
            else self.fallback.run(stage, **inputs)))

    def embeddings(self) -> dict[str, np.ndarray]:
        return self.fallback.embeddings()

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        make = self._decoder if self.stages.decoder.network in self.packages else self.fallback.decoder
        return make(lanes, capacity, prefixes, max_prefix_length)

    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        if self.stages.denoiser.network not in self.packages:
            return self.fallback.denoiser(latents, conditioning, frames)
        return each_alone(lambda rows, length: self._denoiser(rows, conditioning, length), latents, frames)

    def align(self, columns: np.ndarray, memory: np.ndarray,
              heads: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        return self.fallback.align(columns, memory, heads)

    def prefix_attention(self, columns: np.ndarray, prefix: int, heads: Sequence[tuple[int, int]]) -> np.ndarray:
        return self.fallback.prefix_attention(columns, prefix, heads)

    def load(self, *networks: str) -> None:
        for network in networks:
            if network in self.packages:
                self._load(network)
        self.fallback.load(*(network for network in networks if network not in self.packages))

    def release(self, *networks: str) -> None:
        self.fallback.release(*networks)
        for network in () if self.keep else networks or tuple(self.packages):
            if network in self.packages:
                self._tables.pop(network, None)
                self._unload(network)

    def table(self, network: str, key: str) -> np.ndarray:
        """The parameter with this key in the network's state dict, float32."""
        tables = self._tables.setdefault(network, {})
        if key not in tables:
            tables[key] = self.model.tensors(network)[key].float().numpy()
        return tables[key]

    def checked(self, network: str) -> PackageRecord:
        """A network's package. Raises UserError, when it is first asked for, if a file of it is damaged."""
        package = self.packages[network]
        if package.path not in self._checked:
            check_hashes(self.model.path, package.files)
            self._checked.add(package.path)
        return package
