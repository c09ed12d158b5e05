"""Build Core ML graphs of Tortoise's diffusion decoder, as two kinds of function: ``condition`` and ``denoise``.

The PyTorch network is in ``ane.models.tortoise.networks.diffusion_decoder``. The host, which is the program that calls
the package, calls ``condition`` once per chunk of text. From the latents and the voice, ``condition`` computes what
upstream calls ``code_emb``, one column per latent. (The input and output named ``code`` is this tensor, not a discrete
code.) The host repeats the columns for the mel frames, and calls ``denoise`` once per diffusion step.

A guided step has a batch of two: one row with conditioning, and one row without. The graph computes what both rows
share only once: the convolution of the noisy mel, and everything that depends on the timestep. The host passes the
timestep as sinusoids (``converters.blocks``, principle 6).

The PyTorch network pads convolutions with zeros after the last frame. So the graph multiplies the input of every
convolution with a kernel wider than 1 by ``inside``. Norms and attention mask the padding, so that its content never
reaches a frame of the sequence.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from torch import nn

from ane.models.tortoise.networks.diffusion_decoder import DiffusionLayer, DiffusionTts, TimestepResBlock
from converters import blocks
from converters.blocks import PaddingMask
from converters.coreml.graph import CoreMLGraph, Style, Var, mb
from converters.tortoise.attention_block import attention_block

SCALE = 1 / 32  # scale of the residual streams (blocks, principle 7). fp16 holds the squares of scaled 8000 and 0.1

Modulation = tuple[Var, Var]  # scale and shift for a block, (1, C, 1, 1) each. The timestep determines them


def condition(network: DiffusionTts, length: int) -> CoreMLGraph:
    """Describe the graph that computes everything that does not depend on the timestep.

    The inputs are latents (1, D, 1, N), which are 0 in the padding, voice (1, 2C, 1, 1), and inside and mean_weight,
    both (1, 1, 1, N). ``blocks.PaddingMask`` explains the last two inputs. The output is code (1, C, 1, N).
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
    """Describe the graph of one diffusion step.

    The inputs are the noisy mel x (1, 100, 1, S), code (B, C, 1, S), time (1, C, 1, 1), and inside and mean_weight,
    both (1, 1, 1, S). The output is the prediction (B, 200, 1, S). The PyTorch network's ``timestep_embedding``
    computes ``time``.
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
    """Yield the residual blocks that the timestep modulates, in order."""
    for layer in (*network.conditioning_timestep_integrator, *network.layers):
        yield layer.resblk if isinstance(layer, DiffusionLayer) else layer


def _modulations(s: Style, time: Var, network: DiffusionTts) -> list[Modulation]:
    """Compute the scale and the shift of every block, (1, C, 1, 1) each, from the timestep's sinusoids (1, C, 1, 1)."""
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
    """Compute the prediction (B, 200, 1, S) from the noisy mel x (1, 100, 1, S) and ``code`` (B, C, 1, S).

    The caller has multiplied ``code`` by ``SCALE``, but not x.
    """
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
    """Convolve x and ``code`` as if their channels were concatenated.

    The graph convolves them separately, because x is the same for all rows of the batch.
    """
    weight, bias = blocks.kernel(conv)
    of_x, of_code = np.split(weight, [x.shape[1]], axis=1)
    return mb.add(
        x=blocks.conv(s, code, of_code, bias * SCALE), y=blocks.conv(s, x, of_x, None), name=blocks.value_name(name)
    )


def _layer(s: Style, x: Var, layer: DiffusionLayer, time: Modulation, frames: PaddingMask, name: str) -> Var:
    x = _res_block(s, x, layer.resblk, time, frames, f"{name}.resblk")
    return attention_block(s, x, layer.attn, frames, SCALE, f"{name}.attn")


def _res_block(s: Style, x: Var, block: TimestepResBlock, time: Modulation, frames: PaddingMask, name: str) -> Var:
    """Apply a residual block to x (B, C, 1, S), which is multiplied by ``SCALE``."""
    y = mb.silu(x=blocks.group_norm(s, x, block.in_layers["0"], frames, SCALE))
    y = blocks.linear(s, y, block.in_layers["2"], f"{name}.in_layers.2")
    y = mb.silu(x=blocks.group_norm(s, y, block.out_layers["0"], frames, modulation=time))
    y = blocks.same_conv(s, mb.mul(x=y, y=frames.inside), block.out_layers["3"], f"{name}.out_layers.3", SCALE)
    return mb.add(x=x, y=y, name=blocks.value_name(name))
