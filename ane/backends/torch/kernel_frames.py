"""Run the denoiser's blocks on packed mel frames with our compiled kernels (``ane.backends.torch.kernels``).

The kernels need a CPU with AVX-512 bf16 and VNNI, and use AMX if the CPU has it. One call computes a whole residual
block or a whole attention block, so norms, SiLU, rounding, products and additions do not need separate passes over the
frames. Frames are float32 between blocks, and attention is in bfloat16. With "int8" weights, activations are quantised
frame by frame, from the frame's minimum to its maximum. The bits of a frame depend only on the row (utterance) that
contains it.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ane.backends.torch.kernels import HOST_FLOATS, KernelLinear, check, has_kernel, library

FRAME_KINDS = "int8", "bf16"  # precisions of weights in the blocks: attention is always in bfloat16


class FramesArguments(ctypes.Structure):
    """The struct ``Frames`` of frames.h."""

    _fields_ = [("rows", ctypes.c_long), ("lengths", ctypes.c_void_p)]


class NormArguments(ctypes.Structure):
    """The struct ``GroupNorm`` of frames.h."""

    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("groups", ctypes.c_long),
        ("epsilon", ctypes.c_float),
    ]


class ResidualArguments(ctypes.Structure):
    """The struct ``Residual`` of frames.h."""

    _fields_ = [
        ("first_norm", NormArguments),
        ("second_norm", NormArguments),
        *((name, ctypes.c_void_p) for name in ("first", "time", "second")),
    ]


class FrameAttentionArguments(ctypes.Structure):
    """The struct ``FrameAttention`` of frames.h."""

    _fields_ = [
        ("norm", NormArguments),
        ("qkv", ctypes.c_void_p),
        ("projection", ctypes.c_void_p),
        ("heads", ctypes.c_long),
        ("biases", ctypes.c_void_p),
        ("longest", ctypes.c_long),
    ]


def has_frame_kernels(kind: str) -> bool:
    """Return whether this CPU can run the layers of this module with "int8" or "bf16" weights."""
    return kind in FRAME_KINDS and all(map(has_kernel, FRAME_KINDS))


class FrameRows:
    """The layout of packed frames (N, C) for the library: the frames of the first row, then of the second, and so on.

    Args:
        lengths: Number of frames in each row.
    """

    def __init__(self, lengths: Sequence[int]):
        self.lengths = np.array(lengths, np.int64)
        self.arguments = FramesArguments(len(self.lengths), self.lengths.ctypes.data)
        self.address = ctypes.addressof(self.arguments)

    @classmethod
    def of(cls, packing: Any) -> "FrameRows":
        """Convert a ``Packing`` to the layout that the kernels need.

        In a ``Packing``, each utterance has ``rows`` rows of equal length.
        """
        return cls([length for length in packing.lengths for _ in range(packing.rows)])

    def frames(self, x: Tensor, channels: int) -> Tensor:
        """Convert x to contiguous float32, as the compiled kernels need it.

        Raises:
            ValueError: x does not have exactly these frames and channels, so the kernels would read beyond its end.
        """
        if x.shape != (self.lengths.sum(), channels) or not len(x) or not self.lengths.all():
            raise ValueError(
                f"x must have rows of {self.lengths.tolist()} frames, none of them empty, and {channels} "
                f"channels, got {tuple(x.shape)}"
            )
        return x.float().contiguous()


class KernelFrameConv(KernelLinear):
    """A zero-padded convolution with one or three taps, (R, L, C) → (R, L, O) float32."""

    def __init__(self, weight: Tensor, bias: Tensor, kind: str):
        super().__init__(weight, bias, kind)
        if kind not in FRAME_KINDS or self.arguments.taps not in (1, 3):
            raise ValueError(f"there is no {kind} kernel with {self.arguments.taps} taps over frames")

    def forward(self, x: Tensor) -> Tensor:
        rows = FrameRows([x.shape[1]] * x.shape[0])
        frames = rows.frames(x.flatten(0, 1), self.inputs)
        out = torch.empty(len(frames), self.outputs, **HOST_FLOATS)
        check(
            library().ane_frame_layer(
                self._address, rows.address, frames.data_ptr(), out.data_ptr(), torch.get_num_threads()
            )
        )
        return out.view(*x.shape[:2], -1)


class KernelFrameBlock(nn.Module):
    """The base class of the network blocks in this module. It makes a block's layers, and the arguments for its norms.

    Attributes:
        parts: Layers of the block. The library reads the memory of ``parts`` and ``tensors``, so they must stay alive.
        tensors: Parameters of the norms.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        self.tensors: list[Tensor] = []

    def _layer(self, layer: nn.Module, kind: str) -> KernelLinear:
        packed = KernelFrameConv(layer.weight, layer.bias, kind)
        self.parts.append(packed)
        return packed

    def _norm(self, norm: nn.GroupNorm) -> NormArguments:
        weight, bias = (tensor.detach().to(torch.float32, copy=True) for tensor in (norm.weight, norm.bias))
        self.tensors += weight, bias
        return NormArguments(weight.data_ptr(), bias.data_ptr(), norm.num_groups, norm.eps)


class KernelResidual(KernelFrameBlock):
    """A residual block whose second norm depends on the timestep.

    Args:
        block: Module to replace. Its attribute ``residual_parts`` names five submodules in this order: a norm, a layer
            that maps each frame separately, the linear layer for the timestep embedding, a norm and a convolution.
        kind: Precision of the weights, "int8" or "bf16".
    """

    def __init__(self, block: nn.Module, kind: str):
        super().__init__()
        norm, first, time, second_norm, second = map(block.get_submodule, block.residual_parts)
        layers = [self._layer(layer, kind) for layer in (first, time, second)]
        self.channels = C = layers[0].inputs
        sizes = [(layer.inputs, layer.outputs, layer.arguments.taps) for layer in layers]
        if sizes != [(C, C, 1), (C, 2 * C, 1), (C, C, 3)]:
            raise ValueError(
                "a residual block must have layers of (C, C, 1), (C, 2C, 1) and (C, C, 3) inputs, outputs "
                f"and taps, got {sizes}"
            )
        self.arguments = ResidualArguments(
            self._norm(norm), self._norm(second_norm), *(layer._address for layer in layers)
        )

    def forward(self, x: Tensor, time: Tensor, packing: Any) -> Tensor:
        """Run the block on packed frames.

        Args:
            x: Packed frames (N, C).
            time: SiLU of the timestep embedding, (1 or rows, C).
            packing: ``Packing`` of the frames.

        Returns:
            Packed frames (N, C).
        """
        rows, time = FrameRows.of(packing), time.float().contiguous()
        if time.shape not in ((1, self.channels), (packing.rows, self.channels)):
            raise ValueError(
                f"time must be (1, {self.channels}) or ({packing.rows}, {self.channels}), got {tuple(time.shape)}"
            )
        frames = rows.frames(x, self.channels)
        out = torch.empty_like(frames)
        check(
            library().ane_residual(
                ctypes.addressof(self.arguments),
                rows.address,
                time.data_ptr(),
                len(time),
                frames.data_ptr(),
                out.data_ptr(),
                torch.get_num_threads(),
            )
        )
        return out


class KernelFrameAttention(KernelFrameBlock):
    """A block of self-attention between the frames of each row.

    Args:
        block: Module to replace. Its attribute ``attention_parts`` names four submodules in this order: a norm, the
            layer for queries, keys and values, the projection, and a relative position bias with the method
            ``by_distance``.
        kind: Precision of the weights, "int8" or "bf16".
    """

    def __init__(self, block: nn.Module, kind: str):
        super().__init__()
        norm, qkv, projection, self.bias = map(block.get_submodule, block.attention_parts)
        layers = [self._layer(layer, kind) for layer in (qkv, projection)]
        self.channels = layers[0].inputs
        self.arguments = FrameAttentionArguments(self._norm(norm), *(layer._address for layer in layers), block.heads)

    def forward(self, x: Tensor, packing: Any) -> Tensor:
        """Run the block on packed frames x (N, C) → (N, C)."""
        rows = FrameRows.of(packing)
        frames = rows.frames(x, self.channels)
        longest = max(packing.lengths)
        biases = self.bias.by_distance(longest, torch.float32).contiguous() * math.log2(math.e)
        arguments = FrameAttentionArguments.from_buffer_copy(self.arguments)  # other threads may use the original
        arguments.biases, arguments.longest = biases.data_ptr(), longest
        out = torch.empty_like(frames)
        check(
            library().ane_frame_attention(
                ctypes.addressof(arguments), rows.address, frames.data_ptr(), out.data_ptr(), torch.get_num_threads()
            )
        )
        return out
