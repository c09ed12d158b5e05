"""The encoders of clips and the random latent converters as Core ML graphs.

Reference: ``ane.models.tortoise.networks.conditioning``. Clips have one length, so there is no padding and no mask.
"""

from functools import partial

from ane.models.tortoise.networks.conditioning import ConditioningEncoder, ContextualEmbedder, RandomLatentConverter
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style, Var, mb
from converters.tortoise.attention_block import attention_block

SCALE = 1 / 4                   # of the residual streams (blocks, principle 7); group norms take squares of any size
AR_FRAMES = 517                 # of a clip of 132300 samples at 22050 Hz
DIFFUSION_FRAMES = 401          # of a clip of 102400 samples at 24000 Hz


def ar_conditioning(network: ConditioningEncoder, frames: int = AR_FRAMES) -> CoreMLGraph:
    """mel (1, 80, 1, L) → latent (1, D, 1, 1)."""
    return CoreMLGraph("ar_conditioning", {"frames": frames}, {"mel": (1, network.mels, 1, frames)},
                       partial(_ar_conditioning, network=network))


def diffusion_conditioning(network: ContextualEmbedder, frames: int = DIFFUSION_FRAMES) -> CoreMLGraph:
    """mel (1, 100, 1, L) → latent (1, 2C, 1, 1)."""
    return CoreMLGraph("diffusion_conditioning", {"frames": frames}, {"mel": (1, network[0].in_channels, 1, frames)},
                       partial(_diffusion_conditioning, network=network))


def ar_random(network: RandomLatentConverter) -> CoreMLGraph:
    """noise (1, D, 1, 1) → latent (1, D, 1, 1)."""
    return _random("ar_random", network)


def diffusion_random(network: RandomLatentConverter) -> CoreMLGraph:
    """noise (1, 2C, 1, 1) → latent (1, 2C, 1, 1)."""
    return _random("diffusion_random", network)


def _random(kind: str, network: RandomLatentConverter) -> CoreMLGraph:
    return CoreMLGraph(kind, {}, {"noise": (1, network.layers[-1].in_features, 1, 1)},
                       partial(_random_latent, network=network))


def _ar_conditioning(s: Style, mel: Var, *, network: ConditioningEncoder) -> dict[str, Var]:
    """Only the first column is read, so the last block computes no other."""
    x = blocks.linear(s, mel, network.init, "init", SCALE)
    for index, block in enumerate(network.attn):
        last = index == len(network.attn) - 1
        x = attention_block(s, x, block, None, SCALE, f"attn.{index}", columns=1 if last else None)
    return {"latent": blocks.scaled(s, x, 1 / SCALE)}


def _diffusion_conditioning(s: Style, mel: Var, *, network: ContextualEmbedder) -> dict[str, Var]:
    first, second, *rest = network
    x = blocks.same_conv(s, blocks.same_conv(s, mel, first, "0"), second, "1", SCALE)
    for index, block in enumerate(rest, 2):
        x = attention_block(s, x, block, None, SCALE, str(index))
    return {"latent": blocks.scaled(s, mb.reduce_mean(x=x, axes=[3], keep_dims=True), 1 / SCALE)}


def _random_latent(s: Style, noise: Var, *, network: RandomLatentConverter) -> dict[str, Var]:
    """√2 times a leaky ReLU equals the leaky ReLU of √2 times its input."""
    *equal, last = network.layers
    x = noise
    for index, layer in enumerate(equal):
        x = mb.leaky_relu(x=blocks.linear(s, x, layer, scale=2 ** 0.5), alpha=s.dtype(0.2),
                          name=blocks.value_name(f"layers.{index}"))
    return {"latent": blocks.linear(s, x, last)}
