"""The reference networks on PyTorch: CPU, CUDA, MPS."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from ane.backends.base import STAGES, check
from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.denoiser import FRAMES_AT_ONCE, TorchBatchedDenoiser, TorchDenoiser
from ane.backends.torch.device import choose_device, native_bf16
from ane.backends.torch.linear import Prepacking, exact_prepacking, prepack, prepacking
from ane.backends.torch.memory import torch_memory_errors, return_freed_memory
from ane.backends.torch.static_decoder import CudaGraphRunner, StaticDecoder
from ane.bundles import Model
from ane.bundles.weights import skeleton
from ane.models.tortoise.networks.diffusion_decoder import DiffusionTts
from ane.models.tortoise.networks.layers import GroupNorm, RMSNorm
from ane.system.errors import UserError

PRECISIONS = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}      # bytes of a weight
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# The networks worth computing in half the bytes. The others are small or run once, and a vocoder's rounding is heard.
HALVED = frozenset({"autoregressive", "diffusion", "clvp", "cvvp"})

# Tables that the host looks up itself, by their place in the decoder's state dict.
EMBEDDINGS = {
    "text": "text_embedding.weight",
    "text_position": "text_pos_embedding.emb.weight",
    "code": "mel_embedding.weight",
    "code_position": "mel_pos_embedding.emb.weight",
}

CALLS: dict[str, Callable[..., Tensor]] = {
    "ar_conditioning": lambda network, mel: network(mel),
    "diffusion_conditioning": lambda network, mel: network(mel),
    "ar_random": lambda network, noise: network(noise),
    "diffusion_random": lambda network, noise: network(noise),
    "clvp_text": lambda network, tokens: network.text(tokens),
    "clvp_speech": lambda network, codes: network.speech(codes),
    "cvvp_clip": lambda network, mel: network.clip(mel),
    "cvvp_speech": lambda network, codes: network.speech(codes),
    "univnet": lambda network, mel, noise: network(mel, noise),
    "hifigan": lambda network, frames, conditioning: network(frames, conditioning),
    "classifier": lambda network, audio: network(audio),
}


@dataclass(frozen=True)
class Precision:
    """What a backend computes in.

    Attributes:
        name: as ``--precision`` has it.
        dtype: of the networks in ``HALVED``, the decoder's linear layers apart where they are packed.
        linear: how the decoder's linear layers are packed; None: they are as all the rest.
    """

    name: str
    dtype: torch.dtype
    linear: Prepacking | None = None


def choose_precision(wanted: str, stored: str, device: torch.device) -> Precision:
    """The precision wanted; "auto" is what the weights are stored in, where the device is good at it, else float32.

    On the CPU the decoder's weights stay as small as they are stored even where its arithmetic is float32.

    Raises:
        UserError: no such precision, or not on this device.
    """
    if wanted not in ("auto", *PRECISIONS):
        raise UserError(f"torch computes in no precision {wanted!r}; there are auto, {', '.join(PRECISIONS)} "
                        "(8bit, 6bit and 4bit are of Core ML packages)")
    if device.type != "cpu":
        if wanted == "int8":
            raise UserError(f"--precision int8 is of the CPU; on {device} there are {', '.join(DTYPES)}")
        name = stored if wanted == "auto" else wanted
        if name == "bf16" and device.type == "cuda" and not native_bf16(device):
            if wanted == "bf16":
                raise UserError(f"--precision bf16: {torch.cuda.get_device_name(device)} does not compute in bfloat16 "
                                "(NVIDIA GPUs do from Ampere on); use fp16 or fp32")
            name = "fp32"
        return Precision(name, DTYPES[name])
    native = stored == "bf16" and torch.cpu._is_avx512_bf16_supported()
    usual = torch.bfloat16 if native else torch.float32
    if wanted != "auto":
        return Precision(wanted, DTYPES.get(wanted, usual), prepacking(wanted))
    if native:
        return Precision("bf16", usual, prepacking("bf16"))
    return Precision("fp32", usual, exact_prepacking(stored))


class TorchBackend:
    """Runs the stages with the reference networks, each loaded when it is first called and kept until released.

    Args:
        packed: the decoder's linear layers may be laid out as the CPU wants them; not where a network is to be read.

    Attributes:
        side_by_side: never. Steps in threads share the CPU's cores: on two of them they are a tenth slower than in turn
            (benchmarks/scale.py). On CUDA they would share the one stream that they all launch on, and what could
            overlap, the host's sampling with another step's kernels, was not tried.
    """

    side_by_side = False

    def __init__(self, model: Model, device: str = "auto", precision: str = "auto", threads: int | None = None,
                 keep: bool | None = None, notice: Callable[[str], None] = lambda line: None, packed: bool = True):
        if threads is not None:
            torch.set_num_threads(threads)      # torch has one count for the whole process
        self.model = model
        self.device = choose_device(device, notice)
        chosen = choose_precision(precision, model.precision, self.device)
        self.chosen = chosen if packed else replace(chosen, linear=None)
        self.dtype = self.chosen.dtype
        self.name = f"torch:{self.device} {self.chosen.name}"
        self.frames_at_once = FRAMES_AT_ONCE[self.device.type]
        self.keep = self.device.type != "cpu" if keep is None else keep
        self._networks: dict[str, nn.Module] = {}

    @torch.inference_mode()
    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        """Run a stage of ``ane.backends.base.STAGES``. Raises what ``check`` does, and UserError when memory runs out."""
        check(stage, inputs)
        with torch_memory_errors():
            name = STAGES[stage].network
            network, dtype = self.network(name), self.precision(name)
            output = CALLS[stage](network, **{key: self._send(array, dtype) for key, array in inputs.items()})
            return output.float().cpu().numpy()

    def embeddings(self) -> dict[str, np.ndarray]:
        tensors = self.model.tensors("autoregressive")
        return {table: tensors[key].float().numpy() for table, key in EMBEDDINGS.items()}

    @torch.inference_mode()
    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, longest: int | None = None) -> TorchDecoder:
        with torch_memory_errors():
            made = TorchDecoder
            if self.device.type == "cuda":
                made = partial(StaticDecoder, run=CudaGraphRunner(self._aside))
            return made(self.network("autoregressive"), lanes, capacity, self.device, self.precision("autoregressive"),
                        prefixes, longest)

    @torch.inference_mode()
    def denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> TorchDenoiser:
        with torch_memory_errors():
            return TorchDenoiser(self.network("diffusion"), self._send(latents, self.dtype),
                                 self._send(conditioning, self.dtype), frames)

    @torch.inference_mode()
    def denoisers(self, latents: Sequence[np.ndarray], conditioning: np.ndarray,
                  frames: Sequence[int]) -> TorchBatchedDenoiser:
        with torch_memory_errors():
            return TorchBatchedDenoiser(self.network("diffusion"), [self._send(rows, self.dtype) for rows in latents],
                                        self._send(conditioning, self.dtype), frames)

    def load(self, *networks: str) -> None:
        for name in networks:
            self.network(name)

    def release(self, *networks: str) -> None:
        """Let go of networks (all, when none is named) unless told to keep them."""
        if self.keep:
            return
        for name in networks or tuple(self._networks):
            self._networks.pop(name, None)
        return_freed_memory(self.device)

    def precision(self, network: str) -> torch.dtype:
        """Of activations and of all weights but packed ones."""
        packed = network == "autoregressive" and self.chosen.linear is not None
        return self.dtype if network in HALVED and not packed else torch.float32

    def network(self, name: str) -> nn.Module:
        """The network, its parameters on the device; memory-mapped where they can be used as they lie on disk."""
        if name not in self._networks:
            network = skeleton(name, self.model.config(name)).eval().requires_grad_(False)
            network.load_state_dict({key: tensor for key, tensor in self.model.tensors(name).items()
                                     if key not in EMBEDDINGS.values()}, strict=False, assign=True)
            packed = name == "autoregressive" and self.chosen.linear is not None
            if packed:
                prepack(network, self.chosen.linear)
            state = {key: self._place(network, key, tensor, self.precision(name))
                     for key, tensor in network.state_dict().items() if not tensor.is_meta}
            if packed:          # nothing may hold the mapped file
                state = {key: tensor.clone() for key, tensor in state.items()}
            network.load_state_dict(state, strict=False, assign=True)
            self._networks[name] = network.requires_grad_(False)
        return self._networks[name]

    @cached_property
    def _aside(self) -> torch.cuda.Stream:
        """The stream on which decoders record their graphs."""
        return torch.cuda.Stream(self.device)

    def _send(self, array: np.ndarray, dtype: torch.dtype) -> Tensor:
        tensor = torch.from_numpy(np.require(array, requirements=("C", "W")))
        return tensor.to(self.device, dtype if tensor.is_floating_point() else None)

    def _place(self, network: nn.Module, key: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        module = network.get_submodule(key.rpartition(".")[0])
        if isinstance(module, nn.LayerNorm | GroupNorm | RMSNorm) or key.endswith(("inv_freq", "temperature")):
            dtype = torch.float32
        tensor = tensor.to(self.device, dtype)
        if isinstance(network, DiffusionTts) and tensor.ndim == 3 and tensor.shape[-1] > 1:
            # channels last, as the frames are: else oneDNN turns the kernel round at every call, a tenth of its time
            return tensor.transpose(1, 2).contiguous().transpose(1, 2)
        return tensor
