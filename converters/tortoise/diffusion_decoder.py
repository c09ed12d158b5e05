"""The diffusion decoder, channels first; twin of ``ane.models.tortoise.networks.diffusion_decoder``.

Three kinds. ``condition`` runs once for an utterance: latents and voice to the code, one column a latent; the host
repeats the columns to frames. ``denoise`` is one call of the network. ``sample`` is several denoising steps in one call
(``ane.models.tortoise.diffusion.take``), whatever the sampler, for its numbers are inputs: a call costs a dispatch however small it is.

A guided step has a batch of two, with and without conditioning. What both rows share is computed once: the noisy mel's
convolution, and all that depends on the timestep, which the host gives as sinusoids (``layers``, principle 6).

A convolution over neighbours must see zeros beyond the last frame, as the twin does, so its input is multiplied by
``inside``. Norms and attention leave the padding out by themselves: what stands there never reaches a true frame.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from torch import nn

from ane.models.tortoise.networks.diffusion_decoder import DiffusionLayer, DiffusionTts, ResBlock
from ane.models.tortoise.networks.layers import AttentionBlock
from converters import blocks as layers
from converters.blocks import Frames
from converters.coreml.graph import Graph, Style, Var, mb

SCALE = 1 / 32          # of the residual streams (layers, principle 7): squares of 8000 fit, and squares of 0.1 too
COEFFICIENTS = 9        # of a step: ane.backends.base.Step.coefficients

Modulation = tuple[Var, Var]        # a block's scale and shift by the timestep, (1, C, 1, 1) each


def condition(twin: DiffusionTts, latents: int) -> Graph:
    """What no timestep changes.

    latents (1, D, 1, N), voice (1, 2C, 1, 1), inside and share (1, 1, 1, N; ``layers.Frames``) → code (1, C, 1, N).
    Latents are zero outside.
    """
    config = twin.config
    return Graph("condition", {"latents": latents},
                 {"latents": (1, config.in_latent_channels, 1, latents), "voice": (1, 2 * config.model_channels, 1, 1),
                  **_places(latents)}, partial(_condition, twin=twin))


def denoise(twin: DiffusionTts, batch: int, frames: int) -> Graph:
    """The network once.

    x (1, 100, 1, S), code (B, C, 1, S), time (1, C, 1, 1: ``ane.models.tortoise.networks.diffusion_decoder.timestep_embedding``), inside and
    share (1, 1, 1, S) → prediction (B, 200, 1, S).
    """
    config = twin.config
    return Graph("denoise", {"batch": batch, "frames": frames},
                 {"x": (1, config.in_channels, 1, frames), "code": (batch, config.model_channels, 1, frames),
                  "time": (1, config.model_channels, 1, 1), **_places(frames)}, partial(_denoise, twin=twin))


def sample(twin: DiffusionTts, steps: int, batch: int, frames: int) -> Graph:
    """K denoising steps.

    x (1, 100, 1, S), before (1, 100, 1, S), code (B, C, 1, S), times (K, C, 1, 1), coefficients (K, 9, 1, 1:
    ``ane.backends.base.Step.coefficients``), noise (K, 100, 1, S), inside and share (1, 1, 1, S) → next_x and next_before
    (1, 100, 1, S), and the last step's prediction (B, 200, 1, S).
    """
    config = twin.config
    mel = (1, config.in_channels, 1, frames)
    return Graph("sample", {"steps": steps, "batch": batch, "frames": frames},
                 {"x": mel, "before": mel, "code": (batch, config.model_channels, 1, frames),
                  "times": (steps, config.model_channels, 1, 1), "coefficients": (steps, COEFFICIENTS, 1, 1),
                  "noise": (steps, *mel[1:]), **_places(frames)}, partial(_sample, twin=twin))


def _places(length: int) -> dict[str, tuple[int, ...]]:
    return {"inside": (1, 1, 1, length), "share": (1, 1, 1, length)}


def _condition(s: Style, latents: Var, voice: Var, inside: Var, share: Var, *, twin: DiffusionTts) -> dict[str, Var]:
    frames = Frames.of(s, inside, share)
    first, *blocks = twin.latent_conditioner
    x = layers.same_conv(s, latents, first, "latent_conditioner.0", SCALE)
    for index, block in enumerate(blocks, 1):
        x = layers.attention_block(s, x, block, frames, SCALE, f"latent_conditioner.{index}")
    scale, shift = mb.split(x=voice, num_splits=2, axis=1)
    return {"code": layers.group_norm(s, x, twin.code_norm, frames, SCALE, (scale, shift))}


def _denoise(s: Style, x: Var, code: Var, time: Var, inside: Var, share: Var, *, twin: DiffusionTts) -> dict[str, Var]:
    blocks = _modulations(s, time, twin)
    return {"prediction": _network(s, x, layers.scaled(s, code, SCALE), blocks, Frames.of(s, inside, share), twin)}


def _sample(s: Style, x: Var, before: Var, code: Var, times: Var, coefficients: Var, noise: Var, inside: Var,
            share: Var, *, twin: DiffusionTts) -> dict[str, Var]:
    frames, code = Frames.of(s, inside, share), layers.scaled(s, code, SCALE)
    by_step = zip(*(zip(_by_row(scale), _by_row(shift), strict=True) for scale, shift in _modulations(s, times, twin)),
                  strict=True)
    rows = zip(by_step, _by_row(coefficients), _by_row(noise), strict=True)
    for step, (modulations, numbers, drawn) in enumerate(rows):
        prediction = _network(s, x, code, modulations, frames, twin, f"step_{step}.")
        x, before = _take(s, x, before, prediction, mb.split(x=numbers, num_splits=COEFFICIENTS, axis=1), drawn)
    return {"next_x": x, "next_before": before, "prediction": prediction}


def _take(s: Style, x: Var, before: Var, prediction: Var, numbers: Sequence[Var], noise: Var) -> tuple[Var, Var]:
    """A step as ``ane.models.tortoise.diffusion.take`` has it; ``numbers`` are (1, 1, 1, 1) each. Returns the next x and this x0."""
    conditional, unconditional, x0_from_x, x0_from_prediction, next_from_x, next_from_x0, next_from_previous_x0, size, spread = numbers
    rows = _by_row(prediction)
    said, variance = mb.split(x=rows[0], num_splits=2, axis=1)
    if len(rows) == 2:
        without, _ = mb.split(x=rows[1], num_splits=2, axis=1)
        said = _sum((said, conditional), (without, unconditional))
    x0 = mb.clip(x=_sum((x, x0_from_x), (said, x0_from_prediction)), alpha=s.dtype(-1), beta=s.dtype(1))
    deviation = mb.mul(x=mb.exp(x=mb.mul(x=variance, y=spread)), y=size)
    return _sum((x, next_from_x), (x0, next_from_x0), (before, next_from_previous_x0), (noise, deviation)), x0


def _sum(*products: tuple[Var, Var]) -> Var:
    """The sum of products."""
    first, *others = (mb.mul(x=x, y=y) for x, y in products)
    for other in others:
        first = mb.add(x=first, y=other)
    return first


def _by_row(x: Var) -> Sequence[Var]:
    """(B, …) → B times (1, …)."""
    return [x] if x.shape[0] == 1 else mb.split(x=x, num_splits=x.shape[0], axis=0)


def _blocks(twin: DiffusionTts) -> Iterator[ResBlock]:
    """All that the timestep modulates, in their order."""
    for layer in (*twin.conditioning_timestep_integrator, *twin.layers):
        yield layer.resblk if isinstance(layer, DiffusionLayer) else layer


def _modulations(s: Style, time: Var, twin: DiffusionTts) -> list[Modulation]:
    """Sinusoids of K timesteps (K, C, 1, 1) → the scales and shifts (K, C, 1, 1 each) of every block."""
    first, _, second = twin.time_embed
    time = layers.linear(s, mb.silu(x=layers.linear(s, time, first)), second, "time_embed")
    time = mb.silu(x=time)
    return [tuple(mb.split(x=layers.linear(s, time, block.emb_layers["1"]), num_splits=2, axis=1))
            for block in _blocks(twin)]


def _network(s: Style, x: Var, code: Var, modulations: Sequence[Modulation], frames: Frames, twin: DiffusionTts,
             prefix: str = "") -> Var:
    """Noisy mel (1, 100, 1, S), code (B, C, 1, S) of ``SCALE`` → prediction (B, 200, 1, S). ``prefix`` of names."""
    time = iter(modulations)
    for index, layer in enumerate(twin.conditioning_timestep_integrator):
        code = _layer(s, code, layer, next(time), frames, f"{prefix}conditioning_timestep_integrator.{index}")
    x = layers.same_conv(s, mb.mul(x=x, y=frames.inside), twin.inp_block, f"{prefix}inp_block", SCALE)
    x = _integrated(s, x, code, twin.integrating_conv, f"{prefix}integrating_conv")
    for index, layer in enumerate(twin.layers):
        block = _layer if isinstance(layer, DiffusionLayer) else _res_block
        x = block(s, x, layer, next(time), frames, f"{prefix}layers.{index}")
    norm, _, last = twin.out
    x = mb.silu(x=layers.group_norm(s, x, norm, frames, SCALE))
    return layers.same_conv(s, mb.mul(x=x, y=frames.inside), last, f"{prefix}out")


def _integrated(s: Style, x: Var, code: Var, twin: nn.Conv1d, name: str) -> Var:
    """The convolution of x and code, one above the other: of each on its own, as x is the same for all rows."""
    weight, bias = layers.kernel(twin)
    of_x, of_code = np.split(weight, [x.shape[1]], axis=1)
    return mb.add(x=layers.conv(s, code, of_code, bias * SCALE), y=layers.conv(s, x, of_x, None),
                  name=layers.spelt(name))


def _layer(s: Style, x: Var, twin: DiffusionLayer, time: Modulation, frames: Frames, name: str) -> Var:
    x = _res_block(s, x, twin.resblk, time, frames, f"{name}.resblk")
    attn: AttentionBlock = twin.attn
    return layers.attention_block(s, x, attn, frames, SCALE, f"{name}.attn")


def _res_block(s: Style, x: Var, twin: ResBlock, time: Modulation, frames: Frames, name: str) -> Var:
    """x (B, C, 1, S) of ``SCALE`` → the same."""
    y = mb.silu(x=layers.group_norm(s, x, twin.in_layers["0"], frames, SCALE))
    y = layers.linear(s, y, twin.in_layers["2"], f"{name}.in_layers.2")
    y = mb.silu(x=layers.group_norm(s, y, twin.out_layers["0"], frames, modulation=time))
    y = layers.same_conv(s, mb.mul(x=y, y=frames.inside), twin.out_layers["3"], f"{name}.out_layers.3", SCALE)
    return mb.add(x=x, y=y, name=layers.spelt(name))
