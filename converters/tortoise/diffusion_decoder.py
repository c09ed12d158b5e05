"""Build Core ML graphs of the diffusion decoder.

Reference: ``ane.models.tortoise.networks.diffusion_decoder``. There are two kinds of function. ``condition`` runs once
per chunk: latents and voice → code (upstream's ``code_emb``, not a discrete code), with one column per latent, which
the host repeats to frames. ``denoise`` calls the network once.

A guided step has a batch of two, with and without conditioning. Values that both rows share are computed once: the
convolution of the noisy mel, and everything that depends on the timestep, which the host passes as sinusoids
(``blocks``, principle 6).

The reference pads convolutions with zeros after the last frame, so the input of a convolution wider than 1 is
multiplied by ``inside``. Norms and attention mask the padding, so its content never reaches a frame of the sequence.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from torch import nn

from ane.models.tortoise.networks.diffusion_decoder import DiffusionLayer, DiffusionTts, TimestepResBlock
from converters import blocks
from converters.blocks import PaddingMask
from converters.coreml.graph import CoreMLGraph, Style, Var, mb
from converters.tortoise.attention_block import attention_block

SCALE = 1 / 32  # scale of the residual streams (blocks, principle 7): squares of 8000 fit, and squares of 0.1 too

Modulation = tuple[Var, Var]  # a block's scale and shift, computed from the timestep, (1, C, 1, 1) each


def condition(network: DiffusionTts, length: int) -> CoreMLGraph:
    """Return the graph of the part that does not depend on the timestep.

    latents (1, D, 1, N), voice (1, 2C, 1, 1), inside and mean_weight (1, 1, 1, N, see ``blocks.PaddingMask``) → code
    (1, C, 1, N). Latents are 0 in the padding.
    """
    config = network.config
    first, *rest = network.latent_conditioner

    def body(s: Style, latents: Var, voice: Var, inside: Var, mean_weight: Var) -> dict[str, Var]:
        frames = PaddingMask.of(s, inside, mean_weight)
        x = blocks.same_conv(s, latents, first, "latent_conditioner.0", SCALE)
        for index, block in enumerate(rest, 1):
            x = attention_block(s, x, block, frames, SCALE, f"latent_conditioner.{index}")
        scale, shift = mb.split(x=voice, num_splits=2, axis=1)
        return {"code": blocks.group_norm(s, x, network.code_norm, frames, SCALE, (scale, shift))}

    return CoreMLGraph(
        "condition",
        {"latents": length},
        {
            "latents": (1, config.in_latent_channels, 1, length),
            "voice": (1, 2 * config.model_channels, 1, 1),
            **_padding_inputs(length),
        },
        body,
    )


def denoise(network: DiffusionTts, batch: int, frames: int) -> CoreMLGraph:
    """Return the graph of one call of the network.

    x (1, 100, 1, S), code (B, C, 1, S), time (1, C, 1, 1, see ``timestep_embedding`` of the reference), inside and
    mean_weight (1, 1, 1, S) → prediction (B, 200, 1, S).
    """
    config = network.config

    def body(s: Style, x: Var, code: Var, time: Var, inside: Var, mean_weight: Var) -> dict[str, Var]:
        modulations, code = _modulations(s, time, network), blocks.scaled(s, code, SCALE)
        return {"prediction": _network(s, x, code, modulations, PaddingMask.of(s, inside, mean_weight), network)}

    return CoreMLGraph(
        "denoise",
        {"batch": batch, "frames": frames},
        {
            "x": (1, config.in_channels, 1, frames),
            "code": (batch, config.model_channels, 1, frames),
            "time": (1, config.model_channels, 1, 1),
            **_padding_inputs(frames),
        },
        body,
    )


def _padding_inputs(length: int) -> dict[str, tuple[int, ...]]:
    return {"inside": (1, 1, 1, length), "mean_weight": (1, 1, 1, length)}


def _blocks(network: DiffusionTts) -> Iterator[TimestepResBlock]:
    """Yield the blocks that the timestep modulates, in order."""
    for layer in (*network.conditioning_timestep_integrator, *network.layers):
        yield layer.resblk if isinstance(layer, DiffusionLayer) else layer


def _modulations(s: Style, time: Var, network: DiffusionTts) -> list[Modulation]:
    """Compute a timestep's sinusoids (1, C, 1, 1) → the scales and shifts (1, C, 1, 1 each) of every block."""
    first, _, second = network.time_embed
    time = blocks.linear(s, mb.silu(x=blocks.linear(s, time, first)), second, "time_embed")
    time = mb.silu(x=time)
    return [
        tuple(mb.split(x=blocks.linear(s, time, block.emb_layers["1"]), num_splits=2, axis=1))
        for block in _blocks(network)
    ]


def _network(
    s: Style, x: Var, code: Var, modulations: Sequence[Modulation], frames: PaddingMask, network: DiffusionTts
) -> Var:
    """Compute noisy mel (1, 100, 1, S), code (B, C, 1, S) scaled by ``SCALE`` → prediction (B, 200, 1, S)."""
    time = iter(modulations)
    for index, layer in enumerate(network.conditioning_timestep_integrator):
        code = _layer(s, code, layer, next(time), frames, f"conditioning_timestep_integrator.{index}")
    x = blocks.same_conv(s, mb.mul(x=x, y=frames.inside), network.inp_block, "inp_block", SCALE)
    x = _integrated(s, x, code, network.integrating_conv, "integrating_conv")
    for index, layer in enumerate(network.layers):
        block = _layer if isinstance(layer, DiffusionLayer) else _res_block
        x = block(s, x, layer, next(time), frames, f"layers.{index}")
    norm, _, last = network.out
    x = mb.silu(x=blocks.group_norm(s, x, norm, frames, SCALE))
    return blocks.same_conv(s, mb.mul(x=x, y=frames.inside), last, "out")


def _integrated(s: Style, x: Var, code: Var, conv: nn.Conv1d, name: str) -> Var:
    """Convolve x and code as if concatenated. They are computed apart because x is the same for all rows."""
    weight, bias = blocks.kernel(conv)
    of_x, of_code = np.split(weight, [x.shape[1]], axis=1)
    return mb.add(
        x=blocks.conv(s, code, of_code, bias * SCALE), y=blocks.conv(s, x, of_x, None), name=blocks.value_name(name)
    )


def _layer(s: Style, x: Var, layer: DiffusionLayer, time: Modulation, frames: PaddingMask, name: str) -> Var:
    x = _res_block(s, x, layer.resblk, time, frames, f"{name}.resblk")
    return attention_block(s, x, layer.attn, frames, SCALE, f"{name}.attn")


def _res_block(s: Style, x: Var, block: TimestepResBlock, time: Modulation, frames: PaddingMask, name: str) -> Var:
    """Apply a block: x (B, C, 1, S), scaled by ``SCALE``, → x."""
    y = mb.silu(x=blocks.group_norm(s, x, block.in_layers["0"], frames, SCALE))
    y = blocks.linear(s, y, block.in_layers["2"], f"{name}.in_layers.2")
    y = mb.silu(x=blocks.group_norm(s, y, block.out_layers["0"], frames, modulation=time))
    y = blocks.same_conv(s, mb.mul(x=y, y=frames.inside), block.out_layers["3"], f"{name}.out_layers.3", SCALE)
    return mb.add(x=x, y=y, name=blocks.value_name(name))
