"""Networks in training as a ``Model``: backends run them, and a bundle is written from them."""

from pathlib import Path

import numpy as np
from torch import Tensor, nn

from ane.bundles import Model
from ane.bundles.family import Config
from ane.models.fastspeech.family import FAMILY as FASTSPEECH
from training.fast_recipe import FAST_CONFIGS
from training.recipe import CONFIGS, SETTINGS, tokenizer_json


class TrainedFastSpeech(Model):
    """The networks of a training run of the fast voice."""

    name, trained, precision = "demo-fast", True, "fp32"
    networks, identity = frozenset(FAST_CONFIGS), "in training"
    default_voice, voices, clones = "", None, False
    family = FASTSPEECH

    def __init__(self, modules: dict[str, nn.Module]):
        self.modules = modules

    def config(self, network: str) -> Config:
        return FAST_CONFIGS[network]

    def tensors(self, network: str) -> dict[str, Tensor]:
        return tensors_of(self.modules[network])


class TrainedModel(Model):
    """The networks of a training run."""

    name, trained, precision = "demo", True, "fp32"
    networks, identity = frozenset(CONFIGS), "in training"
    settings, clones = SETTINGS, False

    def __init__(self, modules: dict[str, nn.Module], mel_norms: np.ndarray, default_voice: str,
                 voices: Path | None = None):
        self.modules, self.norms, self.default_voice, self.voices = modules, mel_norms, default_voice, voices

    def config(self, network: str) -> Config:
        return CONFIGS[network]

    def tensors(self, network: str) -> dict[str, Tensor]:
        return tensors_of(self.modules[network])

    @property
    def tokenizer(self) -> str:
        return tokenizer_json()

    @property
    def mel_norms(self) -> np.ndarray:
        return self.norms


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    return {key: tensor.detach().cpu().contiguous() for key, tensor in module.state_dict().items()}
