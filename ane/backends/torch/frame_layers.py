"""Layers of the denoiser and of CLVP for the CPU, their weights packed when the network is loaded.

They replace a network's linear layers, and those that have ``over_frames``: convolutions of 1 tap over packed frames
(N, C), or of an odd number of taps over (R, L, C), zero-padded, channels last. oneDNN would otherwise convert the
weights in every call. With the package's kernels, whole blocks of the denoiser are replaced.
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
)


class Int8FrameConv(nn.Module):
    """An int8 convolution as one product with the window of each frame: (R, L, C) → (R, L, O) in float32.

    Each window is quantised with a range of its own.

    Args:
        weight: (O, C, taps), with a scale for each output channel. bias: (O,).
        product: makes the layer that multiplies the windows.
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


@dataclass(frozen=True)
class LayerMakers:
    """What packs the layers of a network.

    Attributes:
        pointwise: makes layers of single frames, (…, C) → (…, O), from weight (O, C) and bias.
        convolution: makes layers of neighbouring frames from weight (O, C, taps) and bias.
        blocks: makes what replaces a whole block from it, by the attribute that such a block has.
    """

    pointwise: Prepacking
    convolution: Prepacking
    blocks: Mapping[str, Callable[[nn.Module], nn.Module]] = field(default_factory=dict)


@dataclass(frozen=True)
class FramePacking:
    """How the layers of a network are packed.

    Attributes:
        layers: makes them. ends: makes those that the network names in ``ends``; None: they are not packed.
        dtype: of everything else in the network.
        attention: of queries, keys and values; None: as they come.
    """

    layers: LayerMakers
    ends: LayerMakers | None
    dtype: torch.dtype
    attention: torch.dtype | None = None


def frame_packing(weights: str) -> FramePacking | None:
    """The packing for weights in "bf16" or "int8"; None: this CPU has no kernels for it, or the precision none.

    With AMX but without the package's kernels, int8 has the packing of bf16: rounding activations to integers would
    take longer than its products save.
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
        # attention in bfloat16 takes half of the time, and changes the spectrogram less than int8 weights do
        return FramePacking(
            LayerMakers(Int8Linear, Int8FrameConv), None, torch.float32, torch.bfloat16 if native else None
        )
    if weights == "int8" and has_fbgemm_int8():
        seven_bits = partial(Int8FewRowsLinear, levels=127)
        return FramePacking(LayerMakers(seven_bits, partial(Int8FrameConv, product=seven_bits)), None, torch.float32)
    return None


def by_kernels(kind: str) -> LayerMakers:
    """The package's own kernels. Layers outside blocks stay in bfloat16: they are few, or CLVP's, whose vectors reach
    43 dB to float32 in bfloat16 and 31 dB in int8, which would save only a tenth of the time (random weights).
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
    """Replace the layers of ``network`` over frames, and its linear layers, by packed ones, one at a time."""
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
    """What replaces a layer or a block; None: nothing."""
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
