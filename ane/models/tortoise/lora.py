"""Merge a LoRA, which PEFT stored in its own file, into the weights of a fine-tuned model.

A LoRA adds to the weight of a linear layer the product of two narrow matrices, times a scale (Hu et al. 2021, arXiv
2106.09685).
"""

import hashlib
import os
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ane.bundles.hashes import sha256_of
from ane.bundles.torch_checkpoint import MERGE, SHOWN, load_pickle, read_safetensors, summarise_keys
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import NotFoundError, UserError
from ane.system.files import read_json

NAMES = ("adapter_model.safetensors", "adapter_model.bin")  # files that PEFT writes, next to ``CONFIG``
CONFIG = "adapter_config.json"
KEY = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)(?:\.default)?\.weight")
LAYER_NAME = re.compile(r"[A-Za-z0-9_.]+")
# PEFT's settings that can change more than the product of the factors → values with which they do not
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
    "use_rslora": (True, False, None),
}
# PEFT's other settings: where a LoRA comes from, which layers it changes, how to train it, and its libraries
ORIGIN = {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"}
LAYERS = {"exclude_modules", "layers_pattern", "layers_to_transform", "r", "rank_pattern", "target_modules"}
TRAINING = {"corda_config", "eva_config", "loftq_config", "lora_dropout", "lora_ga_config", "velora_config"}
PLATFORM = {"fan_in_fan_out", "megatron_config", "megatron_core", "qalora_group_size", "runtime_config"}
ACCEPTED = frozenset({"lora_alpha", "alpha_pattern"} | ORIGIN | LAYERS | TRAINING | PLATFORM)


@dataclass(frozen=True)
class LoraAdapter:
    """The changes that a LoRA makes to the weights of layers.

    Attributes:
        path: File of the LoRA.
        factors: Two matrices for each layer. The first has the shape (rank, inputs), and the second (outputs, rank).
            Layers have their names in the official files.
        scales: The scale of the product of the two matrices for each layer.
    """

    path: Path
    factors: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    scales: Mapping[str, float]

    def merged(self, network: str, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights of a network with the changes of the LoRA, in the dtypes of the weights.

        Raises UserError if a change makes a finite weight infinite or NaN.
        """
        result = dict(weights)
        for key, weight in weights.items():
            layer, _, kind = (NETWORKS[network].prefix + key).rpartition(".")
            if kind == "weight" and layer in self.factors and self.shape(layer) == weight.shape:
                result[key] = (weight.float() + self.change(layer)).to(weight.dtype)
                if weight.isfinite().all() and not result[key].isfinite().all():
                    raise UserError(f"{self.path} makes the weight of {layer} infinite or NaN: get the LoRA again")
        return result

    def change(self, layer: str) -> torch.Tensor:
        """Compute the sum to add to the weight of a layer."""
        first, second = (factor.float() for factor in self.factors[layer])
        product = second @ first * self.scales[layer]
        return product.T if is_transposed(layer) else product

    def shape(self, layer: str) -> tuple[int, int]:
        """Return the shape that the weight of a layer has."""
        first, second = self.factors[layer]
        return (first.shape[1], len(second)) if is_transposed(layer) else (len(second), first.shape[1])

    def decoder_md5(self, md5: str) -> str:
        """Return an MD5 that stands for the decoder with the LoRA. ``md5`` stands for the decoder without it."""
        hashes = [sha256_of(file) for file in lora_files(self.path).values()]
        return hashlib.md5("".join((md5, *hashes)).encode(), usedforsecurity=False).hexdigest()

    def check_layers(self, shapes: Mapping[str, Mapping[str, tuple[int, ...]]]) -> None:
        """Check that each layer of the LoRA is a layer of exactly one network.

        Args:
            shapes: Shapes of the model's tensors, by network and key.

        Raises:
            UserError: The LoRA is for another model, or two networks have a layer of the same name and shape.
        """
        named = [
            (network, NETWORKS[network].prefix + key, shape)
            for network, keys in sorted(shapes.items())
            for key, shape in keys.items()
        ]
        for layer in self.factors:
            shape = self.shape(layer)
            known = {network: found for network, name, found in named if name == f"{layer}.weight"}
            fitting = [network for network, found in known.items() if found == shape]
            if not fitting:
                has = " and ".join(map(str, known.values()))
                raise UserError(
                    f"{self.path} is for another model: it changes a weight {shape} of {layer}, but this model has "
                    f"{has or 'no such layer'}"
                )
            if len(fitting) > 1:
                raise UserError(
                    f"{self.path} changes {layer}, and both {' and '.join(fitting)} have a layer of this name and "
                    f"shape: {MERGE}"
                )


def is_transposed(layer: str) -> bool:
    """Return whether a layer of the official files stores its weight as (inputs, outputs), as GPT-2 does."""
    return layer.startswith("gpt.h.")


def lora_files(path: Path) -> dict[str, Path]:
    """Return the files of a LoRA by the names under which bundle.json records their hashes.

    Args:
        path: File with the factors ("lora"), or its folder.

    Raises:
        NotFoundError: A file is missing.
    """
    file = next((path / name for name in NAMES if os.path.isfile(path / name)), path)
    files = {"lora": file, CONFIG: file.parent / CONFIG}
    for needed in files.values():
        if not os.path.isfile(needed):
            raise NotFoundError(f"there is no LoRA at {path}, because {needed} is not a file: name PEFT's folder")
    return files


def read_lora(path: Path) -> LoraAdapter:
    """Read a LoRA from a file that PEFT wrote, or from its folder.

    Raises:
        NotFoundError: There is no LoRA at this path, or no file with its settings next to the LoRA.
        UserError: A file is damaged, or contains more than finite factors of linear layers.
    """
    files = lora_files(path)
    file, config = files["lora"], read_settings(files[CONFIG])
    entries = read_safetensors(file) if file.suffix == ".safetensors" else load_pickle(file)
    others = unusual_settings(config)
    layers: dict[str, dict[str, torch.Tensor]] = {}
    for key, factor in entries.items():
        match = KEY.fullmatch(str(key))
        if match is None or not isinstance(factor, torch.Tensor) or factor.dim() != 2 or not factor.isfinite().all():
            others.append(str(key))
        else:
            layers.setdefault(match[1], {})[match[2]] = factor
    others = others or [
        layer for layer, pair in layers.items() if len(pair) < 2 or not len(pair["A"]) == pair["B"].shape[1] > 0
    ]
    if others or not layers:
        parts = summarise_keys(others, SHOWN) or "it has no factors"
        raise UserError(f"{file} is not a LoRA of linear layers alone ({parts}): {MERGE}")
    factors = {layer: (pair["A"], pair["B"]) for layer, pair in layers.items()}
    return LoraAdapter(file, factors, scales(config, {layer: len(pair[0]) for layer, pair in factors.items()}))


def read_settings(path: Path) -> dict[str, Any]:
    """Read PEFT's settings of a LoRA.

    Raises:
        UserError: The file is not a JSON object, or has an alpha that is not a finite number. Or it names layers by a
            regular expression, which could take years to match.
    """
    config = read_json(path)
    if not isinstance(config, dict) or not is_finite(config.get("lora_alpha")):
        raise UserError(f"{path} must be an object with the finite number lora_alpha, as PEFT writes it")
    alphas = config.get("alpha_pattern") or {}
    if not isinstance(alphas, dict) or not all(map(is_finite, alphas.values())):
        raise UserError(f"{path} must have finite numbers by layer as alpha_pattern, not {reprlib.repr(alphas)}")
    if odd := [name for name in alphas if not LAYER_NAME.fullmatch(name)]:
        raise UserError(
            f"{path} has the alpha_pattern {reprlib.repr(odd[0])}, but `ane` reads only names with letters, digits, "
            f"dots and underscores: {MERGE}"
        )
    return config


def is_finite(value: Any) -> bool:
    """Return whether a value of a JSON file is a number that a float32 can hold."""
    return type(value) in (int, float) and abs(value) <= torch.finfo(torch.float32).max


def unusual_settings(config: Mapping[str, Any]) -> list[str]:
    """List the settings with which PEFT may change more than the product of the factors, and all unknown settings."""
    return [
        f"{name} {reprlib.repr(value)}"
        for name, value in config.items()
        if name not in ACCEPTED and (value not in PLAIN[name] if name in PLAIN else value)
    ]


def scales(config: Mapping[str, Any], ranks: Mapping[str, int]) -> dict[str, float]:
    """Compute the scale of each layer from its rank, as PEFT does.

    The alpha comes from the first name in ``alpha_pattern`` that is the layer's name or the end of that name after a
    dot. As in PEFT, a dot in ``alpha_pattern`` stands for any character.
    """
    alphas = {re.compile(rf"(?:.*\.)?{name}"): alpha for name, alpha in (config.get("alpha_pattern") or {}).items()}
    return {
        layer: next((alpha for name, alpha in alphas.items() if name.fullmatch(layer)), config["lora_alpha"])
        / (rank**0.5 if config.get("use_rslora") else rank)
        for layer, rank in ranks.items()
    }
