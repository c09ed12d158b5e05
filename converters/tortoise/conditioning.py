"""The encoders of reference clips and the converters of noise, channels first; twin of ``ane.models.tortoise.networks.conditioning``.

Clips have one length, so there is no padding and no mask: a bucket is the true length.
"""

from functools import partial

from ane.models.tortoise.networks.conditioning import ConditioningEncoder, ContextualEmbedder, RandomLatentConverter
from converters import blocks as layers
from converters.coreml.graph import Graph, Style, Var, mb

SCALE = 1 / 32                  # of the residual streams (layers, principle 7)
AR_FRAMES = 517                 # of a clip of 132300 samples at 22050 Hz
DIFFUSION_FRAMES = 401          # of a clip of 102400 samples at 24000 Hz


def ar_conditioning(twin: ConditioningEncoder, frames: int = AR_FRAMES) -> Graph:
    """mel (1, 80, 1, L) → latent (1, D, 1, 1)."""
    return Graph("ar_conditioning", {"frames": frames}, {"mel": (1, twin.mels, 1, frames)},
                 partial(_ar_conditioning, twin=twin))


def diffusion_conditioning(twin: ContextualEmbedder, frames: int = DIFFUSION_FRAMES) -> Graph:
    """mel (1, 100, 1, L) → latent (1, 2C, 1, 1)."""
    return Graph("diffusion_conditioning", {"frames": frames}, {"mel": (1, twin[0].in_channels, 1, frames)},
                 partial(_diffusion_conditioning, twin=twin))


def ar_random(twin: RandomLatentConverter) -> Graph:
    """noise (1, D, 1, 1) → latent (1, D, 1, 1)."""
    return _random("ar_random", twin)


def diffusion_random(twin: RandomLatentConverter) -> Graph:
    """noise (1, 2C, 1, 1) → latent (1, 2C, 1, 1)."""
    return _random("diffusion_random", twin)


def _random(kind: str, twin: RandomLatentConverter) -> Graph:
    return Graph(kind, {}, {"noise": (1, twin.layers[-1].in_features, 1, 1)}, partial(_random_latent, twin=twin))


def _ar_conditioning(s: Style, mel: Var, *, twin: ConditioningEncoder) -> dict[str, Var]:
    """Only the first place is asked for, so the last block computes no other."""
    x = layers.linear(s, mel, twin.init, "init", SCALE)
    for index, block in enumerate(twin.attn):
        last = index == len(twin.attn) - 1
        x = layers.attention_block(s, x, block, None, SCALE, f"attn.{index}", places=1 if last else None)
    return {"latent": layers.scaled(s, x, 1 / SCALE)}


def _diffusion_conditioning(s: Style, mel: Var, *, twin: ContextualEmbedder) -> dict[str, Var]:
    first, second, *blocks = twin
    x = layers.same_conv(s, layers.same_conv(s, mel, first, "0"), second, "1", SCALE)
    for index, block in enumerate(blocks, 2):
        x = layers.attention_block(s, x, block, None, SCALE, str(index))
    return {"latent": layers.scaled(s, mb.reduce_mean(x=x, axes=[3], keep_dims=True), 1 / SCALE)}


def _random_latent(s: Style, noise: Var, *, twin: RandomLatentConverter) -> dict[str, Var]:
    """A leaky ReLU times √2 is that of √2 times its input."""
    *equal, last = twin.layers
    x = noise
    for index, layer in enumerate(equal):
        x = mb.leaky_relu(x=layers.linear(s, x, layer, scale=2 ** 0.5), alpha=s.dtype(0.2),
                          name=layers.spelt(f"layers.{index}"))
    return {"latent": layers.linear(s, x, last)}
