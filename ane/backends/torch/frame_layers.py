"""Replace layers of the denoiser, CLVP and the source filter by faster layers for the CPU when the network loads.

The layers of the denoiser and CLVP are packed, which means that their weights are converted to a kernel's layout.

Without packing, oneDNN would convert the weights to its layout in every call. The code replaces linear layers, and
convolutions that have the attribute ``over_frames``. A convolution with one tap takes packed frames (N, C). A
convolution with more taps, whose number is odd, takes zero-padded rows (R, L, C). If this CPU can run our compiled
kernels, the code replaces whole blocks of the denoiser.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.backends.torch.kernel_encoder import KernelEncoderBlock
from ane.backends.torch.kernel_frames import KernelFrameAttention, KernelFrameConv, KernelResidual, has_frame_kernels
from ane.backends.torch.kernels import KernelLinear
from ane.backends.torch.linear import (
    LEAST_SPAN,
    Int8FewRowsLinear,
    Int8Linear,
    PackedConvolution,
    Prepacking,
    bf16_packing,
    bias_of,
    has_fbgemm_int8,
    has_one_dnn,
    prepack,
    prepacking,
)


class Int8FrameConv(nn.Module):
    """An int8 convolution, (R, L, C) → (R, L, O) float32, as a matrix product with the window around every frame.

    Every window is quantised from its own minimum to its own maximum.

    Args:
        weight: Kernel (O, C, taps). It is quantised with one scale per output channel.
        bias: Bias (O,).
        product: Function that makes the layer for the multiplication.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        product: Callable[[Tensor, Tensor], Int8Linear | Int8FewRowsLinear] = Int8Linear,
    ):
        super().__init__()
        self.taps = weight.shape[-1]
        self.windows = product(weight.transpose(1, 2).flatten(1), bias)  # (O, taps · C)

    def forward(self, x: Tensor) -> Tensor:
        R, L, C = x.shape
        padded = F.pad(x.float(), (0, 0, self.taps // 2, self.taps // 2))
        low, high = padded.amin(2).unfold(1, self.taps, 1).amin(2), padded.amax(2).unfold(1, self.taps, 1).amax(2)
        low, span = low[..., None], high.sub_(low).clamp_(min=LEAST_SPAN)[..., None]  # (R, L, 1)
        windows = x.new_empty(R, L, self.taps, C, dtype=self.windows.activations)
        for tap in range(self.taps):
            windows[:, :, tap] = self.windows.values(padded[:, tap : tap + L], low, span)
        return self.windows.scaled_product(windows.view(R * L, -1), low.view(-1, 1), span.view(-1, 1)).view(R, L, -1)


class ChannelsLastConv(nn.Module):
    """A zero-padded convolution, (B, C, L) → (B, O, L), for arrays whose channels are contiguous in memory.

    oneDNN would reorder the input, the kernel and the output in every call. A depthwise convolution is a sum of shifted
    inputs here. Any other convolution is a matrix product with the window around every frame. The bits of a frame's
    output depend only on the frames in its window.

    Args:
        layer: Convolution to replace.
        product: Function that makes the layer for the multiplication.
    """

    def __init__(self, layer: nn.Conv1d, product: Prepacking):
        super().__init__()
        [self.taps], [self.padding] = layer.kernel_size, layer.padding
        self.product: nn.Module | None = None
        if layer.groups > 1:
            self.weight, self.bias = nn.Parameter(layer.weight[:, 0].T.contiguous(), False), layer.bias  # (taps, C)
        else:
            self.product = product(layer.weight.transpose(1, 2).flatten(1), layer.bias)  # (O, taps · C)

    def forward(self, x: Tensor) -> Tensor:
        frames, length = F.pad(x.transpose(1, 2), (0, 0, self.padding, self.padding)), x.shape[2]
        if self.product is not None:
            return self.product(frames.unfold(1, self.taps, 1).transpose(2, 3).flatten(2)).transpose(1, 2)
        y = torch.addcmul(self.bias, frames[:, :length], self.weight[0])
        for tap in range(1, self.taps):
            y.addcmul_(frames[:, tap : tap + length], self.weight[tap])
        return y.transpose(1, 2)


def pack_channels_last(network: nn.Module) -> None:
    """Replace the convolutions and linear layers of a network whose channels are contiguous between the layers.

    If this CPU has no kernels for packed weights in float32, the network keeps its layers.
    """
    product = prepacking("fp32")
    if product is None:
        return
    for name, layer in list(network.named_modules()):
        if isinstance(layer, nn.Conv1d):
            network.set_submodule(name, ChannelsLastConv(layer, product))
    prepack(network, product)


@dataclass(frozen=True)
class LayerMakers:
    """Functions that make packed layers.

    Attributes:
        pointwise: Function that takes a weight (O, C) and a bias. It makes a layer that maps each frame separately, (…,
            C) → (…, O).
        convolution: Function that takes a weight (O, C, taps) and a bias. It makes a convolution over neighbouring
            frames.
        blocks: Functions that replace a whole block. The key is an attribute by which to recognise the block.
    """

    pointwise: Prepacking
    convolution: Prepacking
    blocks: Mapping[str, Callable[[nn.Module], nn.Module]] = field(default_factory=dict)


@dataclass(frozen=True)
class FramePacking:
    """Says how to pack the layers of a network.

    Attributes:
        layers: Functions that make the packed layers.
        ends: Functions that make the packed layers in those modules that the network lists in its ``ends``. ``None``
            means that these layers are not packed.
        dtype: Dtype of all parameters that are not packed.
        attention: Dtype of queries, keys and values. ``None`` means that their dtype does not change.
    """

    layers: LayerMakers
    ends: LayerMakers | None
    dtype: torch.dtype
    attention: torch.dtype | None = None


def frame_packing(weights: str) -> FramePacking | None:
    """Choose the functions that pack weights in "bf16" or "int8", or ``None`` if this CPU has no fast kernels for them.

    If the CPU has AMX but our compiled kernels are missing, "int8" packs in bf16. Without these kernels, rounding the
    activations to integers takes more time than int8 products save.
    """
    if has_frame_kernels(weights):
        return FramePacking(by_kernels(weights), by_kernels("bf16"), torch.float32, torch.bfloat16)
    if not has_one_dnn():
        return None
    native, amx = torch.cpu._is_avx512_bf16_supported(), torch.cpu._is_amx_tile_supported()
    if (weights == "bf16" and native) or (weights == "int8" and amx):
        dtype = torch.bfloat16
        makers = LayerMakers(partial(bf16_packing(), output=dtype), partial(PackedConvolution, dtype=dtype))
        return FramePacking(makers, makers, dtype)
    if weights == "int8" and torch.cpu._is_vnni_supported():
        # attention in bfloat16 takes half the time, and changes the mel less than int8 weights do
        return FramePacking(
            LayerMakers(Int8Linear, Int8FrameConv), None, torch.float32, torch.bfloat16 if native else None
        )
    if weights == "int8" and has_fbgemm_int8():
        seven_bits = partial(Int8FewRowsLinear, levels=127)
        return FramePacking(LayerMakers(seven_bits, partial(Int8FrameConv, product=seven_bits)), None, torch.float32)
    return None


def by_kernels(kind: str) -> LayerMakers:
    """Return the functions that make layers on our compiled kernels.

    Only the layers in blocks have weights of this kind ("int8" or "bf16"). All other layers are in bfloat16: a few
    layers of the denoiser, and all layers of CLVP. For CLVP, int8 would save only a tenth of the time. CLVP's vectors
    would have an SNR of 31 dB to the float32 vectors, instead of 43 dB in bfloat16 (measured with random weights).
    """
    return LayerMakers(
        partial(KernelLinear, kind="bf16"),
        partial(KernelFrameConv, kind="bf16"),
        {
            "residual_parts": partial(KernelResidual, kind=kind),
            "attention_parts": partial(KernelFrameAttention, kind=kind),
            "encoder_parts": partial(KernelEncoderBlock, kind=kind),
        },
    )


def pack_frame_layers(network: nn.Module, packing: FramePacking) -> None:
    """Replace a network's linear layers, and its convolutions over frames, by packed layers.

    The function replaces one layer after another, which saves memory.
    """
    ends: Sequence[str] = getattr(network, "ends", ())
    replaced = "no module"
    for name, layer in list(network.named_modules()):
        makers = packing.ends if name.partition(".")[0] in ends else packing.layers
        if makers is None or name.startswith(f"{replaced}."):
            continue
        if hasattr(layer, "attention_dtype"):
            layer.attention_dtype = packing.attention
        packed = packed_layer(layer, makers)
        if packed is not None:
            network.set_submodule(name, packed)
            replaced = name
        elif hasattr(layer, "pack"):
            layer.pack(makers.pointwise)


def packed_layer(layer: nn.Module, makers: LayerMakers) -> nn.Module | None:
    """Make the packed layer for a layer or block. Returns ``None`` for a layer or block that stays as it is."""
    for attribute, make in makers.blocks.items():
        if hasattr(layer, attribute):
            return make(layer)
    if isinstance(layer, nn.Linear):
        return makers.pointwise(layer.weight, bias_of(layer, layer.weight))
    if not getattr(layer, "over_frames", False):
        return None
    if layer.weight.shape[-1] == 1:
        return makers.pointwise(layer.weight[..., 0], layer.bias)
    return makers.convolution(layer.weight, layer.bias)
