"""The interface that a bundle and a directory of official checkpoints both implement."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ane.bundles.family import DEFAULT_FAMILY, ModelFamily, find_family
from ane.system.errors import UserError
from ane.system.file_gate import read_regular
from ane.system.files import MAX_JSON

if TYPE_CHECKING:       # torch takes a second to import, and every command's --help imports this module
    import numpy as np
    import torch


class Model(ABC):
    """Configs, weights, tokenizer and mel norms of one model. A network's weights are read when they are asked for.

    Attributes:
        kind: name of its family.
        name: what messages call it.
        networks: names (of ``family.networks``) of the networks it has.
        precision: "fp32", "fp16" or "bf16", the type its parameters are stored in.
        trained: False when the weights are random numbers.
        default_voice: the voice to speak with when none is named; of a model of one voice, what it is called.
        voices: directory of the voices that come with it, or None.
        settings: synthesis settings that replace upstream's for this model; see ``Settings.of``.
        clones: whether clips of any speaker give that speaker's voice; False for a model trained on few speakers.
    """

    kind: str = DEFAULT_FAMILY
    name: str
    networks: frozenset[str]
    precision: str
    trained: bool
    default_voice: str = ""
    voices: Path | None = None
    settings: Mapping[str, Any] = MappingProxyType({})
    clones: bool = True

    @cached_property
    def family(self) -> ModelFamily:
        return find_family(self.kind)

    @property
    @abstractmethod
    def identity(self) -> str:
        """Hexadecimal digest that changes when weights or configs do; a key for caches."""

    @abstractmethod
    def config(self, network: str) -> Any:
        """The config dataclass of a network. Raises UserError when the model lacks the network."""

    @abstractmethod
    def tensors(self, network: str) -> "dict[str, torch.Tensor]":
        """Exactly the network's state dict, on the CPU, memory-mapped where the file allows it: do not write to it.

        Raises:
            UserError: the model lacks the network, or its file is damaged or does not fit the config.
        """

    @property
    def decoder_md5(self) -> str:
        """MD5 of the official file of the decoder, by which forks name latents; "" if it is not known."""
        return ""

    @property
    def tokenizer(self) -> str:
        """The tokenizer as Hugging Face ``tokenizers`` JSON. Raises UserError when its family has none."""
        raise self.lacks("tokenizer")

    @property
    def mel_norms(self) -> "np.ndarray":
        """(80,) float32: divisors of the decoder's log-mel conditioning, band by band (upstream data/mel_norms.pth).
        Raises UserError when its family has none."""
        raise self.lacks("mel norms")

    @property
    def widths(self) -> tuple[int, int]:
        """Widths of the two latents of a voice: the decoder's D and the diffusion decoder's C = 2 × its channels."""
        widths = [network.voice_width(self.config(name)) for name, network in self.family.networks.items()
                  if network.voice_width]
        if not widths:
            raise self.lacks("voices")
        return widths[0], widths[1]

    @property
    def has_latents(self) -> bool:
        """Whether its voices are pairs of latents, which it can make of clips."""
        return any(network.voice_width for network in self.family.networks.values())

    @property
    def voice_names(self) -> list[str]:
        """Names of the voices that are part of the model."""
        return []

    @property
    def takes_voices(self) -> bool:
        """Whether a request may name a voice."""
        return self.has_latents or bool(self.voice_names)

    @property
    def presets(self) -> Sequence[str]:
        """Names of settings that a request may choose."""
        return self.family.settings.presets if self.family.settings else ()

    @property
    def is_random(self) -> bool:
        """Whether another seed gives another sound."""
        return any(self.family.networks[name].random for name in self.networks)

    def lacks(self, part: str) -> UserError:
        """The error for a part that its family does not have."""
        return UserError(f"{self.name} is a {self.family.title} model, which has no {part}")

    def require(self, network: str) -> None:
        """Raise UserError, naming upstream's file, when the model lacks ``network``."""
        if network not in self.family.networks:
            raise self.lacks(f"{network} network")
        if network not in self.networks:
            file = self.family.networks[network].file
            raise UserError(f"{self.name} has no {network} network: {file} was not among its checkpoints; "
                            "add that file and, for a bundle, import again")


def read_tokenizer(path: Path) -> str:
    """Read a tokenizer's JSON as text, without padding and truncation, which could demand any length.

    Raises:
        UserError: the file holds anything else, or a normaliser on whose damaged tables the library aborts.
    """
    try:
        text = read_regular(path, MAX_JSON).decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 (byte {error.start}): import or copy it again") from error
    try:
        content = json.loads(text)
        known = isinstance(content["model"]["vocab"], dict)
    except (KeyError, TypeError, ValueError, RecursionError):
        known = False
    if not known:
        raise UserError(f"{path} is not a tokenizer.json of Hugging Face tokenizers (no model.vocab in it)")
    if '"Precompiled"' in json.dumps(content.get("normalizer")):
        raise UserError(f"{path} has a normaliser of the kind Precompiled, which no model of this version uses: take "
                        "the tokenizer.json that came with the model")
    lengths = {"padding": None, "truncation": None}
    return text if content == content | lengths else json.dumps(content | lengths)
