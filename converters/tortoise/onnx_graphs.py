"""Describe the ONNX graphs of Tortoise's networks.

torch traces the PyTorch networks themselves, batch first and without padding. Axes with a name may have any length. A
step of the decoder reads caches that the runtime stores (``converters.onnx.graph``).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.models.tortoise.networks.layers import GroupNorm, RelativePositionBias
from converters.onnx import graph
from converters.onnx.graph import ids, network_call, noise, traced


class ShiftedBias(nn.Module):
    """``RelativePositionBias`` for a dynamic length.

    The original class uses ``unfold``, so a trace of it has a fixed length. Row i of the bias is row i − 1, shifted by
    one position. This class concatenates copies of a row with one element too many. When it then cuts the result into
    rows of the right length, each row is shifted by one position.
    """

    def __init__(self, bias: RelativePositionBias):
        super().__init__()
        self.bias = bias

    def forward(self, length: int, dtype: torch.dtype) -> Tensor:
        rows = F.pad(self.bias.computed(length, dtype), (0, 1))  # (heads, 2·length)
        rows = rows[:, None].expand(-1, length, -1).reshape(len(rows), -1)[:, length - 1 : -1]
        return rows.reshape(len(rows), length, 2 * length - 1)[..., :length]


def make_traceable(network: nn.Module, dtype: torch.dtype | None = None) -> None:
    """Replace modules that torch cannot trace, and make each group norm one operation, which the export translates."""
    for module in list(network.modules()):
        if isinstance(module, GroupNorm):
            module.two_pass = False
        for name, part in module.named_children():
            if isinstance(part, RelativePositionBias) and not isinstance(part, ShiftedBias):
                module.register_module(name, ShiftedBias(part))


# The decoder

prefill = traced(
    graph.prefilled,
    graph.PREFILL_OUTPUTS,
    lambda network, dtype: {"columns": (noise(1, graph.PREFIX_LENGTH, network.config.model_dim), {1: "prefix"})},
)
step = traced(
    lambda network, columns, mask, *caches: graph.decoder_step(network, columns, mask, None, caches),
    graph.STEP_OUTPUTS,
    lambda network, dtype: graph.step_inputs(network.config.decoder_shape, dtype, shared=True),
)
step_prefixes = traced(
    lambda network, columns, mask, prefix_index, *caches: graph.decoder_step(
        network, columns, mask, prefix_index, caches
    ),
    graph.STEP_OUTPUTS,
    lambda network, dtype: graph.step_inputs(network.config.decoder_shape, dtype, shared=False),
)


# Other networks

FRAMES, POSITIONS = {0: "batch", 2: "frames"}, {0: "batch", 1: "positions"}


def clip(mels: int) -> Any:
    """Describe the graph of a network that encodes clips: mel (B, mels, L) → latent."""
    return traced(network_call, ("latent",), lambda network, dtype: {"mel": (noise(2, mels, 132), FRAMES)})


random = traced(
    network_call,
    ("latent",),
    lambda network, dtype: {"noise": (noise(2, network.layers[-1].in_features), {0: "batch"})},
)
clvp_text = traced(
    lambda network, tokens: network.text(tokens),
    ("vector",),
    lambda network, dtype: {"tokens": (ids(network.text_emb.num_embeddings, 2, 21), POSITIONS)},
)
clvp_speech = traced(
    lambda network, codes: network.speech(codes),
    ("vector",),
    lambda network, dtype: {"codes": (ids(network.speech_emb.num_embeddings, 2, 21), POSITIONS)},
)
# the computation that does not depend on the timestep. It returns one column per latent, which the host repeats
condition = traced(
    lambda network, latents, voice: network.condition(latents, voice, latents.shape[1]),
    ("code",),
    lambda network, dtype: {
        "latents": (noise(2, 11, network.config.in_latent_channels).to(dtype), {0: "batch", 1: "latents"}),
        "voice": (noise(2, 2 * network.config.model_channels).to(dtype), {0: "batch"}),
    },
)
denoise = traced(
    network_call,
    ("prediction",),
    lambda network, dtype: {
        "x": (noise(2, network.config.in_channels, 45).to(dtype), FRAMES),
        "timesteps": (torch.tensor([30, 3000]), {0: "batch"}),
        "code": (noise(2, network.config.model_channels, 45).to(dtype), FRAMES),
    },
)
univnet = traced(
    network_call,
    ("sound",),
    lambda network, dtype: {
        "mel": (noise(2, network.config.n_mel_channels, 13), FRAMES),
        "noise": (noise(2, network.config.noise_dim, 23), {0: "batch", 2: "frames_and_10"}),
    },
)
bigvgan = traced(
    network_call, ("sound",), lambda network, dtype: {"mel": (noise(2, network.config.num_mels, 13), FRAMES)}
)
# the input ``frames`` (B, D, L) holds latents that the host has resampled to the frame rate
hifigan = traced(
    network_call,
    ("sound",),
    lambda network, dtype: {
        "frames": (noise(2, network.config.in_channels, 19), FRAMES),
        "conditioning": (noise(2, network.config.cond_channels), {0: "batch"}),
    },
)
