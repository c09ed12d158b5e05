"""The ONNX graphs that stand for the stages: what each computes, its inputs and outputs by name, its free axes.

All are traced from ``ane.models.tortoise.networks`` itself, with the batch first and no padding: an axis named here may have any
length. The decoder's are in ``converters.tortoise.onnx_decoder``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.models.tortoise.networks.frames import FrameNorm, image, sequence
from ane.models.tortoise.networks.layers import GroupNorm, RelativePositionBias
from converters.tortoise import onnx_decoder as decoder

Axes = Mapping[int, str]        # number of an axis → its name


@dataclass(frozen=True)
class Graph:
    """One graph of a network.

    Attributes:
        name, kind: of the function in the package; a kind has one graph.
        module: takes the examples in their order, gives one tensor or a tuple. The twin is in it as ``network``.
        examples: an input's value to trace with, or a list of them, one a layer.
        axes: the free axes of an input, of each tensor where it is a list.
        outputs: their names.
    """

    name: str
    module: nn.Module
    examples: Mapping[str, Tensor | list[Tensor]]
    axes: Mapping[str, Axes]
    outputs: Sequence[str]

    @property
    def kind(self) -> str:
        return self.name

    @property
    def inputs(self) -> list[str]:
        """Names of the tensors; those of a list are numbered."""
        return [name for key, value in self.examples.items() for name in
                ([f"{key}_{number}" for number in range(len(value))] if isinstance(value, list) else [key])]


class Call(nn.Module):
    """A call on a twin, as a module of its own."""

    def __init__(self, network: nn.Module, call: Callable[..., Any]):
        super().__init__()
        self.network, self.call = network, call

    def forward(self, *inputs: Tensor) -> Any:
        return self.call(self.network, *inputs)


class ShiftedBias(nn.Module):
    """``RelativePositionBias`` for a length that is not known: the tracer would fix the one that ``unfold`` is given.

    Row i is the row before it moved by one: of copies laid end to end, each one longer than a row is read.
    """

    def __init__(self, bias: RelativePositionBias):
        super().__init__()
        self.bias = bias

    def forward(self, length: int, dtype: torch.dtype) -> Tensor:
        rows = F.pad(self.bias.by_distance(length, dtype), (0, 1))                  # (heads, 2·length)
        rows = rows[:, None].expand(-1, length, -1).reshape(len(rows), -1)[:, length - 1:-1]
        return rows.reshape(len(rows), length, 2 * length - 1)[..., :length]


class TwoPassNorm(nn.Module):
    """``GroupNorm`` by its definition.

    ONNX's own operator is defined by E[x²] − E[x]², which cancels where x hardly varies, as in the unconditioned half
    of guidance. There, random weights and up to 333 frames, ONNX Runtime lost up to 8e-3 of the largest value with it;
    with this, up to 3e-3 against float64.
    """

    def __init__(self, norm: GroupNorm):
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        groups = x.float().reshape(x.shape[0], self.norm.num_groups, -1)
        apart = groups - groups.mean(dim=-1, keepdim=True)
        y = apart * torch.rsqrt((apart * apart).mean(dim=-1, keepdim=True) + self.norm.eps)
        weight, bias = (part.view(-1, *[1] * (x.ndim - 2)) for part in (self.norm.weight, self.norm.bias))
        return (y.reshape(x.shape) * weight + bias).to(x.dtype)


class TwoPassFrameNorm(TwoPassNorm):
    """``FrameNorm`` by its definition: (R, L, C) → the same."""

    def forward(self, x: Tensor) -> Tensor:
        return sequence(super().forward(image(x)))


def graphs_of(network: str, twin: nn.Module, dtype: torch.dtype) -> list[Graph]:
    """The graphs of a network whose twin computes in ``dtype``; the twin is the graphs' own from now on."""
    traceable(twin)
    return GRAPHS[network](twin, dtype)


def traceable(network: nn.Module) -> None:
    """Put in place of modules that cannot be traced as they are those that can."""
    kinds = {RelativePositionBias: ShiftedBias, GroupNorm: TwoPassNorm, FrameNorm: TwoPassFrameNorm}
    for module in list(network.modules()):
        for name, part in module.named_children():
            if isinstance(part, tuple(kinds)) and not isinstance(module, tuple(kinds.values())):
                # a subclass may lay its input out otherwise, and must be named here
                assert type(part) in kinds, f"{type(part).__name__} has no counterpart for ONNX"
                module.register_module(name, kinds[type(part)](part))


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _ids(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(0))


def _one(name: str, twin: nn.Module, call: Callable[..., Any], output: str, axes: Mapping[str, Axes],
         **examples: Tensor) -> Graph:
    return Graph(name, Call(twin, call), examples, axes, (output,))


def _clip(stage: str, mels: int) -> Callable[[nn.Module, torch.dtype], list[Graph]]:
    return lambda twin, dtype: [_one(stage, twin, lambda network, mel: network(mel), "latent",
                                     {"mel": {0: "batch", 2: "frames"}}, mel=_noise(2, mels, 132))]


def _random(stage: str) -> Callable[[nn.Module, torch.dtype], list[Graph]]:
    return lambda twin, dtype: [_one(stage, twin, lambda network, noise: network(noise), "latent",
                                     {"noise": {0: "batch"}}, noise=_noise(2, twin.layers[-1].in_features))]


def _clvp(twin: nn.Module, dtype: torch.dtype) -> list[Graph]:
    ids = {"tokens": twin.text_emb.num_embeddings, "codes": twin.speech_emb.num_embeddings}
    calls = {"tokens": lambda network, tokens: network.text(tokens),
             "codes": lambda network, codes: network.speech(codes)}
    return [_one(stage, twin, calls[name], "vector", {name: {0: "batch", 1: "places"}},
                 **{name: _ids(ids[name], 2, 21)})
            for stage, name in (("clvp_text", "tokens"), ("clvp_speech", "codes"))]


def _cvvp(twin: nn.Module, dtype: torch.dtype) -> list[Graph]:
    return [_one("cvvp_clip", twin, lambda network, mel: network.clip(mel), "vector",
                 {"mel": {0: "batch", 2: "frames"}}, mel=_noise(2, twin.cond_emb[0].in_channels, 133)),
            _one("cvvp_speech", twin, lambda network, codes: network.speech(codes), "vector",
                 {"codes": {0: "batch", 1: "places"}}, codes=_ids(twin.speech_emb.emb.num_embeddings, 2, 21))]


def _diffusion(twin: nn.Module, dtype: torch.dtype) -> list[Graph]:
    """What no timestep changes, a column a latent (the host repeats them to frames), and the network of a timestep."""
    config = twin.config
    channels = config.model_channels
    return [
        _one("condition", twin, lambda network, latents, voice: network.condition(latents, voice, latents.shape[1]),
             "code", {"latents": {0: "batch", 1: "latents"}, "voice": {0: "batch"}},
             latents=_noise(2, 11, config.in_latent_channels).to(dtype), voice=_noise(2, 2 * channels).to(dtype)),
        _one("denoise", twin, lambda network, x, timesteps, code: network(x, timesteps, code), "prediction",
             {"x": {0: "batch", 2: "frames"}, "timesteps": {0: "batch"}, "code": {0: "batch", 2: "frames"}},
             x=_noise(2, config.in_channels, 45).to(dtype), timesteps=torch.tensor([30, 3000]),
             code=_noise(2, channels, 45).to(dtype)),
    ]


def _univnet(twin: nn.Module, dtype: torch.dtype) -> list[Graph]:
    config = twin.config
    return [_one("univnet", twin, lambda network, mel, noise: network(mel, noise), "sound",
                 {"mel": {0: "batch", 2: "frames"}, "noise": {0: "batch", 2: "frames_and_10"}},
                 mel=_noise(2, config.n_mel_channels, 13), noise=_noise(2, config.noise_dim, 23))]


def _hifigan(twin: nn.Module, dtype: torch.dtype) -> list[Graph]:
    """Of frames (B, D, L): latents that the host has brought to the frames' rate."""
    return [_one("hifigan", twin, lambda network, frames, voice: network(frames, voice), "sound",
                 {"frames": {0: "batch", 2: "frames"}, "conditioning": {0: "batch"}},
                 frames=_noise(2, twin.config.in_channels, 19), conditioning=_noise(2, twin.config.cond_channels))]


def _classifier(twin: nn.Module, dtype: torch.dtype) -> list[Graph]:
    return [_one("classifier", twin, lambda network, audio: network(audio), "logits",
                 {"audio": {0: "batch", 2: "samples"}}, audio=_noise(2, 1, 9001))]


def _autoregressive(twin: nn.Module, dtype: torch.dtype) -> list[Graph]:
    new = ("hidden", "logits", "new_keys", "new_values")
    return [
        Graph("prefill", Call(twin, decoder.prefill), *decoder.prefill_examples(twin.config),
              ("hidden", "logits", "keys", "values")),
        Graph("step", Call(twin, decoder.step), *decoder.step_examples(twin.config, dtype, shared=True), new),
        Graph("step_places", Call(twin, decoder.step_places),
              *decoder.step_examples(twin.config, dtype, shared=False), new),
    ]


GRAPHS: dict[str, Callable[[nn.Module, torch.dtype], list[Graph]]] = {
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
