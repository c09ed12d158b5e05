"""What a kind of model (Tortoise, and others to come) declares, so that bundles and backends need not know it.

A family is the constant ``FAMILY`` of the module ``ane.models.<name>.family``; bundle.json names it.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.system.errors import UserError

if TYPE_CHECKING:       # torch takes a second to import
    from torch import nn

DEFAULT_FAMILY = "tortoise"     # of a bundle.json that names none


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of a network, named as in upstream's constructors; the official values are the defaults."""

    @classmethod
    def from_upstream(cls, arguments):
        """Select this config's fields from a mapping of upstream constructor arguments (lists become tuples)."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: freeze(value) for name, value in arguments.items() if name in known})


def freeze(value):
    """Convert JSON lists to tuples, so that configs stay hashable and compare equal after a round trip."""
    return tuple(freeze(item) for item in value) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Network:
    """One network of a family: its module, its config, where the official files keep it, and its precisions.

    Attributes:
        file: the official checkpoint that holds it. prefix: its keys start with this in that file.
        wrapper: the file is a dictionary and the parameters are under this key.
        defaults: official arguments that differ from the config's defaults.
        unused: returns the keys that only training needs, with their shapes.
        half_precision: computed in fp16 or bf16 when that precision is chosen. The others are small or run once, and
            rounding in a vocoder is audible.
        quantised: its ONNX weights may be int8 or int4, which is faster: all of them are read for every code.
        compressed: its Core ML weights may have 8, 6 or 4 bits.
        fp16_package: False where a Core ML package in fp16 is not accurate enough (UnivNet: 40 dB).
        for_speech: needed to speak; the others encode voices or classify.
    """

    name: str
    module: "type[nn.Module]"
    config: type[Config]
    file: str
    prefix: str = ""
    wrapper: str | None = None
    defaults: tuple[tuple[str, int], ...] = ()
    unused: Callable[[Config], dict[str, tuple[int, ...]]] = lambda config: {}
    half_precision: bool = False
    quantised: bool = False
    compressed: bool = False
    fp16_package: bool = True
    for_speech: bool = False

    def official(self) -> Config:
        return self.config(**dict(self.defaults))


@dataclass(frozen=True)
class ModelFamily:
    """A kind of model.

    Attributes:
        networks: by name, in the order in which bundles store them.
        stages: ``ane.backends.base.ModelStages``: what a backend runs.
        check_value: (name, JSON value, official value, where) raises UserError for a value of the wrong kind.
        check_config: (network, config, where) raises UserError for values that do not describe a network.
        voice_widths: (``ane.bundles.Model``) → widths of the two latents of its voices.
        open_checkpoints: (directory, constructor arguments or None, their origin) → ``ane.bundles.Model``.
        required_files: official checkpoints without which the model cannot speak.
        extra_files: other files that are used if they are in the same directory.
        repository: the Hugging Face repository with the official checkpoints.
    """

    name: str
    networks: Mapping[str, Network]
    stages: Any
    check_value: Callable[[str, Any, Any, str], None]
    check_config: Callable[[str, Any, str], None]
    voice_widths: Callable[[Any], tuple[int, int]]
    open_checkpoints: Callable[[Path, Mapping[str, Any] | None, str], Any]
    required_files: tuple[str, ...]
    extra_files: tuple[str, ...]
    repository: str

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Every official file, in the order of the networks, then ``extra_files``."""
        return (*dict.fromkeys(network.file for network in self.networks.values()), *self.extra_files)

    def networks_with(self, attribute: str) -> frozenset[str]:
        """Names of the networks for which a flag of ``Network`` is true, such as "quantised"."""
        return frozenset(name for name, network in self.networks.items() if getattr(network, attribute))


def find_family(name: str = DEFAULT_FAMILY) -> ModelFamily:
    """The family of that name. Raises UserError when this version has none."""
    module = f"ane.models.{name}.family"
    if not name.isidentifier() or importlib.util.find_spec(f"ane.models.{name}") is None:
        raise UserError(f"no model family is named {name!r} in this version: update tortoise-ane")
    return importlib.import_module(module).FAMILY
