"""Load our compiled kernels for CPUs with AVX-512, and run linear layers and whole GPT-2 blocks with them.

In torch, a decoder step consists of hundreds of small calls, and in each call all threads wait for the slowest thread.
Here, one call computes a layer norm, the rounding of activations, a product and GELU. Another call computes the
attention of all lanes. For a GPT-2, even all blocks together are a single call. The bits of a row or lane do not depend
on other rows, on the number of threads, or on the alignment of memory.

``hatch_build.py`` compiles the library from the folder ``cpp`` when you install the package. The library has plain C
functions, so it works with every release of torch. It uses GCC's OpenMP library, which torch has already loaded, so
both share threads. If the library is missing, or the environment variable ``ANE_KERNELS`` is 0, the layers of
``ane.backends.torch.linear`` are used instead. ``ANE_KERNELS=vectors`` forbids AMX.
"""

import ctypes
import os
import platform
import sys
import zlib
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LIBRARY = Path(__file__).with_name("libkernels.so")
SOURCES = Path(__file__).with_name("cpp")
SWITCH = "ANE_KERNELS"
KINDS = "int8", "bf16", "fp16", "fp32"  # precisions of weights: the library identifies a precision by its index
WEIGHT_DTYPES = {"int8": torch.int8, "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
GROUPS = 4, 2, 1, 1  # number of neighbouring weights of an output in memory, for each of ``KINDS``
OUTPUTS, BLOCK = 32, 16  # number of outputs that a kernel computes together, and of outputs in a block of weights
PACKED_AT_ONCE = 1 << 18  # largest number of weights to pack per call, in whole blocks
WIDEST_HEAD = 128
GELUS = None, "tanh", "none"  # values of ``nn.GELU.approximate``: the library identifies a GELU by its index
HOST_FLOATS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # the program may have changed torch's defaults
NO_MEMORY = 1  # status of a call for which memory has run out; the status 0 means success


class LayerArguments(ctypes.Structure):
    """The struct ``Layer`` of linear.h."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("kind", "inputs", "padded_inputs", "outputs", "taps", "amx", "gelu")),
        *((name, ctypes.c_void_p) for name in ("weights", "bias", "scale", "sums", "norm_weight", "norm_bias")),
        ("epsilon", ctypes.c_float),
    ]


class AttentionArguments(ctypes.Structure):
    """The struct ``Attention`` of attention.h."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("lanes", "columns", "heads", "width", "half")),
        *((name, ctypes.c_void_p) for name in ("q", "k", "v")),
        *((name, ctypes.c_long) for name in ("lane_stride", "column_stride", "head_stride")),
        *((name, ctypes.c_void_p) for name in ("out", "prefix_keys", "prefix_values")),
        ("prefix_capacity", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("prefix_of", "prefix_lengths", "keys", "values")),
        ("capacity", ctypes.c_long),
        ("lengths", ctypes.c_void_p),
        ("recorded", ctypes.c_void_p),
        ("recorded_positions", ctypes.c_long),
        ("scale", ctypes.c_float),
    ]


class BlockArguments(ctypes.Structure):
    """The struct ``Block`` of kernels.cpp."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in (
            *("query", "key", "value", "projection"),
            *("memory_query", "memory_projection"),
            *("expansion", "contraction"),
        )
    ]


def library_problem() -> str:
    """Return why this process does not use the compiled kernels.

    Returns "" if the process uses the kernels, or if the CPU cannot run them.
    """
    if library() is not None:
        return ""
    if os.environ.get(SWITCH) == "0":
        return f"switched off by {SWITCH}=0"
    return "not compiled from the present source, or not loaded" if LIBRARY.exists() else "not compiled"


def supports_cpu() -> bool:
    """Return whether we compile the kernels for this system, and this CPU has the instructions that they need."""
    return (
        sys.platform == "linux"
        and platform.machine() == "x86_64"
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )


def checksum() -> int:
    """Compute the checksum of the C++ sources, in the same way as hatch_build.py."""
    files = sorted(file for file in SOURCES.iterdir() if file.suffix in (".h", ".cpp"))
    return zlib.crc32(b"".join(file.read_bytes() for file in files))


@cache
def library() -> ctypes.CDLL | None:
    """Load the compiled kernels.

    Returns:
        The library. ``None`` means that it is not compiled, was compiled from other sources, is switched off, or does
        not support this CPU.
    """
    if os.environ.get(SWITCH) == "0" or not supports_cpu():
        return None
    try:
        kernels = ctypes.CDLL(str(LIBRARY))
        if kernels.ane_kernels_checksum() & 0xFFFFFFFF != checksum():
            return None
    except (OSError, AttributeError):
        return None
    kernels.ane_linear.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_int)
    kernels.ane_attend.argtypes = (ctypes.c_void_p, ctypes.c_int)
    kernels.ane_blocks.argtypes = (ctypes.c_void_p, ctypes.c_long, *[ctypes.c_void_p] * 5, ctypes.c_int)
    kernels.ane_frame_layer.argtypes = (*[ctypes.c_void_p] * 4, ctypes.c_int)
    kernels.ane_frame_attention.argtypes = kernels.ane_frame_layer.argtypes
    kernels.ane_encoder_block.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_int)
    kernels.ane_residual.argtypes = (*[ctypes.c_void_p] * 3, ctypes.c_long, *[ctypes.c_void_p] * 2, ctypes.c_int)
    return kernels


def has_kernel(weights: str) -> bool:
    """Return whether ``KernelLinear`` runs here with weights of this precision, which is one of ``KINDS``."""
    if library() is None:
        return False
    needs = {"int8": torch.cpu._is_vnni_supported, "bf16": torch.cpu._is_avx512_bf16_supported}
    return weights not in needs or needs[weights]()


@cache
def has_amx() -> bool:
    """Return whether this process can use AMX. The function asks the system for the permission that AMX needs."""
    return torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()


def uses_amx() -> bool:
    """Return whether new layers will multiply with AMX.

    The environment variable ``ANE_KERNELS=vectors`` forbids AMX.
    """
    return os.environ.get(SWITCH) != "vectors" and has_amx()


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a weight (out, in) symmetrically, with one scale per output channel.

    Returns:
        The weight as int8, (out, in), and the scales, (out,) float32.
    """
    weight = weight.float().contiguous()
    scale = torch.maximum(weight.amax(1), -weight.amin(1)).div_(127).clamp_(min=torch.finfo(torch.float32).tiny)
    return weight.div(scale[:, None]).round_().to(torch.int8), scale


class KernelLinear(nn.Module):
    """A linear layer on this package's kernels, (…, in) → (…, out) float32.

    ``join`` adds a norm before the layer and a GELU after it. A layer can have one of four kinds of weight:

    * "int8" weights have one scale per output. The activations of each row are quantised to integers from 0 to 255,
      from the row's minimum to its maximum (``ane.backends.torch.linear.Int8Linear`` has the formula).
    * "bf16" weights are multiplied by bfloat16 activations.
    * "fp16" weights are exact if the weights were stored in fp16. Activations and sums are float32.
    * "fp32" weights, activations and sums are float32.

    Args:
        weight: Weight (out, in), or (out, in, taps) for ``ane.backends.torch.kernel_frames``.
        bias: Bias (out,).
        kind: One of ``KINDS`` for which ``has_kernel`` is true.
    """

    def __init__(self, weight: Tensor, bias: Tensor, kind: str):
        super().__init__()
        taps = weight.reshape(*weight.shape[:2], -1).transpose(1, 2)  # (out, taps, in)
        self.outputs, count, self.inputs = taps.shape
        index = KINDS.index(kind)
        group = GROUPS[index]
        inputs, outputs = (
            size + -size % multiple for size, multiple in ((self.inputs, BLOCK * group), (self.outputs, OUTPUTS))
        )
        self.arguments = LayerArguments(index, self.inputs, inputs, self.outputs, count, uses_amx())
        packed = torch.zeros(
            outputs // BLOCK, count * inputs // group, BLOCK, group, dtype=WEIGHT_DTYPES[kind], device="cpu"
        )
        scale, sums = torch.zeros(self.outputs, **HOST_FLOATS), torch.zeros(count, self.outputs, **HOST_FLOATS)
        # pack a few outputs per call, because copies of whole weights would fragment the heap (by 3 GB for the official
        # weights)
        at_once = max(PACKED_AT_ONCE // (count * inputs) // BLOCK, 1) * BLOCK
        for begin in range(0, self.outputs, at_once):
            part = slice(begin, begin + at_once)
            rows = taps[part]
            if kind == "int8":
                values, scale[part] = quantise(rows.flatten(1))
                rows = values.view(rows.shape)
                sums[:, part] = (rows.sum(2, dtype=torch.int32) * scale[part, None]).T
            rows = F.pad(rows, (0, inputs - self.inputs, 0, 0, 0, -len(rows) % BLOCK))
            blocks = rows.flatten(1).unflatten(0, (-1, BLOCK)).unflatten(2, (-1, group)).transpose(1, 2)
            packed[begin // BLOCK : begin // BLOCK + len(blocks)] = blocks
        self._keep(weights=packed, bias=bias.to(torch.float32, copy=True).contiguous())
        if kind == "int8":
            self._keep(sums=sums, scale=scale / 255)
        self._address, self._linear = ctypes.addressof(self.arguments), library().ane_linear

    def _keep(self, **tensors: Tensor) -> None:
        for name, tensor in tensors.items():
            setattr(self, name, tensor)
            setattr(self.arguments, name, tensor.data_ptr())

    def join(self, norm: nn.LayerNorm, gelu: nn.GELU | None) -> None:
        """Make the layer also compute ``norm`` on its inputs and, if ``gelu`` is not ``None``, GELU on its outputs."""
        self._keep(
            norm_weight=norm.weight.detach().to(torch.float32, copy=True),
            norm_bias=norm.bias.detach().to(torch.float32, copy=True),
        )
        self.arguments.epsilon = norm.eps
        self.arguments.gelu = GELUS.index(gelu.approximate if gelu is not None else None)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.inputs:
            raise ValueError(f"x must have {self.inputs} channels, got {x.shape[-1]}")
        rows = x.float().contiguous()
        out = torch.empty((*x.shape[:-1], self.outputs), **HOST_FLOATS)
        if out.numel():
            check(
                self._linear(
                    self._address,
                    rows.data_ptr(),
                    out.data_ptr(),
                    rows.numel() // rows.shape[-1],
                    torch.get_num_threads(),
                )
            )
        return out


def check(status: int) -> None:
    """Check the status that a call of the library has returned.

    Raises:
        MemoryError: Memory has run out.
        ValueError: The library has no kernel for such wide heads.
    """
    if status == NO_MEMORY:
        raise MemoryError("no memory for a kernel's rows")
    if status:
        raise ValueError(f"a head must have at most {WIDEST_HEAD} channels")


def kernel_packing(weights: str) -> Callable[[Tensor, Tensor], nn.Module] | None:
    """Return a function that makes a ``KernelLinear`` with weights of this precision.

    If the CPU does not compute in bf16, fp16 replaces bf16. Returns ``None`` if this CPU runs no kernel for the
    precision.
    """
    kind = "fp16" if weights == "bf16" and not has_kernel("bf16") else weights
    return partial(KernelLinear, kind=kind) if has_kernel(kind) else None


def join_layers(network: nn.Module) -> None:
    """Let each ``KernelLinear`` layer also compute the norm before it and the GELU after it.

    A module's attribute ``joins`` lists triples: the name of a norm or ``None``, the name of a linear layer, and the
    name of a GELU or ``None``. Several layers can follow the same norm.
    """
    for module in [candidate for candidate in network.modules() if hasattr(candidate, "joins")]:
        joined = set()
        for norm, linear, gelu in module.joins:
            layer = module.get_submodule(linear)
            if norm and isinstance(layer, KernelLinear):
                layer.join(module.get_submodule(norm), gelu and module.get_submodule(gelu))
                joined |= {norm, gelu}
        for name in joined - {None}:
            module.set_submodule(name, nn.Identity())


class KernelBlocks:
    """The blocks of a decoder, all of which a single call of the library computes.

    All layers in a block's ``joins`` must be ``KernelLinear``. A block without cross-attention has four such layers, in
    this order: the layer for queries, keys and values together, the projection, the expansion and the contraction. A
    block with cross-attention has all the layers that ``BlockArguments`` lists.

    Attributes:
        layers: Modules of all layers. The library reads their weights, so they must stay alive.
    """

    def __init__(self, blocks: Iterable[nn.Module]):
        self.layers = [[block.get_submodule(name) for _, name, _ in block.joins] for block in blocks]
        self.arguments = (BlockArguments * len(self.layers))()
        names = [name for name, _ in BlockArguments._fields_]
        for arguments, layers in zip(self.arguments, self.layers, strict=True):
            present = names if len(layers) == len(names) else ("query", "projection", "expansion", "contraction")
            for name, layer in zip(present, layers, strict=True):
                setattr(arguments, name, layer._address)

    @classmethod
    def of(cls, network: nn.Module) -> "KernelBlocks | None":
        """Return the blocks of a network.

        Returns ``None`` if the network has no blocks, or if a layer of a block is not a ``KernelLinear``.
        """
        blocks = getattr(network, "blocks", ())
        kernels = [
            isinstance(block.get_submodule(name), KernelLinear)
            for block in blocks
            for _, name, _ in getattr(block, "joins", ())
        ]
        return cls(blocks) if kernels and all(kernels) else None
