"""Load this package's kernels for CPUs with AVX-512, and run linear layers and whole GPT-2 blocks with them.

In torch, a decoder step is hundreds of small calls, and in each of them all threads wait for each other. Here one call
does a layer norm, the rounding of activations, a product and GELU. Another call computes the
attention of all lanes. For a GPT-2, a single call does both for all blocks. The bits of a row or lane do not depend on
other rows, on the number of threads or on how memory is aligned.

``hatch_build.py`` compiles the library (folder ``cpp``) when the package is installed. It consists of plain C functions
and depends on no release of torch. It uses the OpenMP of GCC that torch has loaded, so that both share threads. Without
the library, or with the environment variable ``ANE_KERNELS=0``, the layers of ``ane.backends.torch.linear`` compute.
With ``ANE_KERNELS=vectors``, the kernels do not use AMX.
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
KINDS = "int8", "bf16", "fp16", "fp32"  # of weights; the library knows each by its index
WEIGHT_DTYPES = {"int8": torch.int8, "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
GROUPS = 4, 2, 1, 1  # weights of an output that are adjacent in memory, by kind
OUTPUTS, BLOCK = 32, 16  # outputs that are computed together, and outputs of a block of weights
PACKED_AT_ONCE = 1 << 18  # weights that are packed together, in whole blocks of outputs
WIDEST_HEAD = 128
GELUS = None, "tanh", "none"  # torch's ``approximate``; the library knows each by its index
HOST_FLOATS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever the program's defaults are
NO_MEMORY = 1  # status that a call returns; 0 means success


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
    """Return why the library is not used on a CPU that it supports, or "" if it is used."""
    if library() is not None:
        return ""
    if os.environ.get(SWITCH) == "0":
        return f"switched off by {SWITCH}=0"
    return "not compiled from the present source, or not loaded" if LIBRARY.exists() else "not compiled"


def supports_cpu() -> bool:
    """Return whether this CPU has the instructions, and this system's wheels contain the library."""
    return (
        sys.platform == "linux"
        and platform.machine() == "x86_64"
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )


def checksum() -> int:
    """Return the checksum of the sources, as hatch_build.py computes it."""
    files = sorted(file for file in SOURCES.iterdir() if file.suffix in (".h", ".cpp"))
    return zlib.crc32(b"".join(file.read_bytes() for file in files))


@cache
def library() -> ctypes.CDLL | None:
    """Load the compiled kernels.

    Returns:
        The library, or ``None`` if it is not compiled, has another source, is switched off or does not support this
        CPU.
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
    """Return whether this CPU can run ``KernelLinear`` with weights of this precision, which is a name in ``KINDS``."""
    if library() is None:
        return False
    needs = {"int8": torch.cpu._is_vnni_supported, "bf16": torch.cpu._is_avx512_bf16_supported}
    return weights not in needs or needs[weights]()


@cache
def has_amx() -> bool:
    """Return whether tiles can be used. Asks the system for the permission that a process needs."""
    return torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()


def uses_amx() -> bool:
    """Return whether new layers multiply with AMX tiles. ``ANE_KERNELS=vectors`` forbids it."""
    return os.environ.get(SWITCH) != "vectors" and has_amx()


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a weight (out, in) symmetrically. Returns int8 values, and a float32 scale per output channel (out,)."""
    weight = weight.float().contiguous()
    scale = torch.maximum(weight.amax(1), -weight.amin(1)).div_(127).clamp_(min=torch.finfo(torch.float32).tiny)
    return weight.div(scale[:, None]).round_().to(torch.int8), scale


class KernelLinear(nn.Module):
    """A linear layer, (…, in) → (…, out) float32, for any number of rows. ``join`` adds a norm before and a GELU after.

    * "int8": weights with a scale per output. Activations are integers from 0 to 255 that span the range of their row
      (formula: ``ane.backends.torch.linear.Int8Linear``).
    * "bf16": weights and activations in bfloat16.
    * "fp16": weights in fp16, which is exact for weights stored in fp16. Activations and sums are float32.
    * "fp32": everything in float32.

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
        # packs a few outputs at once, because copies of whole weights would fragment the heap: 3 GB at official size
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
        """Apply ``norm`` to the inputs first, and ``gelu``, if it is not None, to the outputs."""
        self._keep(
            norm_weight=norm.weight.detach().to(torch.float32, copy=True),
            norm_bias=norm.bias.detach().to(torch.float32, copy=True),
        )
        self.arguments.epsilon = norm.eps
        self.arguments.gelu = GELUS.index(gelu.approximate if gelu is not None else None)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.inputs:
            raise ValueError(f"a layer of {self.inputs} inputs got {x.shape[-1]}")
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
    """Raise MemoryError if a call of the library had no memory, or ValueError if it has no such kernel."""
    if status == NO_MEMORY:
        raise MemoryError("no memory for a kernel's rows")
    if status:
        raise ValueError(f"a head of more than {WIDEST_HEAD} numbers")


def kernel_packing(weights: str) -> Callable[[Tensor, Tensor], nn.Module] | None:
    """Return a function that makes ``KernelLinear`` layers of this precision, or ``None`` if no kernel runs here.

    For bf16 it uses fp16 if the CPU lacks bf16.
    """
    kind = "fp16" if weights == "bf16" and not has_kernel("bf16") else weights
    return partial(KernelLinear, kind=kind) if has_kernel(kind) else None


def join_layers(network: nn.Module) -> None:
    """Join norms and GELUs to the linear kernels between them.

    An entry of a module's ``joins`` names a norm or ``None``, a linear layer, and a GELU or ``None``, all within the
    module. Several layers can follow one norm.
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
    """The blocks of a decoder, which one call computes.

    The layers of a block, in the order of its ``joins``, must be ``KernelLinear``. A block without a memory has four:
    one for queries, keys and values together, then the projection, the expansion and the contraction. A block with a
    memory has all that ``BlockArguments`` lists.

    Attributes:
        layers: The modules. They stay referenced because the library reads their weights.
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
        """Return the ``blocks`` of a network, or ``None`` if it has none or not all their layers are kernels."""
        blocks = getattr(network, "blocks", ())
        kernels = [
            isinstance(block.get_submodule(name), KernelLinear)
            for block in blocks
            for _, name, _ in getattr(block, "joins", ())
        ]
        return cls(blocks) if kernels and all(kernels) else None
