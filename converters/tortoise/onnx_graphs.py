"""The ONNX graphs of Tortoise's networks: calls, inputs, outputs and dynamic axes.

The reference networks themselves are traced, batch first and without padding; the named axes may have any length. The
decoder's calls are in ``converters.tortoise.onnx_decoder``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.models.tortoise.networks.layers import GroupNorm, RelativePositionBias
from converters.onnx.decoder import step_inputs
from converters.onnx.graph import Axes, NetworkCall, OnnxGraph
from converters.tortoise import onnx_decoder as decoder


class ShiftedBias(nn.Module):
    """``RelativePositionBias`` for a dynamic length; ``unfold`` would be traced with a fixed one.

    Row i is row i − 1 shifted by one, which is read from concatenated copies with a stride one longer than a row.
    """

    def __init__(self, bias: RelativePositionBias):
        super().__init__()
        self.bias = bias

    def forward(self, length: int, dtype: torch.dtype) -> Tensor:
        rows = F.pad(self.bias.computed(length, dtype), (0, 1))                     # (heads, 2·length)
        rows = rows[:, None].expand(-1, length, -1).reshape(len(rows), -1)[:, length - 1:-1]
        return rows.reshape(len(rows), length, 2 * length - 1)[..., :length]


def graphs_of(network: str, reference: nn.Module, dtype: torch.dtype) -> list[OnnxGraph]:
    """The graphs of a network whose reference computes in ``dtype``; modifies the reference."""
    make_traceable(reference)
    return GRAPHS[network](reference, dtype)


def make_traceable(network: nn.Module) -> None:
    """Replace modules that cannot be traced, and compute norms in two passes, which ONNX's operator does not."""
    for module in list(network.modules()):
        if isinstance(module, GroupNorm):
            module.two_pass = True
        for name, part in module.named_children():
            if isinstance(part, RelativePositionBias) and not isinstance(part, ShiftedBias):
                module.register_module(name, ShiftedBias(part))


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _ids(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(0))


def _graph(name: str, network: nn.Module, call: Callable[..., Any], output: str, axes: Mapping[str, Axes],
         **examples: Tensor) -> OnnxGraph:
    return OnnxGraph(name, NetworkCall(network, call), examples, axes, (output,))


def _clip(stage: str, mels: int) -> Callable[[nn.Module, torch.dtype], list[OnnxGraph]]:
    return lambda network, dtype: [_graph(stage, network, lambda network, mel: network(mel), "latent",
                                     {"mel": {0: "batch", 2: "frames"}}, mel=_noise(2, mels, 132))]


def _random(stage: str) -> Callable[[nn.Module, torch.dtype], list[OnnxGraph]]:
    return lambda network, dtype: [_graph(stage, network, lambda network, noise: network(noise), "latent",
                                     {"noise": {0: "batch"}}, noise=_noise(2, network.layers[-1].in_features))]


def _clvp(network: nn.Module, dtype: torch.dtype) -> list[OnnxGraph]:
    ids = {"tokens": network.text_emb.num_embeddings, "codes": network.speech_emb.num_embeddings}
    calls = {"tokens": lambda network, tokens: network.text(tokens),
             "codes": lambda network, codes: network.speech(codes)}
    return [_graph(stage, network, calls[name], "vector", {name: {0: "batch", 1: "positions"}},
                 **{name: _ids(ids[name], 2, 21)})
            for stage, name in (("clvp_text", "tokens"), ("clvp_speech", "codes"))]


def _cvvp(network: nn.Module, dtype: torch.dtype) -> list[OnnxGraph]:
    return [_graph("cvvp_clip", network, lambda network, mel: network.clip(mel), "vector",
                 {"mel": {0: "batch", 2: "frames"}}, mel=_noise(2, network.cond_emb[0].in_channels, 133)),
            _graph("cvvp_speech", network, lambda network, codes: network.speech(codes), "vector",
                 {"codes": {0: "batch", 1: "positions"}}, codes=_ids(network.speech_emb.emb.num_embeddings, 2, 21))]


def _diffusion(network: nn.Module, dtype: torch.dtype) -> list[OnnxGraph]:
    """The part that does not depend on the timestep, a column a latent (the host repeats them), and the network."""
    config = network.config
    channels = config.model_channels
    return [
        _graph("condition", network,
               lambda network, latents, voice: network.condition(latents, voice, latents.shape[1]),
             "code", {"latents": {0: "batch", 1: "latents"}, "voice": {0: "batch"}},
             latents=_noise(2, 11, config.in_latent_channels).to(dtype), voice=_noise(2, 2 * channels).to(dtype)),
        _graph("denoise", network, lambda network, x, timesteps, code: network(x, timesteps, code), "prediction",
             {"x": {0: "batch", 2: "frames"}, "timesteps": {0: "batch"}, "code": {0: "batch", 2: "frames"}},
             x=_noise(2, config.in_channels, 45).to(dtype), timesteps=torch.tensor([30, 3000]),
             code=_noise(2, channels, 45).to(dtype)),
    ]


def _univnet(network: nn.Module, dtype: torch.dtype) -> list[OnnxGraph]:
    config = network.config
    return [_graph("univnet", network, lambda network, mel, noise: network(mel, noise), "sound",
                 {"mel": {0: "batch", 2: "frames"}, "noise": {0: "batch", 2: "frames_and_10"}},
                 mel=_noise(2, config.n_mel_channels, 13), noise=_noise(2, config.noise_dim, 23))]


def _hifigan(network: nn.Module, dtype: torch.dtype) -> list[OnnxGraph]:
    """frames (B, D, L) are latents that the host has resampled to the frame rate."""
    return [_graph("hifigan", network, lambda network, frames, voice: network(frames, voice), "sound",
                 {"frames": {0: "batch", 2: "frames"}, "conditioning": {0: "batch"}},
                 frames=_noise(2, network.config.in_channels, 19),
                 conditioning=_noise(2, network.config.cond_channels))]


def _classifier(network: nn.Module, dtype: torch.dtype) -> list[OnnxGraph]:
    return [_graph("classifier", network, lambda network, audio: network(audio), "logits",
                 {"audio": {0: "batch", 2: "samples"}}, audio=_noise(2, 1, 9001))]


def _autoregressive(network: nn.Module, dtype: torch.dtype) -> list[OnnxGraph]:
    new = ("hidden", "logits", "new_keys", "new_values")
    return [
        OnnxGraph("prefill", NetworkCall(network, decoder.prefill), *decoder.prefill_examples(network.config),
                  ("hidden", "logits", "keys", "values")),
        OnnxGraph("step", NetworkCall(network, decoder.step),
                  *step_inputs(network.config.decoder_shape, dtype, shared=True), new),
        OnnxGraph("step_prefixes", NetworkCall(network, decoder.step_prefixes),
                  *step_inputs(network.config.decoder_shape, dtype, shared=False), new),
    ]


GRAPHS: dict[str, Callable[[nn.Module, torch.dtype], list[OnnxGraph]]] = {
    "autoregressive": _autoregressive,
    "conditioning_encoder": _clip("ar_conditioning", 80),
    "contextual_embedder": _clip("diffusion_conditioning", 100),
    "rlg_auto": _random("ar_random"),
    "rlg_diffuser": _random("diffusion_random"),
    "clvp": _clvp,
    "cvvp": _cvvp,
    "diffusion": _diffusion,
    "univnet": _univnet,
    "hifigan": _hifigan,
    "classifier": _classifier,
}
