"""The diffusion decoder as Core ML graphs; reference: ``ane.models.tortoise.networks.diffusion_decoder``.

Three kinds of function. ``condition`` runs once for a chunk: latents and voice → code (upstream's ``code_emb``, not a
discrete code), one column a latent, which the host repeats to frames. ``denoise`` calls the network once. ``sample``
computes several denoising steps in one call (``ane.backends.denoising.DenoisingStep.take``), which saves dispatches;
any sampler works, since its coefficients are inputs.

A guided step has a batch of two, with and without conditioning. What both rows share is computed once: the convolution
of the noisy mel, and all that depends on the timestep, which the host passes as sinusoids (``blocks``, principle 6).

The reference pads convolutions with zeros after the last frame, so the input of a convolution wider than 1 is
multiplied by ``inside``. Norms and attention mask the padding, so its content never reaches a frame of the sequence.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from torch import nn

from ane.backends.denoising import COEFFICIENTS
from ane.models.tortoise.networks.diffusion_decoder import DiffusionLayer, DiffusionTts, TimestepResBlock
from converters import blocks
from converters.blocks import PaddingMask
from converters.coreml.graph import CoreMLGraph, Style, Var, mb

SCALE = 1 / 32          # of the residual streams (blocks, principle 7): squares of 8000 fit, and squares of 0.1 too

Modulation = tuple[Var, Var]        # scale and shift of a block, computed from the timestep, (1, C, 1, 1) each


def condition(network: DiffusionTts, latents: int) -> CoreMLGraph:
    """The part that does not depend on the timestep.

    latents (1, D, 1, N), voice (1, 2C, 1, 1), inside and mean_weight (1, 1, 1, N; ``blocks.PaddingMask``) → code
    (1, C, 1, N). Latents are 0 in the padding.
    """
    config = network.config
    return CoreMLGraph("condition", {"latents": latents},
                       {"latents": (1, config.in_latent_channels, 1, latents),
                        "voice": (1, 2 * config.model_channels, 1, 1), **_padding_inputs(latents)},
                       partial(_condition, network=network))


def denoise(network: DiffusionTts, batch: int, frames: int) -> CoreMLGraph:
    """One call of the network.

    x (1, 100, 1, S), code (B, C, 1, S), time (1, C, 1, 1; ``timestep_embedding`` of the reference), inside and
    mean_weight (1, 1, 1, S) → prediction (B, 200, 1, S).
    """
    config = network.config
    return CoreMLGraph("denoise", {"batch": batch, "frames": frames},
                       {"x": (1, config.in_channels, 1, frames), "code": (batch, config.model_channels, 1, frames),
                        "time": (1, config.model_channels, 1, 1), **_padding_inputs(frames)},
                       partial(_denoise, network=network))


def sample(network: DiffusionTts, steps: int, batch: int, frames: int) -> CoreMLGraph:
    """K denoising steps.

    x and previous_x0 (1, 100, 1, S), code (B, C, 1, S), times (K, C, 1, 1), coefficients (K, 9, 1, 1;
    ``ane.backends.denoising.DenoisingStep.coefficients``), noise (K, 100, 1, S), inside and mean_weight (1, 1, 1, S) →
    next_x and next_previous_x0 (1, 100, 1, S), and the last step's prediction (B, 200, 1, S).
    """
    config = network.config
    mel = (1, config.in_channels, 1, frames)
    return CoreMLGraph("sample", {"steps": steps, "batch": batch, "frames": frames},
                       {"x": mel, "previous_x0": mel, "code": (batch, config.model_channels, 1, frames),
                        "times": (steps, config.model_channels, 1, 1), "coefficients": (steps, COEFFICIENTS, 1, 1),
                        "noise": (steps, *mel[1:]), **_padding_inputs(frames)}, partial(_sample, network=network))


def _padding_inputs(length: int) -> dict[str, tuple[int, ...]]:
    return {"inside": (1, 1, 1, length), "mean_weight": (1, 1, 1, length)}


def _condition(s: Style, latents: Var, voice: Var, inside: Var, mean_weight: Var, *,
               network: DiffusionTts) -> dict[str, Var]:
    frames = PaddingMask.of(s, inside, mean_weight)
    first, *rest = network.latent_conditioner
    x = blocks.same_conv(s, latents, first, "latent_conditioner.0", SCALE)
    for index, block in enumerate(rest, 1):
        x = blocks.attention_block(s, x, block, frames, SCALE, f"latent_conditioner.{index}")
    scale, shift = mb.split(x=voice, num_splits=2, axis=1)
    return {"code": blocks.group_norm(s, x, network.code_norm, frames, SCALE, (scale, shift))}


def _denoise(s: Style, x: Var, code: Var, time: Var, inside: Var, mean_weight: Var, *,
             network: DiffusionTts) -> dict[str, Var]:
    modulations, code = _modulations(s, time, network), blocks.scaled(s, code, SCALE)
    return {"prediction": _network(s, x, code, modulations, PaddingMask.of(s, inside, mean_weight), network)}


def _sample(s: Style, x: Var, previous_x0: Var, code: Var, times: Var, coefficients: Var, noise: Var, inside: Var,
            mean_weight: Var, *, network: DiffusionTts) -> dict[str, Var]:
    frames, code = PaddingMask.of(s, inside, mean_weight), blocks.scaled(s, code, SCALE)
    by_block = (zip(_by_row(scale), _by_row(shift), strict=True) for scale, shift in _modulations(s, times, network))
    by_step = zip(*by_block, strict=True)
    rows = zip(by_step, _by_row(coefficients), _by_row(noise), strict=True)
    for step, (modulations, numbers, step_noise) in enumerate(rows):
        prediction = _network(s, x, code, modulations, frames, network, f"step_{step}.")
        factors = mb.split(x=numbers, num_splits=COEFFICIENTS, axis=1)
        x, previous_x0 = _take(s, x, previous_x0, prediction, factors, step_noise)
    return {"next_x": x, "next_previous_x0": previous_x0, "prediction": prediction}


def _take(s: Style, x: Var, previous_x0: Var, prediction: Var, numbers: Sequence[Var], noise: Var) -> tuple[Var, Var]:
    """A step of ``ane.backends.denoising.DenoisingStep.take``; ``numbers`` are (1, 1, 1, 1) each.

    Returns the next x and this step's x0.
    """
    (conditional, unconditional, x0_from_x, x0_from_prediction, next_from_x, next_from_x0, next_from_previous_x0,
     noise_scale, variance_slope) = numbers
    rows = _by_row(prediction)
    mean, variance = mb.split(x=rows[0], num_splits=2, axis=1)
    if len(rows) == 2:
        unguided, _ = mb.split(x=rows[1], num_splits=2, axis=1)
        mean = _sum((mean, conditional), (unguided, unconditional))
    x0 = mb.clip(x=_sum((x, x0_from_x), (mean, x0_from_prediction)), alpha=s.dtype(-1), beta=s.dtype(1))
    deviation = mb.mul(x=mb.exp(x=mb.mul(x=variance, y=variance_slope)), y=noise_scale)
    return _sum((x, next_from_x), (x0, next_from_x0), (previous_x0, next_from_previous_x0), (noise, deviation)), x0


def _sum(*products: tuple[Var, Var]) -> Var:
    """The sum of the products x · y."""
    first, *others = (mb.mul(x=x, y=y) for x, y in products)
    for other in others:
        first = mb.add(x=first, y=other)
    return first


def _by_row(x: Var) -> Sequence[Var]:
    """(B, …) → B values of (1, …)."""
    return [x] if x.shape[0] == 1 else mb.split(x=x, num_splits=x.shape[0], axis=0)


def _blocks(network: DiffusionTts) -> Iterator[TimestepResBlock]:
    """The blocks that the timestep modulates, in order."""
    for layer in (*network.conditioning_timestep_integrator, *network.layers):
        yield layer.resblk if isinstance(layer, DiffusionLayer) else layer


def _modulations(s: Style, time: Var, network: DiffusionTts) -> list[Modulation]:
    """Sinusoids of K timesteps (K, C, 1, 1) → the scales and shifts (K, C, 1, 1 each) of every block."""
    first, _, second = network.time_embed
    time = blocks.linear(s, mb.silu(x=blocks.linear(s, time, first)), second, "time_embed")
    time = mb.silu(x=time)
    return [tuple(mb.split(x=blocks.linear(s, time, block.emb_layers["1"]), num_splits=2, axis=1))
            for block in _blocks(network)]


def _network(s: Style, x: Var, code: Var, modulations: Sequence[Modulation], frames: PaddingMask, network: DiffusionTts,
             prefix: str = "") -> Var:
    """Noisy mel (1, 100, 1, S), code (B, C, 1, S) scaled by ``SCALE`` → prediction (B, 200, 1, S).

    ``prefix``: of the names of the values.
    """
    time = iter(modulations)
    for index, layer in enumerate(network.conditioning_timestep_integrator):
        code = _layer(s, code, layer, next(time), frames, f"{prefix}conditioning_timestep_integrator.{index}")
    x = blocks.same_conv(s, mb.mul(x=x, y=frames.inside), network.inp_block, f"{prefix}inp_block", SCALE)
    x = _integrated(s, x, code, network.integrating_conv, f"{prefix}integrating_conv")
    for index, layer in enumerate(network.layers):
        block = _layer if isinstance(layer, DiffusionLayer) else _res_block
        x = block(s, x, layer, next(time), frames, f"{prefix}layers.{index}")
    norm, _, last = network.out
    x = mb.silu(x=blocks.group_norm(s, x, norm, frames, SCALE))
    return blocks.same_conv(s, mb.mul(x=x, y=frames.inside), last, f"{prefix}out")


def _integrated(s: Style, x: Var, code: Var, conv: nn.Conv1d, name: str) -> Var:
    """The convolution of x and code concatenated, computed apart because x is the same for all rows."""
    weight, bias = blocks.kernel(conv)
    of_x, of_code = np.split(weight, [x.shape[1]], axis=1)
    return mb.add(x=blocks.conv(s, code, of_code, bias * SCALE), y=blocks.conv(s, x, of_x, None),
                  name=blocks.value_name(name))


def _layer(s: Style, x: Var, layer: DiffusionLayer, time: Modulation, frames: PaddingMask, name: str) -> Var:
    x = _res_block(s, x, layer.resblk, time, frames, f"{name}.resblk")
    return blocks.attention_block(s, x, layer.attn, frames, SCALE, f"{name}.attn")


def _res_block(s: Style, x: Var, block: TimestepResBlock, time: Modulation, frames: PaddingMask, name: str) -> Var:
    """x (B, C, 1, S), scaled by ``SCALE``, → the same."""
    y = mb.silu(x=blocks.group_norm(s, x, block.in_layers["0"], frames, SCALE))
    y = blocks.linear(s, y, block.in_layers["2"], f"{name}.in_layers.2")
    y = mb.silu(x=blocks.group_norm(s, y, block.out_layers["0"], frames, modulation=time))
    y = blocks.same_conv(s, mb.mul(x=y, y=frames.inside), block.out_layers["3"], f"{name}.out_layers.3", SCALE)
    return mb.add(x=x, y=y, name=blocks.value_name(name))
