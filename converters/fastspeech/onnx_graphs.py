"""The ONNX graphs of FastSpeech and its vocoders: the reference networks, batch first; named axes have any length."""

import torch
from torch import Tensor, nn

from ane.backends.onnx.tensorrt import LENGTHS, bucket_range
from ane.models.fastspeech.networks.acoustic import FastSpeech
from ane.models.fastspeech.networks.layers import joined_heads, position_table
from ane.models.vocoders.waveglow import HOP
from converters.onnx.graph import network_call, noise, traced


class StoredPositions(nn.Module):
    """``PositionEncoding`` with a slice of a table, since a graph cannot compute it for a dynamic length."""

    table: Tensor

    def __init__(self, positions: int, width: int, dtype: torch.dtype):
        super().__init__()
        self.register_buffer("table", position_table(positions, width).to(dtype), persistent=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.table[:x.shape[1]] * mask


class ExplicitAttention(nn.Module):
    """``HeadAttention`` in its parts: ONNX Runtime's operator takes no mask that is the same for all queries."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3) + bias
        return joined_heads(scores.softmax(dim=-1) @ v)


def make_traceable(network: nn.Module, dtype: torch.dtype) -> None:
    """Replace the modules of the acoustic network that cannot be traced."""
    if not isinstance(network, FastSpeech):
        return
    # TensorRT builds an engine for the largest length of a bucket, which may exceed the model's positions
    positions = bucket_range(network.config.max_seq_len, LENGTHS)[1]
    for stack in (network.phoneme_side, network.mel_side):
        stack.positions = StoredPositions(positions, network.config.d_model, dtype)
        for block in stack.layer_stack:
            block.slf_attn.attention = ExplicitAttention()


BATCH, SYMBOLS, FRAMES = 2, 13, 29
text = traced(lambda network, ids, mask: network.encode(ids, mask), ("encoded",), lambda network, dtype: {
    "ids": (torch.ones((BATCH, SYMBOLS), dtype=torch.int64), {0: "batch", 1: "symbols"}),
    "mask": (torch.ones((BATCH, SYMBOLS), dtype=dtype), {0: "batch", 1: "symbols"})})
mel = traced(lambda network, states, alignment, mask: network.decode(states, alignment, mask), ("mel",),
             lambda network, dtype: {
    "states": (noise(BATCH, SYMBOLS, network.config.d_model).to(dtype), {0: "batch", 1: "symbols"}),
    "alignment": (torch.zeros((BATCH, SYMBOLS, FRAMES), dtype=dtype), {0: "batch", 1: "symbols", 2: "frames"}),
    "mask": (torch.ones((BATCH, FRAMES), dtype=dtype), {0: "batch", 1: "frames"})})
vocoder = traced(network_call, ("sound",), lambda network, dtype: {
    "mel": (noise(2, network.config.num_mels, 19), {0: "batch", 2: "frames"})})
waveglow = traced(network_call, ("sound",), lambda network, dtype: {
    "mel": (noise(2, network.config.n_mel_channels, 19), {0: "batch", 2: "frames"}),
    "noise": (noise(2, HOP, 19), {0: "batch", 2: "frames"})})
