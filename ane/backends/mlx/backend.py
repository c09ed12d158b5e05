"""Run a model's decoder and denoiser on MLX, and its other networks in torch on the CPU."""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.base import Backend
from ane.backends.decoding import Decoder
from ane.backends.denoising import Denoiser
from ane.backends.forwarding import SharingBackend
from ane.backends.mlx.decoder import MlxDecoder
from ane.backends.mlx.diffusion import MlxDenoiser, MlxDiffusion
from ane.backends.mlx.gpt import MlxGPT
from ane.backends.mlx.layers import PRECISIONS, MlxPrecision, Parameters, mlx_precision
from ane.backends.mlx.owner import device_name, on_owner
from ane.backends.mlx.proof import ProvenDecoders
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles import Bundle

LOGGER = logging.getLogger(__name__)


def gpt(tensors: Parameters, config: Any, precision: MlxPrecision) -> MlxGPT:
    return MlxGPT(tensors, config.decoder_shape, precision)


def diffusion(tensors: Parameters, config: Any, precision: MlxPrecision) -> MlxDiffusion:
    return MlxDiffusion(tensors, config, precision.dtype)


# class of the PyTorch network → function that builds this network for MLX from its state dict
LAYOUTS: Mapping[str, Callable[[Parameters, Any, MlxPrecision], Any]] = {"UnifiedVoice": gpt, "DiffusionTts": diffusion}


class MlxBackend(SharingBackend):
    """Runs the networks of ``LAYOUTS`` on MLX, and passes calls of all other networks to ``fallback``.

    When a decoder first runs on a machine, the backend compares its outputs with the outputs of ``fallback``
    (``ProvenDecoders``).

    Args:
        model: Bundle whose networks the backend runs.
        fallback: Backend that runs the other networks, and the decoder for this comparison.
        precision: Precision of the networks on MLX, one of ``PRECISIONS``. "auto" means fp16. 8bit and 4bit quantise
            only the decoder. The denoiser then computes in fp16 on a GPU, and in fp32 on the CPU.
        keep: Whether networks stay in memory after ``release``.

    Raises:
        UserError: There is no such precision, or MLX runs none of the model's networks.
    """

    returns_attention = True

    def __init__(self, model: "Bundle", fallback: Backend, precision: str = "auto", keep: bool = False):
        if precision not in ("auto", *PRECISIONS):
            raise UserError(f"precision must be auto, {', '.join(PRECISIONS)} on MLX, got {precision!r}", "precision")
        self.model, self.fallback, self.keep, self.stages = model, fallback, keep, model.family.stages
        self.computed = {
            name: LAYOUTS[network.module.__name__]
            for name, network in model.family.networks.items()
            if name in model.networks and network.module.__name__ in LAYOUTS
        }
        if not self.computed:
            raise UserError(
                f"backend mlx runs no network of {model.family.title} models, and {model.name} is one: use "
                "auto or torch",
                "backend",
            )
        self.precision = mlx_precision(next(iter(PRECISIONS)) if precision == "auto" else precision)
        others = " (other networks on torch)" if model.networks - set(self.computed) else ""
        self.name = f"mlx:{device_name()} {self.precision.name}{others}"
        self._networks: dict[str, Any] = {}
        self._proofs = ProvenDecoders(model.identity, self.precision)

    def _decoder(self, lanes: int, capacity: int, prefixes: int, max_prefix_length: int | None) -> Decoder:
        self.prove()
        return MlxDecoder(self.network(self.stages.decoder.network), lanes, capacity, prefixes, max_prefix_length)

    def prove(self) -> None:
        """Compare the decoder's outputs with the outputs of ``fallback``, unless this machine has done so before.

        Raises:
            UserError: The outputs differ by more than rounding.
        """
        if (name := self.stages.decoder.network) in self.computed:
            self._proofs.prove(self.network(name), self.fallback)

    def _denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Denoiser:
        return MlxDenoiser(self.network(self.stages.denoiser.network), latents, conditioning, frames)

    def _load(self, network: str) -> None:
        self.network(network)

    def _unload(self, network: str) -> None:
        self._networks.pop(network, None)

    def network(self, name: str) -> Any:
        """Return a network on MLX. The first call loads it."""
        network = self._networks.get(name)
        if network is None:
            network = self._networks[name] = self._laid_out(name)
        return network

    @on_owner
    def _laid_out(self, name: str) -> Any:
        return self.computed[name](NumpyTensors(self.model.tensors(name)), self.model.config(name), self.precision)


class NumpyTensors(Mapping[str, np.ndarray]):
    """A view of a torch state dict as float32 arrays. It converts a tensor only when you read it, to save memory."""

    def __init__(self, tensors: Mapping[str, Any]):
        self._tensors = tensors

    def __getitem__(self, key: str) -> np.ndarray:
        return self._tensors[key].float().numpy()

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
