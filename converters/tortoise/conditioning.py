"""Build Core ML graphs of the networks that make a voice's latents, from clips or at random.

The PyTorch networks are in ``ane.models.tortoise.networks.conditioning``. All clips have the same length, so the graphs
need no padding and no mask.
"""

from functools import partial

from ane.models.tortoise.networks.conditioning import ConditioningEncoder, ContextualEmbedder, RandomLatentConverter
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style, Var, mb
from converters.tortoise.attention_block import attention_block

SCALE = 1 / 4  # scale of the residual streams (blocks, principle 7). ``group_norm`` needs no smaller scale
AR_FRAMES = 517  # mel frames in a clip of 132300 samples at 22050 Hz
DIFFUSION_FRAMES = 401  # mel frames in a clip of 102400 samples at 24000 Hz


def ar_conditioning(network: ConditioningEncoder, frames: int = AR_FRAMES) -> CoreMLGraph:
    """Describe the graph mel (1, 80, 1, L) → latent (1, D, 1, 1), which encodes a clip for the autoregressive decoder.

    The latent is the first column of the last block, so the last block computes only this column.
    """

    def body(s: Style, mel: Var) -> dict[str, Var]:
        x = blocks.linear(s, mel, network.init, "init", SCALE)
        for index, block in enumerate(network.attn):
            last = index == len(network.attn) - 1
            x = attention_block(s, x, block, None, SCALE, f"attn.{index}", columns=1 if last else None)
        return {"latent": blocks.scaled(s, x, 1 / SCALE)}

    return CoreMLGraph("ar_conditioning", {"frames": frames}, {"mel": (1, network.mels, 1, frames)}, body)


def diffusion_conditioning(network: ContextualEmbedder, frames: int = DIFFUSION_FRAMES) -> CoreMLGraph:
    """Describe the graph that encodes a clip for the diffusion decoder: mel (1, 100, 1, L) → latent (1, 2C, 1, 1)."""
    first, second, *rest = network

    def body(s: Style, mel: Var) -> dict[str, Var]:
        x = blocks.same_conv(s, blocks.same_conv(s, mel, first, "0"), second, "1", SCALE)
        for index, block in enumerate(rest, 2):
            x = attention_block(s, x, block, None, SCALE, str(index))
        return {"latent": blocks.scaled(s, mb.reduce_mean(x=x, axes=[3], keep_dims=True), 1 / SCALE)}

    return CoreMLGraph("diffusion_conditioning", {"frames": frames}, {"mel": (1, first.in_channels, 1, frames)}, body)


def random_latent(kind: str, network: RandomLatentConverter) -> CoreMLGraph:
    """Describe the graph that makes the latent (1, D, 1, 1) of a random voice from noise (1, D, 1, 1).

    The PyTorch network multiplies the output of a leaky ReLU by √2. The graph multiplies the input by √2 instead. The
    result is the same.
    """
    *equal, last = network.layers

    def body(s: Style, noise: Var) -> dict[str, Var]:
        x = noise
        for index, layer in enumerate(equal):
            x = mb.leaky_relu(
                x=blocks.linear(s, x, layer, scale=2**0.5),
                alpha=s.dtype(0.2),
                name=blocks.value_name(f"layers.{index}"),
            )
        return {"latent": blocks.linear(s, x, last)}

    return CoreMLGraph(kind, {}, {"noise": (1, last.in_features, 1, 1)}, body)


ar_random, diffusion_random = partial(random_latent, "ar_random"), partial(random_latent, "diffusion_random")
