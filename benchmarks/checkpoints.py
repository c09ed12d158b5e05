"""Write files with random weights in the layout of Tortoise's official files, to measure speed and memory.

Speed and memory do not depend on the values of weights. The files also have the tensors that only training needs, and
weight norm is split into gain and direction, as in the official files. So importing them takes as long. No weight is
degenerate, such as a projection of zeros, because it would leave a whole branch of a network without effect. The files
take 4.1 GB.
"""

import argparse
import math
import re
from pathlib import Path

import torch

from ane.bundles.weights import layout
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.upstream_keys import configs
from ane.system.files import replacing, write_json

WEIGHT_NORM = {"univnet": r"weight$", "hifigan": r"^(?!cond_layer).*weight$"}
STOP_BIAS = 2.5  # is added to the logit of the stop code, so that sampling ends after a few dozen codes
NEVER_BIAS = -20.0  # is added to the logit of a code that must not be sampled, such as the start code
MASK_POSITIONS = 1012  # size of the causal mask that older releases of transformers stored in each layer


def initialised(network: str, key: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if key.endswith("inv_freq"):  # a constant, not a parameter
        return 10000.0 ** -(torch.arange(shape[0]) / shape[0])
    mean, deviation = scale(network, key, shape)
    return mean + deviation * torch.randn(shape, generator=generator)


def scale(network: str, key: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return the mean and the standard deviation with which to draw a parameter.

    They are upstream's initial values, except that a parameter which upstream sets to a constant gets a small
    deviation.
    """
    if key == "temperature":
        return 1.0, 0.0
    if len(shape) == 1:
        return (0.0, 0.05) if key.endswith("bias") else (1.0, 0.1)  # a bias, or the gains of a norm
    if re.match(r"rlg_.*layers\.[0-4]\.", f"{network}.{key}"):
        return 0.0, 10.0  # EqualLinear scales its weight by 1/10
    if key == "unconditioned_embedding":
        return 0.0, 1.0  # upstream's initial value
    if re.search(r"^gpt\.|emb", key):
        return 0.0, 0.02  # GPT-2 (Radford et al. 2019)
    return 0.0, (3 * math.prod(shape[1:])) ** -0.5  # torch's default for linear layers


def state_dict(file: str, generator: torch.Generator, stops: bool) -> dict:
    """Make the state dict of an official file, with all networks that the file holds.

    ``stops`` says whether the decoder may sample the stop code (``prepare_decoder``).
    """
    state: dict[str, torch.Tensor] = {}
    built = configs({}, "sizes")
    for network in NETWORKS.values():
        if network.file != file:
            continue
        config = built[network.name]
        for key, shape in {**layout(network, config).shapes, **network.unused(config)}.items():
            state[network.prefix + key] = initialised(network.name, key, shape, generator)
        for key in [key for key in state if re.search(WEIGHT_NORM.get(network.name, r"^$"), key)]:
            split_weight_norm(state, key)
        if network.name == "autoregressive":
            prepare_decoder(state, config, stops)
    wrapper = next(network.wrapper for network in NETWORKS.values() if network.file == file)
    return {wrapper: state} if wrapper else state


def split_weight_norm(state: dict[str, torch.Tensor], key: str) -> None:
    """Replace a weight by its direction and its gain, as torch.nn.utils.weight_norm stores them."""
    weight = state.pop(key)
    state[f"{key}_g"] = torch.linalg.vector_norm(weight, dim=tuple(range(1, weight.dim())), keepdim=True)
    state[f"{key}_v"] = weight


def prepare_decoder(state: dict[str, torch.Tensor], config, stops: bool) -> None:
    """Make the decoder sample the stop code early, or never, and add unused buffers as in the official file."""
    state["mel_head.bias"][config.stop_mel_token] += STOP_BIAS if stops else NEVER_BIAS
    state["mel_head.bias"][config.start_mel_token] += NEVER_BIAS
    mask = torch.ones(MASK_POSITIONS, MASK_POSITIONS, dtype=torch.uint8).tril()[None, None]  # all layers share it
    for layer in range(config.layers):
        state[f"gpt.h.{layer}.attn.bias"] = mask
        state[f"gpt.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)


def write_checkpoints(directory: Path, seed: int = 0, stops: bool = True) -> None:
    """Write every official file and a config.json. Only one file is in memory at once, at most 2.1 GB."""
    for index, file in enumerate(dict.fromkeys(network.file for network in NETWORKS.values())):
        generator = torch.Generator().manual_seed(seed + index)
        with replacing(directory / file) as staging:
            torch.save(state_dict(file, generator, stops), staging)
    write_json(directory / "config.json", {"trained": False})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder to write (existing files are replaced)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default: 0)")
    parser.add_argument("--no-stop", action="store_true", help="never predict the stop code: every chunk is full")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    write_checkpoints(options.directory, options.seed, stops=not options.no_stop)
    for path in sorted(options.directory.glob("*.pth")):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
