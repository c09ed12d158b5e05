"""This package's own kernels for CPUs with AVX-512: a decoder's linear layers, and attention over its caches.

A step of a decoder is hundreds of small calls of torch, each with its own wait for all threads. Here a layer norm, the
rounding of activations, a product and GELU are one call, attention of all lanes is another, and all blocks of a GPT-2
are one call of these. The bits of a row or a lane depend on nothing else by construction: not on other rows, on
threads, or on how memory is aligned.

The library (folder ``cpp``) is compiled when the package is installed (``hatch_build.py``), as plain C functions: it
depends on no release of torch. GCC's OpenMP is the one that torch has loaded, so that both share threads. Without it,
or with the environment variable ``ANE_KERNELS=0``, the layers of ``ane.backends.torch.linear`` compute. With
``ANE_KERNELS=vectors``, the kernels do not use AMX.
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
KINDS = "int8", "bf16", "fp16", "fp32"  # of weights; an index is the library's number of it
WEIGHT_DTYPES = {"int8": torch.int8, "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
GROUPS = 4, 2, 1, 1  # weights of an output that lie side by side, by kind
OUTPUTS, BLOCK = 32, 16  # outputs that are computed together; outputs of a block of weights
OUTPUTS_AT_ONCE = 64  # that are packed together
WIDEST_HEAD = 128
GELUS = None, "tanh", "none"  # ``approximate`` of torch's; an index is the library's number of it
HOST_FLOATS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever a program's defaults are
NO_MEMORY = 1  # what a call returns; 0: done


class LayerArguments(ctypes.Structure):
    """``Layer`` in linear.h."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("kind", "inputs", "padded_inputs", "outputs", "taps", "amx", "gelu")),
        *((name, ctypes.c_void_p) for name in ("weights", "bias", "scale", "sums", "norm_weight", "norm_bias")),
        ("epsilon", ctypes.c_float),
    ]


class AttentionArguments(ctypes.Structure):
    """``Attention`` in attention.h."""

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
    """``Block`` in kernels.cpp."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in (
            *("query", "key", "value", "projection"),
            *("memory_query", "memory_projection"),
            *("expansion", "contraction"),
        )
    ]


def library_problem() -> str:
    """Why a library that is made for this CPU is not used; "": it is."""
    if library() is not None:
        return ""
    if os.environ.get(SWITCH) == "0":
        return f"switched off by {SWITCH}=0"
    return "not compiled from the present source, or not loaded" if LIBRARY.exists() else "not compiled"


def made_for_cpu() -> bool:
    """Whether this CPU has the instructions, and the system's wheels the library."""
    return (
        sys.platform == "linux"
        and platform.machine() == "x86_64"
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )


def checksum() -> int:
    """Of the sources, as hatch_build.py computes it."""
    files = sorted(file for file in SOURCES.iterdir() if file.suffix in (".h", ".cpp"))
    return zlib.crc32(b"".join(file.read_bytes() for file in files))


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None: not compiled, of another source, switched off, or not for this CPU."""
    if os.environ.get(SWITCH) == "0" or not made_for_cpu():
        return None
    try:
        found = ctypes.CDLL(str(LIBRARY))
        if found.ane_kernels_checksum() & 0xFFFFFFFF != checksum():
            return None
    except (OSError, AttributeError):
        return None
    found.ane_linear.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_int)
    found.ane_attend.argtypes = (ctypes.c_void_p, ctypes.c_int)
    found.ane_blocks.argtypes = (ctypes.c_void_p, ctypes.c_long, *[ctypes.c_void_p] * 5, ctypes.c_int)
    found.ane_frame_layer.argtypes = (*[ctypes.c_void_p] * 4, ctypes.c_int)
    found.ane_frame_attention.argtypes = found.ane_frame_layer.argtypes
    found.ane_encoder_block.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_int)
    found.ane_residual.argtypes = (*[ctypes.c_void_p] * 3, ctypes.c_long, *[ctypes.c_void_p] * 2, ctypes.c_int)
    return found


def has_kernel(weights: str) -> bool:
    """Whether ``KernelLinear`` has weights of this precision, a name in ``KINDS``, on this CPU."""
    if library() is None:
        return False
    needs = {"int8": torch.cpu._is_vnni_supported, "bf16": torch.cpu._is_avx512_bf16_supported}
    return weights not in needs or needs[weights]()


@cache
def has_amx() -> bool:
    """Whether tiles can be used; asks the system for the permission that a process needs."""
    return torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()


def uses_amx() -> bool:
    """Say whether new layers multiply by tiles. ``ANE_KERNELS=vectors`` forbids it."""
    return os.environ.get(SWITCH) != "vectors" and has_amx()


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a weight (out, in) symmetrically: int8 values, and a float32 scale for each output channel (out,)."""
    weight = weight.float().contiguous()
    scale = torch.maximum(weight.amax(1), -weight.amin(1)).div_(127).clamp_(min=torch.finfo(torch.float32).tiny)
    return weight.div(scale[:, None]).round_().to(torch.int8), scale


class KernelLinear(nn.Module):
    """A linear layer, (…, in) → (…, out) float32, for any number of rows; a norm before and a GELU after can join it.

    "int8": weights with a scale for each output; activations as whole numbers from 0 to 255 of the range of their row
    (``ane.backends.torch.linear.Int8Linear`` states the formula). "bf16": both in bfloat16. "fp16": weights in fp16,
    activations and sums in float32, exact for weights stored in fp16. "fp32": all in float32.

    Args:
        weight: (out, in), or (out, in, taps) for ``ane.backends.torch.kernel_frames``. bias: (out,).
        kind: of ``KINDS``, with ``has_kernel``.
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
        # temporary copies of whole weights would fragment the heap: up to 3 GB more at the official size
        for begin in range(0, self.outputs, OUTPUTS_AT_ONCE):
            part = slice(begin, begin + OUTPUTS_AT_ONCE)
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
    """Raise MemoryError for a call of the library that had no memory, ValueError for what it has no kernel of."""
    if status == NO_MEMORY:
        raise MemoryError("no memory for a kernel's rows")
    if status:
        raise ValueError(f"a head of more than {WIDEST_HEAD} numbers")


def kernel_packing(weights: str) -> Callable[[Tensor, Tensor], nn.Module] | None:
    """Makes ``KernelLinear`` of this precision, fp16 where the CPU lacks bf16; None: there is no kernel of it here."""
    kind = "fp16" if weights == "bf16" and not has_kernel("bf16") else weights
    return partial(KernelLinear, kind=kind) if has_kernel(kind) else None


def join_layers(network: nn.Module) -> None:
    """Join norms and GELUs to the kernels between them, where a module's ``joins`` names them.

    An entry of ``joins`` has the names, within the module, of a norm or None, a linear layer, and a GELU or None.
    Several layers can follow one norm.
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
    """Run all blocks of a decoder as one call.

    The layers of a block, in the order of its ``joins``, must be ``KernelLinear``. A block without a memory has four:
    for queries, keys and values together, the projection, the expansion, and the contraction. A block with a memory has
    all that ``BlockArguments`` lists.

    Attributes:
        layers: The modules, kept because the library reads their weights.
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
        """Return those that a network names as its ``blocks``, or None: it has none, or not all layers are kernels."""
        blocks = getattr(network, "blocks", ())
        kernels = [
            isinstance(block.get_submodule(name), KernelLinear)
            for block in blocks
            for _, name, _ in getattr(block, "joins", ())
        ]
        return cls(blocks) if kernels and all(kernels) else None
