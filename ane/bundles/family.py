"""Declare a kind of model (Tortoise, FastSpeech, Whisper, …), so that bundles and backends need not know it.

A family is the constant ``FAMILY`` in the module ``ane.models.<name>.family``, and bundle.json names it. If the family
speaks, ``SPEAKER`` in ``ane.models.<name>.synthesizer`` is the class that does so.
"""

import importlib
import inspect
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ane.system.errors import UserError

if TYPE_CHECKING:  # torch takes a second to import
    from torch import nn

    from ane.backends.base import ModelStages
    from ane.bundles.contents import Contents
    from ane.speech.settings import SpeechSettings

DEFAULT_FAMILY = "tortoise"  # if bundle.json names no family
MODELS = Path(__file__).parents[1] / "models"


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of a network, named as in upstream's constructors. The official values are the defaults."""

    # names of the hyper-parameters that do not change the network's output
    without_effect: ClassVar[frozenset[str]] = frozenset()
    # (width, number of heads) pairs: attention splits the width evenly among the heads, and no shape depends on it
    split_widths: ClassVar[tuple[tuple[str, str], ...]] = ()
    # names of the hyper-parameters that are ids of tokens or codes, or lists of ids; all others are at least 1
    identifiers: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def from_upstream(cls, arguments: Mapping[str, Any]) -> Self:
        """Select this config's fields from a mapping of upstream constructor arguments (lists become tuples)."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: freeze(value) for name, value in arguments.items() if name in known})

    def check_value(self, name: str, value: Any, where: str) -> None:
        """Raise UserError for a JSON value whose kind differs from this config's. ``where`` begins the message."""
        official = getattr(self, name)
        if not _same_kind(value, official, None if name in self.identifiers else 1):
            raise UserError(f"{where}: {name} must be like {_as_json(official)}, not {_as_json(value)}")

    def check(self, where: str) -> None:
        """Raise UserError for values that have the right kind but do not describe a network."""
        for width, heads in self.split_widths:
            if getattr(self, width) % getattr(self, heads):
                raise UserError(
                    f"{where}: {width} {getattr(self, width)} cannot be split among {getattr(self, heads)} {heads}"
                )


def freeze(value: Any) -> Any:
    """Convert JSON lists to tuples, so that configs stay hashable and compare equal after a round trip."""
    return tuple(freeze(item) for item in value) if isinstance(value, list | tuple) else value


def _same_kind(value: Any, official: Any, minimum: int | None) -> bool:
    if isinstance(official, tuple | list):
        return isinstance(value, tuple | list) and (
            not official or (len(value) > 0 and all(_same_kind(item, official[0], minimum) for item in value))
        )
    if isinstance(official, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return type(value) is type(official) and (minimum is None or not isinstance(value, int) or value >= minimum)


def _as_json(value: Any) -> str:
    return repr(list(value)) if isinstance(value, tuple) else repr(value)


@dataclass(frozen=True)
class Network:
    """One network of a family: its module, its config, its place in the official files, and its precisions."""

    name: str
    definition: "type[nn.Module] | str"  # its class, or "module:class" if the family opens without torch
    config: type[Config]
    file: str  # the official checkpoint that holds it
    prefix: str = ""  # the network's keys start with this in that file
    wrapper: str | None = None  # if set, the file is a dictionary with the parameters under this key
    defaults: tuple[tuple[str, int], ...] = ()  # official arguments that differ from the config's defaults
    # returns the keys that only training needs, with their shapes
    unused: Callable[[Config], dict[str, tuple[int, ...]]] = lambda config: {}
    # may be computed in fp16 or bf16. Other networks are small, run once, or are vocoders, where rounding is audible
    half_precision: bool = False
    quantised: bool = False  # its ONNX weights may be int8 or int4. That is faster, as every code reads all of them
    compressed: bool = False  # its Core ML weights may have 8, 6 or 4 bits
    fp16_package: bool = True  # False if a Core ML package in fp16 is not accurate (UnivNet: 40 dB)
    for_speech: bool = False  # needed to speak. Other networks encode voices or classify
    random: bool = False  # speech with it depends on the seed
    voice_width: Callable[[Any], int] | None = None  # returns the width of the voice's latent. None if it takes none

    @cached_property
    def module(self) -> "type[nn.Module]":
        """The network's class."""
        if not isinstance(self.definition, str):
            return self.definition
        module, _, name = self.definition.partition(":")
        return getattr(importlib.import_module(module), name)

    def official(self) -> Config:
        return self.config(**dict(self.defaults))


class ModelFamily:
    """A kind of model: what bundles, backends and commands need to know about it.

    Everything else that they need follows from its networks, its settings and the open model (``ane.bundles.Bundle``).
    """

    name: str  # name of its folder in ``ane.models``
    title: str  # its name in messages
    # by name, in the order in which bundles store them
    networks: Mapping[str, Network] = MappingProxyType({})
    stages: "ModelStages"  # the computations that a backend runs
    settings: "type[SpeechSettings] | None" = (
        None  # settings of a request, whose fields are its options. None if the family transcribes
    )
    data: frozenset[str] = frozenset()  # further parts of its bundles: "tokenizer", "mel_norms"
    files: tuple[str, ...] = ()  # roles of further files, such as "graph" if the model is one ONNX graph
    extra = ""  # the extra of this package that installs the libraries for such a graph
    repositories = (
        ""  # regular expression that matches part of its repositories' names. "" matches every other repository
    )

    def synthesizer(self, model: Any, backend: Any) -> Any:
        """Return an ``ane.speech.Speaker``, as ``ane.load`` does. Raises UserError if the family does not speak."""
        if self.settings is None:
            raise UserError(
                f"{model.name} is a {self.title} model: it transcribes speech (ane transcribe) and cannot speak"
            )
        # imported here because it imports libraries for sound, which conversions do not need
        return importlib.import_module(f"ane.models.{self.name}.synthesizer").SPEAKER(model, backend)

    def recognises(self, path: Path) -> bool:
        """Return whether a file or directory is a checkpoint of this family. Raises UserError for a damaged file."""
        return False

    def import_checkpoints(self, path: Path, **options: Any) -> "Contents":
        """Read checkpoints, and compare every key and shape.

        A family names the options that it takes as parameters. They are the options of `ane import`.

        Args:
            path: File or directory with the checkpoints.
            config: Upstream's constructor arguments, with ``where`` for messages.
            base: Name or path of a bundle.
            vocoder, voices: Paths.
            precision: Precision of the stored parameters (default: the precision of the checkpoints).
            ignore_unknown: See ``ane.bundles.surplus``.

        Raises:
            UserError: A file is missing, is damaged, belongs to another model, or has unknown entries.
        """
        raise NotImplementedError

    def source_files(self, path: Path, **options: Any) -> Mapping[str, Path]:
        """Return the checkpoint files by the names under which their hashes are recorded. ``options`` has the paths."""
        raise NotImplementedError

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Any:
        """Download a repository as an ``ane.bundles.hub.Snapshot``. ``progress`` is called with each file's name."""
        raise NotImplementedError

    def voice_names(self, model: Any) -> list[str]:
        """Return the names of the voices that are part of a model and are not latents."""
        return []


def import_options(family: ModelFamily, **options: Any) -> dict[str, Any]:
    """Return the options of ``import_checkpoints`` that are not ``None``.

    Raises UserError for an option that the family does not take.
    """
    taken = inspect.signature(family.import_checkpoints).parameters
    for name, value in options.items():
        if value and name not in taken:
            raise UserError(f"{name} has no effect on {family.title} checkpoints: leave it out", name)
    return {name: value for name, value in options.items() if value is not None and name in taken}


def family_names() -> list[str]:
    """Return the family names of this version, ``DEFAULT_FAMILY`` first."""
    return sorted(
        (file.parent.name for file in MODELS.glob("*/family.py")), key=lambda name: (name != DEFAULT_FAMILY, name)
    )


def find_family(name: str = DEFAULT_FAMILY) -> ModelFamily:
    """Return the family with this name. Raises UserError if this version has none."""
    if name not in family_names():
        raise UserError(f"no model family is named {name!r} in this version: update tortoise-ane")
    return importlib.import_module(f"ane.models.{name}.family").FAMILY


def families() -> Iterator[ModelFamily]:
    """Return an iterator over every family of this version."""
    return map(find_family, sorted(family_names()))


def recognised_family(path: Path) -> ModelFamily | None:
    """Return the family that recognises its checkpoints at ``path``, or ``None`` if no family does."""
    return next((family for family in families() if family.recognises(path)), None) if os.path.exists(path) else None


def family_of_repository(repository: str) -> ModelFamily:
    """Return the family of a hub repository, judged by its name, or ``DEFAULT_FAMILY`` if no other family knows it."""
    return next(
        (
            family
            for family in families()
            if family.repositories and re.search(family.repositories, repository, re.IGNORECASE)
        ),
        find_family(),
    )
