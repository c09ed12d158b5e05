"""The ONNX graphs of FastSpeech and its vocoders: the reference networks, batch first; named axes have any length."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ane.backends.onnx.tensorrt import LENGTHS, bucket_range
from ane.models.fastspeech.networks.acoustic import FastSpeech
from ane.models.fastspeech.networks.layers import joined_heads, position_table
from ane.models.vocoders.hifigan import MelHifigan
from ane.models.vocoders.waveglow import HOP, Waveglow
from converters.onnx.graph import NetworkCall, OnnxGraph


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


def graphs_of(network: str, reference: nn.Module, dtype: torch.dtype) -> list[OnnxGraph]:
    """The graphs of a network whose reference computes in ``dtype``; modifies the reference."""
    return GRAPHS[network](reference, dtype)


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _fastspeech(network: FastSpeech, dtype: torch.dtype) -> list[OnnxGraph]:
    config = network.config
    # TensorRT builds an engine for the largest length of a bucket, which may exceed the model's positions
    positions = bucket_range(config.max_seq_len, LENGTHS)[1]
    for stack in (network.phoneme_side, network.mel_side):
        stack.positions = StoredPositions(positions, config.d_model, dtype)
        for block in stack.layer_stack:
            block.slf_attn.attention = ExplicitAttention()
    batch, symbols, frames = 2, 13, 29
    text = {"ids": torch.ones((batch, symbols), dtype=torch.int64), "mask": torch.ones((batch, symbols), dtype=dtype)}
    mel = {"states": _noise(batch, symbols, config.d_model).to(dtype),
           "alignment": torch.zeros((batch, symbols, frames), dtype=dtype),
           "mask": torch.ones((batch, frames), dtype=dtype)}
    return [
        OnnxGraph("text", NetworkCall(network, lambda network, ids, mask: network.encode(ids, mask)), text,
                  {name: {0: "batch", 1: "symbols"} for name in text}, ("encoded",)),
        OnnxGraph("mel", NetworkCall(network, lambda network, states, alignment, mask:
                                     network.decode(states, alignment, mask)), mel,
                  {"states": {0: "batch", 1: "symbols"}, "alignment": {0: "batch", 1: "symbols", 2: "frames"},
                   "mask": {0: "batch", 1: "frames"}}, ("mel",))]


def _vocoder(network: MelHifigan, dtype: torch.dtype) -> list[OnnxGraph]:
    mel = {"mel": _noise(2, network.config.num_mels, 19)}
    return [OnnxGraph("vocoder", NetworkCall(network, lambda network, mel: network(mel)), mel,
                      {"mel": {0: "batch", 2: "frames"}}, ("sound",))]


def _waveglow(network: Waveglow, dtype: torch.dtype) -> list[OnnxGraph]:
    inputs = {"mel": _noise(2, network.config.n_mel_channels, 19), "noise": _noise(2, HOP, 19)}
    return [OnnxGraph("waveglow", NetworkCall(network, lambda network, mel, noise: network(mel, noise)), inputs,
                      {name: {0: "batch", 2: "frames"} for name in inputs}, ("sound",))]


GRAPHS: dict[str, Callable[..., list[OnnxGraph]]] = {
    "fastspeech": _fastspeech, "vocoder": _vocoder, "waveglow": _waveglow}
