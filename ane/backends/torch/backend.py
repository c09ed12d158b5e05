"""Run a model's PyTorch networks, which are the reference for all other backends, on the CPU, CUDA or MPS."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ane.backends.base import Backend, RowLimit, check_inputs
from ane.backends.denoising import Denoiser
from ane.backends.torch.decoder import TorchDecoder, aligned_pass
from ane.backends.torch.device import (
    choose_device,
    convolutions,
    keep_freed_memory,
    native_bf16,
    refuses_long_rows,
    return_freed_memory,
    torch_memory_errors,
)
from ane.backends.torch.frame_layers import FramePacking, frame_packing, pack_channels_last, pack_frame_layers
from ane.backends.torch.kernel_decoder import KernelDecoder
from ane.backends.torch.kernels import WIDEST_HEAD, has_kernel, library
from ane.backends.torch.linear import Prepacking, exact_prepacking, prepack, prepacking
from ane.backends.torch.static_decoder import CudaGraphRunner, StaticDecoder
from ane.backends.torch.threads import ThreadGovernor, choose_threads, governed
from ane.bundles import Bundle
from ane.bundles.opening import is_embedded
from ane.bundles.precisions import TORCH
from ane.bundles.weights import skeleton
from ane.system.errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# for rows of this many frames or more, torch's group norm adds in an order that depends on the number of threads
INEXACT_FRAMES = 1024

# Largest number of mel frames, over all utterances, in one call of the denoiser, by type of device. On a CPU, a single
# utterance already keeps all cores busy, so batching gains nothing (benchmarks/results/diffusion-1-thread.json). On
# CUDA, a short call takes as long as the launches of its kernels. 4096 is an estimate and not measured: about 1000
# frames, each computed twice for guidance, should fill the largest GPUs.
MAX_BATCHED_FRAMES = {"cpu": 0, "cuda": 4096, "mps": 0}


@dataclass(frozen=True)
class TorchPrecision:
    """The number formats in which the backend computes.

    To *pack* a layer means to convert its weight, at loading, to the layout that a fast CPU kernel needs.

    Attributes:
        name: A key of ``ane.bundles.precisions.TORCH``.
        dtype: Dtype of the networks that have ``half_precision``. A decoder with packed layers computes in float32.
        packed: Precision to which weights are packed. "" means that ``stored`` decides.
        stored: Precision of the stored weights, if the decoder's layers are to be packed without loss. "" means that
            they are not packed.
    """

    name: str
    dtype: torch.dtype
    packed: str = ""
    stored: str = ""

    @cached_property
    def linear(self) -> Prepacking | None:
        """The function that makes packed linear layers for the decoder, or ``None`` if its layers are not packed."""
        return prepacking(self.packed) if self.packed else exact_prepacking(self.stored) if self.stored else None

    @cached_property
    def frames(self) -> FramePacking | None:
        """The packing for the layers of networks whose attribute ``packs_layers`` is true.

        ``None`` means that these layers are not packed.
        """
        return frame_packing(self.packed) if self.packed else None


def choose_precision(wanted: str, stored: str, device: torch.device) -> TorchPrecision:
    """Choose the precision to compute in.

    Args:
        wanted: A key of ``TORCH``, or "auto". "auto" means the precision of the stored weights if the device computes
            it fast, and float32 if it does not. On MPS, it means fp16 for weights stored in bf16. On the CPU, even if
            "auto" means float32, the decoder's weights keep their stored size.
        stored: Precision of the stored weights.
        device: Device to compute on.

    Raises:
        UserError: There is no such precision, or the device does not compute in it.
    """
    if wanted not in ("auto", *TORCH):
        raise UserError(
            f"precision must be auto, {', '.join(TORCH)} on torch, got {wanted!r} (other precisions are for packages)",
            "precision",
        )
    if device.type != "cpu":
        if wanted == "int8":
            raise UserError(f"precision int8 runs on the CPU only: on {device} use one of {', '.join(DTYPES)}")
        name = stored if wanted == "auto" else wanted
        if name == "bf16" and device.type == "cuda" and not native_bf16(device):
            if wanted == "bf16":
                raise UserError(
                    f"precision bf16: {torch.cuda.get_device_name(device)} does not compute in bfloat16 "
                    "(NVIDIA GPUs do from Ampere on): use fp16 or fp32"
                )
            name = "fp32"
        elif name == "bf16" and device.type == "mps" and wanted == "auto":
            name = "fp16"  # fp16 has as many bytes as bf16, and a mantissa of 10 bits instead of 7
        return TorchPrecision(name, DTYPES[name])
    native = stored == "bf16" and torch.cpu._is_avx512_bf16_supported()
    usual = torch.bfloat16 if native else torch.float32
    if wanted == "fp32" and stored == "fp16":  # weights in fp16 are exact and half as large
        return TorchPrecision("fp32", torch.float32, stored=stored)
    if wanted != "auto":  # without AVX-512 bf16, half precision is 5 to 9 times slower than float32
        half = wanted == "bf16" and torch.cpu._is_avx512_bf16_supported()
        dtype = torch.bfloat16 if half else torch.float32 if wanted in DTYPES else usual
        return TorchPrecision(wanted, dtype, packed=wanted)
    if native:
        return TorchPrecision("bf16", usual, packed="bf16")
    return TorchPrecision("fp32", usual, stored=stored)


class TorchBackend(Backend):
    """Runs a model's PyTorch networks.

    A network loads when it is first called, and stays loaded until ``release``. On CUDA, convolutions compute in full
    float32 during this backend's calls, and after a call the program's setting applies again. On the CPU, the process
    keeps the memory that torch frees (``keep_freed_memory``).

    Args:
        model: Bundle whose networks the backend runs.
        device: Name of the device (see ``choose_device``).
        precision: Name of the precision (see ``choose_precision``).
        threads: Number of CPU threads for the whole process. ``None`` means torch's number of threads, or fewer threads
            while other programs keep the machine busy. Vocoders, and a denoiser whose bits depend on the number of
            threads, always use the full number.
        keep: Whether networks stay loaded after ``release``. ``None`` means that they stay loaded on a GPU, and also if
            the model has no decoder.
        exact: Whether the backend is the reference of a comparison. It then computes norms in two passes and packs no
            layer.
        fixed_thread_count: Whether all networks always use the full number of threads, even if ``threads`` is ``None``.
    """

    returns_attention = True

    def __init__(
        self,
        model: Bundle,
        device: str = "auto",
        precision: str = "auto",
        threads: int | None = None,
        keep: bool | None = None,
        exact: bool = False,
        fixed_thread_count: bool = False,
    ):
        if threads is not None:
            choose_threads(threads)  # sets the number for the whole process
        self.model, self.stages = model, model.family.stages
        self.half_precision = {name for name, network in model.family.networks.items() if network.half_precision}
        self.device = choose_device(device, small=is_embedded(model.path))
        chosen = choose_precision(precision, model.precision, self.device)
        if precision == "int8" and self.stages.decoder is None:
            raise UserError(f"precision int8 packs the layers of a decoder, and {model.name} has none: use fp32")
        if exact:  # computes in the requested dtype, even if this CPU is slow at it
            chosen = TorchPrecision(chosen.name, DTYPES.get(precision, chosen.dtype))
        self.exact, self.chosen, self.dtype = exact, chosen, chosen.dtype
        self.name = f"torch:{self.device} {self.chosen.name}"
        self.max_batched_frames = MAX_BATCHED_FRAMES[self.device.type]
        # if the model has no decoder, loading its networks takes as long as running them
        self.keep = (self.device.type != "cpu" or self.stages.decoder is None) if keep is None else keep
        self.governor = ThreadGovernor() if self.device.type == "cpu" else None
        self.fixed_thread_count = fixed_thread_count or threads is not None
        if self.device.type == "cpu":
            keep_freed_memory()
        self._rows_on_cpu = refuses_long_rows(self.device)
        self._networks: dict[str, nn.Module] = {}
        self._tables: dict[str, np.ndarray] | None = None  # the decoder's tables; reading them checks their file's hash

    @governed
    @torch.inference_mode()
    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        """Run a stage (network call) that the model declares, and return its output.

        Raises:
            TypeError: An input has another name, rank, size or dtype than the stage declares.
            UserError: An input contains NaN or an infinite value, or memory runs out.
        """
        declared = self.stages.calls[stage]
        check_inputs(stage, declared, inputs)
        with torch_memory_errors(), convolutions.full():
            network, dtype = self.network(declared.network), self.precision(declared.network)
            device = self.device_of(declared.network)
            arguments = (self._to_device(inputs[key], dtype, device) for key in declared.inputs)
            call = network if declared.method == "forward" else getattr(network, declared.method)
            return call(*arguments).float().cpu().numpy()

    def row_limit(self, stage: str) -> RowLimit:
        return RowLimit(exact=self._is_channels_last(self.stages.calls[stage].network) and has_kernel("fp32"))

    def embeddings(self) -> dict[str, np.ndarray]:
        tables = self._tables
        if tables is None:
            tensors = self.model.tensors(self.stages.decoder.network)
            parts = self.stages.decoder.tables.items()
            self._tables = tables = {table: tensors[key].float().numpy() for table, key in parts}
        return tables

    @torch.inference_mode()
    def decoder(
        self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None
    ) -> TorchDecoder:
        name = self.stages.decoder.network
        make: Any = TorchDecoder
        with torch_memory_errors():
            network, dtype = self.network(name), self.precision(name)
            if self.device.type == "cuda":
                make = partial(StaticDecoder, run=CudaGraphRunner(self._recording_stream))
            elif self._uses_kernels(network, dtype):
                halves = self.chosen.packed in ("bf16", "int8") and has_kernel(self.chosen.packed)
                make, dtype = KernelDecoder, torch.float16 if halves else dtype
            decoder = make(network, lanes, capacity, self.device, dtype, prefixes, max_prefix_length)
        decoder.governor = self.governor
        return decoder

    @torch.inference_mode()
    def align(
        self, columns: np.ndarray, memory: np.ndarray, heads: Sequence[tuple[int, int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        with torch_memory_errors():
            logits, scores = aligned_pass(
                self.network(self.stages.decoder.network),
                self._to_device(columns, torch.float32),
                self._to_device(memory, torch.float32),
                [(layer, head) for layer, head in heads],
            )
            return logits.cpu().numpy(), scores.cpu().numpy()

    @torch.inference_mode()
    def prefix_attention(self, columns: np.ndarray, prefix: int, heads: Sequence[tuple[int, int]]) -> np.ndarray:
        with torch_memory_errors():
            network = self.network(self.stages.decoder.network)
            scores = network.prefix_scores(
                self._to_device(columns[None], torch.float32), prefix, [(layer, head) for layer, head in heads]
            )
            return scores.cpu().numpy()

    @torch.inference_mode()
    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        name = self.stages.denoiser.network
        with torch_memory_errors(), convolutions.full():
            network, dtype = self.network(name), self.precision(name)
            exact = self.chosen.frames is not None and self.chosen.frames.layers.blocks and max(frames) < INEXACT_FRAMES
            return TorchDenoiser(
                network,
                [self._to_device(rows, dtype) for rows in latents],
                self._to_device(conditioning, dtype),
                frames,
                self.governor,
                fixed_thread_count=self.fixed_thread_count and not exact,
            )

    def load(self, *networks: str) -> None:
        for name in networks:
            self.network(name)

    def release(self, *networks: str) -> None:
        """Unload these networks.

        If you name no network, unload all networks. A backend with ``keep`` unloads nothing.
        """
        if self.keep:
            return
        for name in networks or tuple(self._networks):
            self._networks.pop(name, None)
            if self.stages.decodes(name):
                self._tables = None
        return_freed_memory(self.device)

    def precision(self, network: str) -> torch.dtype:
        """Return the dtype of a network's activations and of all its weights that are not packed."""
        if self._packs_frames(network):
            return self.chosen.frames.dtype
        return self.dtype if network in self.half_precision and not self._packs(network) else torch.float32

    def device_of(self, network: str) -> torch.device:
        """Return the device on which a network runs.

        If the backend's device cannot compute long rows (``refuses_long_rows``), vocoders and encoders run on the CPU.
        """
        return torch.device("cpu") if self._rows_on_cpu and network not in self.half_precision else self.device

    def network(self, name: str) -> nn.Module:
        """Return a network with its parameters on the device, and load it if necessary.

        If the network can use its parameters as they are stored, they are memory-mapped. You may keep using the network
        even if another thread releases it.
        """
        network = self._networks.get(name)
        if network is None:
            network = self._networks[name] = self._loaded(name)
        return network

    def _loaded(self, name: str) -> nn.Module:
        network = skeleton(self.model.family.networks[name], self.model.config(name)).eval().requires_grad_(False)
        decoder = self.stages.decoder if self.stages.decodes(name) else None
        # embedding tables that only the host uses
        unused = {key for table, key in decoder.tables.items() if table not in decoder.tied} if decoder else ()
        network.load_state_dict(
            {key: tensor for key, tensor in self.model.tensors(name).items() if key not in unused},
            strict=False,
            assign=True,
        )
        if self._packs(name):
            prepack(network, self.chosen.linear)
        elif self._packs_frames(name):
            pack_frame_layers(network, self.chosen.frames)
        elif self._is_channels_last(name):
            pack_channels_last(network)
        buffers = dict(network.named_buffers())
        state = {
            key: self._convert(
                network, key, tensor, torch.float32 if key in buffers else self.precision(name), self.device_of(name)
            )
            for key, tensor in network.state_dict().items()
            if not tensor.is_meta
        }
        if self._packs(name) or self._packs_frames(name):  # drops all references to the memory-mapped file
            state = {key: tensor.clone() for key, tensor in state.items()}
        network.load_state_dict(state, strict=False, assign=True)
        for module in network.modules() if self.exact else ():
            if hasattr(module, "two_pass"):
                module.two_pass = True
        return network.requires_grad_(False)

    def _uses_kernels(self, decoder: Any, dtype: torch.dtype) -> bool:
        return (
            self.device.type == "cpu"
            and not self.exact
            and dtype == torch.float32
            and library() is not None
            and decoder.config.decoder_shape.head_width <= WIDEST_HEAD
        )

    def _packs(self, network: str) -> bool:
        return self.stages.decodes(network) and self.chosen.linear is not None

    def _packs_frames(self, network: str) -> bool:
        packs = getattr(self.model.family.networks[network].module, "packs_layers", False)
        return packs and self.chosen.frames is not None

    def _is_channels_last(self, network: str) -> bool:
        """Return whether ``pack_channels_last`` packs the layers of this network."""
        last = getattr(self.model.family.networks[network].module, "channels_last", False)
        return last and self.device.type == "cpu" and not self.exact

    @cached_property
    def _recording_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)

    def _to_device(self, array: np.ndarray, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
        tensor = torch.from_numpy(np.require(array, requirements=("C", "W")))
        return tensor.to(device or self.device, dtype if tensor.is_floating_point() else None)

    def _convert(
        self, network: nn.Module, key: str, tensor: Tensor, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Move a parameter or buffer to the device in the right dtype.

        Norms and scalars are float32 in any precision.
        """
        module = network.get_submodule(key.rpartition(".")[0])
        norm = isinstance(module, nn.LayerNorm | nn.GroupNorm) or getattr(module, "float32", False) is True
        if norm or not tensor.ndim:
            dtype = torch.float32
        tensor = tensor.to(device, dtype)
        if getattr(network, "channels_last_kernels", False) and tensor.ndim == 3 and tensor.shape[-1] > 1:
            # in this layout, oneDNN does not reorder the kernel in every call, which saves a tenth of the call's time
            return tensor.transpose(1, 2).contiguous().transpose(1, 2)
        return tensor


class TorchDenoiser(Denoiser):
    """A denoiser whose calls compute the frames of all utterances at once.

    The network must have the method ``bind``.
    """

    def __init__(
        self,
        network: Any,
        latents: Sequence[Tensor],
        conditioning: Tensor,
        frames: Sequence[int],
        governor: ThreadGovernor | None = None,
        fixed_thread_count: bool = True,
    ):
        self.bound = network.bind(latents, conditioning, frames)
        self.governor, self.fixed_thread_count = governor, fixed_thread_count

    @governed
    @torch.inference_mode()
    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        with torch_memory_errors(), convolutions.full():
            outputs = self.bound([torch.from_numpy(mel) for mel in x], torch.tensor([timestep]), guided)
            return [output.float().cpu().contiguous().numpy() for output in outputs]
