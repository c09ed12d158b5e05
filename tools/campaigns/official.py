"""Compare MLX's networks with torch's in float32 at the official sizes.

Run ``python -m tools.campaigns official -o FILE``. The weights are random, with the spread that GPT-2 starts from. This
takes 4 GB of memory and some minutes.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ane.backends.decoding import Decoder
from ane.backends.mlx.backend import NumpyTensors, diffusion, gpt
from ane.backends.mlx.decoder import MlxDecoder
from ane.backends.mlx.diffusion import MlxDenoiser
from ane.backends.mlx.layers import mlx_precision
from ane.backends.mlx.owner import on_owner
from ane.backends.torch.backend import TorchDenoiser
from ane.backends.torch.decoder import TorchDecoder
from ane.bundles.weights import skeleton
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.networks.diffusion_decoder import DiffusionConfig
from ane.system.decibels import snr_db
from tests.random_model import draw

LANES, CAPACITY, PREFIXES, LONGEST = 4, 30, 2, 40
FRAMES, CODES = 256, 60


def random_network(
    name: str, config: UnifiedVoiceConfig | DiffusionConfig
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Make a network with random weights from a fixed seed. Return it with its state dict."""
    generator, network = torch.Generator().manual_seed(1), skeleton(NETWORKS[name], config)
    tensors = {key: draw(key, parameter, generator) for key, parameter in network.named_parameters()}
    if isinstance(config, UnifiedVoiceConfig):  # GPT-2: branches of the residual stream start small
        for key, tensor in tensors.items():
            tensor *= (2 * config.layers) ** -0.5 if key.endswith("c_proj.weight") else 1
    network.load_state_dict(tensors, strict=False, assign=True)
    for module in network.modules():
        if hasattr(module, "two_pass"):
            module.two_pass = True
    return network.eval().requires_grad_(False), tensors


def schedule(decoder: Decoder, width: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Run prefixes, steps, copied lanes, a step of several columns and rewound lanes. Return their outputs."""
    random = np.random.default_rng(0)
    answers = [
        decoder.prefill(random.standard_normal((20 + 9 * index, width), np.float32), index) for index in range(PREFIXES)
    ]
    two = np.array([0, 1, 0, 1])
    for step in range(6):
        answers.append(decoder.step(random.standard_normal((4, 1, width), np.float32), np.full(4, step), 0, two))
    decoder.copy_lanes(np.array([2, 3, 0, 0]), 6)
    answers.append(
        decoder.step(random.standard_normal((4, 7, width), np.float32), np.full(4, 6), 0, np.array([0, 1, 0, 0]))
    )
    answers.append(decoder.step(random.standard_normal((4, 1, width), np.float32), np.array([3, 9, 6, 2]), 0, two))
    return answers


@torch.inference_mode()
def decoder_decibels() -> dict[str, dict[str, float]]:
    config = UnifiedVoiceConfig()
    network, tensors = random_network("autoregressive", config)
    size = LANES, CAPACITY
    expected = schedule(
        TorchDecoder(network, *size, torch.device("cpu"), torch.float32, PREFIXES, LONGEST), config.model_dim
    )
    found = {}
    for name in ("fp32", "fp16", "8bit", "4bit"):
        laid_out = on_owner(gpt)(NumpyTensors(tensors), config, mlx_precision(name))
        answers = schedule(MlxDecoder(laid_out, *size, PREFIXES, LONGEST), config.model_dim)
        found[name] = {
            part: round(min(snr_db(one[index], other[index]) for one, other in zip(expected, answers, strict=True)), 1)
            for index, part in enumerate(("hidden", "logits"))
        }
    return found


@torch.inference_mode()
def denoiser_decibels() -> dict[str, dict[str, float]]:
    config, random = DiffusionConfig(), np.random.default_rng(1)
    network, tensors = random_network("diffusion", config)
    latents = random.standard_normal((1, CODES, config.in_latent_channels), np.float32)
    voice = random.standard_normal((1, 2 * config.model_channels), np.float32)
    noisy = [random.standard_normal((1, config.in_channels, FRAMES), np.float32)]
    [expected] = TorchDenoiser(network, [torch.from_numpy(latents)], torch.from_numpy(voice), [FRAMES])(
        noisy, 700, True
    )
    found = {}
    for name in ("fp32", "fp16"):
        laid_out = on_owner(diffusion)(NumpyTensors(tensors), config, mlx_precision(name))
        [output] = MlxDenoiser(laid_out, latents, voice, FRAMES)(noisy, 700, True)
        found[name] = {
            row: round(snr_db(expected[index], output[index]), 1)
            for index, row in enumerate(("conditional", "unconditional"))
        }
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="JSON file to write")
    output = parser.parse_args(arguments).output
    results = {"decibels to torch in float32": {"decoder": decoder_decibels(), "denoiser": denoiser_decibels()}}
    output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0
