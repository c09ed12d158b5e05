"""Merge a LoRA, which PEFT stored in its own file, into the weights of a fine-tuned model.

A LoRA adds to the weight of a linear layer the product of two narrow matrices, times a scale (Hu et al. 2021, arXiv
2106.09685).
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ane.bundles.torch_checkpoint import MERGE, SHOWN, load_pickle, read_safetensors, summarise_keys
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import NotFoundError, UserError
from ane.system.files import read_json

NAMES = ("adapter_model.safetensors", "adapter_model.bin")  # files that PEFT writes, next to ``CONFIG``
CONFIG = "adapter_config.json"
KEY = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)(?:\.default)?\.weight")
# PEFT's settings that change more than the product of the factors → values with which they do not
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "use_dora": (False,),
    "use_qalora": (False,),
    "use_bdlora": (None, False),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}


@dataclass(frozen=True)
class LoraAdapter:
    """The changes that a LoRA makes to the weights of layers.

    Attributes:
        path: File of the LoRA.
        factors: Two matrices for each layer. The first has the shape (rank, inputs), and the second (outputs, rank).
            Layers have their names in the official files.
        config: The settings of PEFT.
    """

    path: Path
    factors: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    config: Mapping[str, Any]

    def merged(self, network: str, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights of a network with the changes of the LoRA, in the dtypes of the weights."""
        result = dict(weights)
        for key, weight in weights.items():
            layer, _, kind = (NETWORKS[network].prefix + key).rpartition(".")
            if kind == "weight" and layer in self.factors:
                result[key] = (weight.float() + self.change(layer)).to(weight.dtype)
        return result

    def change(self, layer: str) -> torch.Tensor:
        """Compute the sum to add to the weight of a layer."""
        first, second = (factor.float() for factor in self.factors[layer])
        alpha = next(
            (
                value
                for name, value in self.config.get("alpha_pattern", {}).items()
                if re.fullmatch(rf"(.*\.)?({name})", layer)
            ),
            self.config["lora_alpha"],
        )
        rank = len(first)
        product = second @ first * (alpha / (rank**0.5 if self.config.get("use_rslora") else rank))
        return product.T if is_transposed(layer) else product

    def check_layers(self, shapes: Mapping[str, Mapping[str, tuple[int, ...]]]) -> None:
        """Raise UserError if the LoRA is for another model.

        Args:
            shapes: Shapes of the model's tensors, by network and key.
        """
        known = {
            NETWORKS[network].prefix + key: shape for network, keys in shapes.items() for key, shape in keys.items()
        }
        for layer, (first, second) in self.factors.items():
            shape = known.get(f"{layer}.weight")
            changed = (len(second), first.shape[1])
            changed = changed[::-1] if is_transposed(layer) else changed
            if shape != changed:
                has = "has no such layer" if shape is None else f"has {tuple(shape)}"
                raise UserError(
                    f"{self.path} is for another model: it changes a weight {changed} of {layer}, but this model {has}"
                )


def is_transposed(layer: str) -> bool:
    """Return whether a layer of the official files stores its weight as (inputs, outputs), as GPT-2 does."""
    return layer.startswith("gpt.h.")


def lora_file(path: Path) -> Path:
    """Return the file of a LoRA. ``path`` is the file or its folder. Raises NotFoundError if there is no such file."""
    file = next((path / name for name in NAMES if os.path.isfile(path / name)), path)
    for needed in (file, file.parent / CONFIG):
        if not os.path.isfile(needed):
            raise NotFoundError(f"there is no LoRA at {path}, because {needed} is not a file: name PEFT's folder")
    return file


def read_lora(path: Path) -> LoraAdapter:
    """Read a LoRA from a file that PEFT wrote, or from its folder.

    Raises:
        NotFoundError: There is no LoRA at this path, or no file with its settings next to the LoRA.
        UserError: A file is damaged, or contains more than finite factors of linear layers.
    """
    file = lora_file(path)
    config = read_json(file.parent / CONFIG)
    if not isinstance(config, dict) or not isinstance(config.get("lora_alpha"), int | float):
        raise UserError(f"{file.parent / CONFIG} must be an object with the number lora_alpha, as PEFT writes it")
    entries = read_safetensors(file) if file.suffix == ".safetensors" else load_pickle(file)
    others = [f"{name} {config[name]!r}" for name, plain in PLAIN.items() if config.get(name, plain[0]) not in plain]
    layers: dict[str, dict[str, torch.Tensor]] = {}
    for key, factor in entries.items():
        match = KEY.fullmatch(str(key))
        if match is None or not isinstance(factor, torch.Tensor) or factor.dim() != 2 or not factor.isfinite().all():
            others.append(str(key))
        else:
            layers.setdefault(match[1], {})[match[2]] = factor
    others = others or [
        layer for layer, pair in layers.items() if len(pair) < 2 or len(pair["A"]) != pair["B"].shape[1]
    ]
    if others or not layers:
        parts = summarise_keys(others, SHOWN) or "it has no factors"
        raise UserError(f"{file} is not a LoRA of linear layers alone ({parts}): {MERGE}")
    return LoraAdapter(file, {layer: (pair["A"], pair["B"]) for layer, pair in layers.items()}, config)
