"""Write files with random weights in the layout of Tortoise's official files, to measure speed and memory.

With --small, the networks are small, and the files take 14 MB instead of 4.1 GB. The folder DIR/lora has a LoRA for
their decoder, as PEFT stores it. Use these files to try how `ane import` reads a fine-tune.

Speed and memory do not depend on the values of weights. The files also have the tensors that only training needs, and
weight norm is split into gain and direction, as in the official files. So importing them takes as long. No weight is
degenerate, such as a projection of zeros, because it would leave a whole branch of a network without effect.
"""

import argparse
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ane.bundles.weights import layout
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.upstream_keys import configs
from ane.system.files import replacing, write_json

WEIGHT_NORM = {"univnet": r"weight$", "hifigan": r"^(?!cond_layer).*weight$"}
STOP_BIAS = 2.5  # is added to the logit of the stop code, so that sampling ends after a few dozen codes
NEVER_BIAS = -20.0  # is added to the logit of a code that must not be sampled, such as the start code
MASK_POSITIONS = 1012  # size of the causal mask that older releases of transformers stored in each layer
# arguments of upstream's classes for the networks of --small, by file
SMALL: Mapping[str, Mapping[str, Any]] = {
    "autoregressive.pth": {"layers": 3, "model_dim": 64, "heads": 4},
    "diffusion_decoder.pth": {"model_channels": 32, "num_layers": 2, "in_latent_channels": 64, "num_heads": 4},
    "clvp2.pth": {
        "dim_text": 32,
        "dim_speech": 32,
        "dim_latent": 32,
        "text_enc_depth": 2,
        "text_heads": 1,
        "speech_enc_depth": 2,
        "speech_heads": 1,
    },
    "vocoder.pth": {"channel_size": 4},
    "bigvgan_24khz_100band.pth": {"upsample_initial_channel": 64},
    "hifidecoder.pth": {"in_channels": 64, "upsample_initial_channel": 32, "cond_channels": 64},
    "source_filter.pth": {"channels": 64, "width": 16, "inner": 32, "layers": 2},
    "mel_source_filter.pth": {"width": 16, "inner": 32, "layers": 2},
    "rlg_auto.pth": {"channels": 64},
    "rlg_diffuser.pth": {"channels": 64},
}


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


def state_dict(file: str, generator: torch.Generator, stops: bool, sizes: Mapping[str, Any]) -> dict:
    """Make the state dict of an official file, with all networks that the file holds.

    ``stops`` says whether the decoder may sample the stop code (``prepare_decoder``), and ``sizes`` has the arguments
    of upstream's classes by file, for networks that do not have the official size.
    """
    state: dict[str, torch.Tensor] = {}
    built = configs(sizes, "sizes")
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


def write_checkpoints(directory: Path, seed: int = 0, stops: bool = True, small: bool = False) -> None:
    """Write every official file and a config.json. Only one file is in memory at once, at most 2.1 GB."""
    sizes = SMALL if small else {}
    for index, file in enumerate(dict.fromkeys(network.file for network in NETWORKS.values())):
        generator = torch.Generator().manual_seed(seed + index)
        with replacing(directory / file) as staging:
            torch.save(state_dict(file, generator, stops, sizes), staging)
    write_json(directory / "config.json", {"trained": False, **sizes})
    if small:
        write_lora(directory / "lora", seed)


def write_lora(folder: Path, seed: int, rank: int = 4) -> None:
    """Write a LoRA with random factors for the attention of the small decoder, in the form of PEFT 0.21."""
    generator, sizes = torch.Generator().manual_seed(seed), SMALL["autoregressive.pth"]
    width, factors = sizes["model_dim"], {}
    for layer in range(sizes["layers"]):
        name = f"base_model.model.gpt.h.{layer}.attn.c_attn"
        for factor, shape in (("A", (rank, width)), ("B", (3 * width, rank))):
            factors[f"{name}.lora_{factor}.weight"] = 0.1 * torch.randn(shape, generator=generator)
    folder.mkdir(exist_ok=True)
    with replacing(folder / "adapter_model.safetensors") as staging:
        save_file(factors, staging, {"format": "pt"})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["c_attn"]}
    write_json(folder / "adapter_config.json", {**config, "fan_in_fan_out": True})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder to write (existing files are replaced)")
    parser.add_argument("--small", action="store_true", help="make the networks small: 14 MB instead of 4.1 GB")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default: 0)")
    parser.add_argument("--no-stop", action="store_true", help="never predict the stop code: every chunk is full")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    write_checkpoints(options.directory, options.seed, stops=not options.no_stop, small=options.small)
    for path in sorted((*options.directory.glob("*.pth"), *options.directory.glob("lora/*.safetensors"))):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
