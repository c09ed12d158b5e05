"""Define the interface through which bundles and backends use a family, a kind of model such as Tortoise or Whisper.

Every module ``ane.models.<name>.family`` has a constant ``FAMILY``, and bundle.json contains the family's name. If
models of the family can speak, ``SPEAKER`` in ``ane.models.<name>.synthesizer`` is the class that speaks.
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

from ane.system.errors import NoEffectError, UserError

if TYPE_CHECKING:  # importing torch takes a second
    from torch import nn

    from ane.backends.base import ModelStages
    from ane.bundles.contents import Contents
    from ane.speech.settings import SpeechSettings

DEFAULT_FAMILY = "tortoise"  # family of a bundle whose bundle.json names none
MODELS = Path(__file__).parents[1] / "models"


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of a network. Names and defaults are as in the official constructor."""

    # hyper-parameters that do not change the network's output
    without_effect: ClassVar[frozenset[str]] = frozenset()
    # pairs of hyper-parameters, a width and a number of heads; a width must be a multiple of its number of heads
    split_widths: ClassVar[tuple[tuple[str, str], ...]] = ()
    # hyper-parameters that are ids of tokens or codes, or lists of such ids; all other hyper-parameters are at least 1
    identifiers: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def from_upstream(cls, arguments: Mapping[str, Any]) -> Self:
        """Make a config from official constructor arguments. Lists become tuples, and unknown arguments are ignored."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: freeze(value) for name, value in arguments.items() if name in known})

    def check_value(self, name: str, value: Any, where: str) -> None:
        """Raise UserError if a value from JSON has another type than the official value of this hyper-parameter.

        The message begins with ``where``.
        """
        official = getattr(self, name)
        if not _same_kind(value, official, None if name in self.identifiers else 1):
            raise UserError(f"{where}: {name} must be like {_as_json(official)}, not {_as_json(value)}")

    def check(self, where: str) -> None:
        """Raise UserError if the values have the right kinds but do not describe a network."""
        for width, heads in self.split_widths:
            if getattr(self, width) % getattr(self, heads):
                raise UserError(
                    f"{where}: {width} {getattr(self, width)} cannot be split among {getattr(self, heads)} {heads}"
                )


def freeze(value: Any) -> Any:
    """Convert lists to tuples, so that a config that was read from JSON is hashable and equals the original."""
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
    """One network of a family: its module, its config, the official file that has it, and its precisions."""

    name: str
    definition: "type[nn.Module] | str"  # class, or "module:class" so that torch is imported later
    config: type[Config]
    file: str  # name of the official checkpoint that contains the network
    prefix: str = ""  # prefix of the network's keys in this file
    wrapper: str | None = None  # key under which the file stores the parameters; None means the top level of the file
    defaults: tuple[tuple[str, int], ...] = ()  # official arguments that differ from the config's defaults
    # function that returns the keys that only training needs, with their shapes
    unused: Callable[[Config], dict[str, tuple[int, ...]]] = lambda config: {}
    # whether the network may compute in fp16 or bf16; other networks are small, run once, or round audibly (vocoders)
    half_precision: bool = False
    quantised: bool = (
        False  # whether ONNX weights may be int8 or int4, which is faster for a decoder, whose steps read all weights
    )
    compressed: bool = False  # whether Core ML weights may have 8, 6 or 4 bits
    fp16_package: bool = True  # whether a Core ML package in fp16 is exact enough (UnivNet's is not: 40 dB)
    for_speech: bool = False  # whether speaking needs the network; the other networks encode voices or classify
    random: bool = False  # whether the network's output depends on the seed
    voice_width: Callable[[Any], int] | None = None  # returns the voice latent's width; None if the network takes none

    @cached_property
    def module(self) -> "type[nn.Module]":
        """The class of the network."""
        if not isinstance(self.definition, str):
            return self.definition
        module, _, name = self.definition.partition(":")
        return getattr(importlib.import_module(module), name)

    def official(self) -> Config:
        return self.config(**dict(self.defaults))


class ModelFamily:
    """A kind of model, such as Tortoise, and the facts about it that code cannot read from an open bundle."""

    name: str  # name of the family's folder in ``ane.models``
    title: str  # name of the family in messages
    # networks by name, in the order in which bundles store them
    networks: Mapping[str, Network] = MappingProxyType({})
    stages: "ModelStages"  # network calls that a backend runs
    # class of settings whose fields are the options of a request; None if the family transcribes instead of speaking
    settings: "type[SpeechSettings] | None" = None
    data: frozenset[str] = frozenset()  # whether bundles of the family have a "tokenizer" and "mel_norms"
    files: tuple[str, ...] = ()  # roles of the other files in its bundles, such as "graph" for a single ONNX graph
    extra = ""  # extra of tortoise-ane that installs the libraries for such a graph
    # regular expression that is found in the names of the family's repositories; "" means all repositories that no
    # other family claims
    repositories = ""

    def synthesizer(self, model: Any, backend: Any) -> Any:
        """Create the ``ane.speech.Speaker`` that ``ane.load`` returns.

        Raises UserError if the family does not speak.
        """
        if self.settings is None:
            raise UserError(
                f"{model.name} is a {self.title} model: it transcribes speech (ane transcribe) and cannot speak"
            )
        # imports libraries for sound, which conversions do not need
        return importlib.import_module(f"ane.models.{self.name}.synthesizer").SPEAKER(model, backend)

    def recognises(self, path: Path) -> bool:
        """Return whether a file or directory is a checkpoint of this family. Raises UserError for a damaged file."""
        return False

    def import_checkpoints(self, path: Path, **options: Any) -> "Contents":
        """Read checkpoints, and check that all keys and shapes fit the networks.

        ``options`` are some of the options of `ane import`. A family's method has a parameter for each option that it
        supports:

        Args:
            path: File or directory with the checkpoints.
            config: Official constructor arguments. ``where`` is the name of their file, for messages.
            base: Name or path of a bundle that provides the other networks.
            vocoder, voices: Path of a vocoder's checkpoint, or path of a folder with voices.
            precision: Precision in which to store the parameters (default: the precision of the checkpoints).
            ignore_unknown: Whether to leave unknown entries out (see ``ane.bundles.surplus``).

        Raises:
            UserError: A file is missing, is damaged, belongs to another model, or has unknown entries.
        """
        raise NotImplementedError

    def source_files(self, path: Path, **options: Any) -> Mapping[str, Path]:
        """Return the paths of all checkpoint files by name. bundle.json records their hashes under these names.

        ``options`` are the options of ``import_checkpoints``, some of which are paths.
        """
        raise NotImplementedError

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Any:
        """Download a repository, and return an ``ane.bundles.hub.Snapshot``.

        Args:
            repository: Repository id, "owner/name".
            revision: Branch, tag or commit. ``None`` means main.
            progress: Function that is called with the name of each file before its download.
        """
        raise NotImplementedError

    def voice_names(self, model: Any) -> list[str]:
        """Return the names of a model's voices that are not latents."""
        return []


def import_options(family: ModelFamily, **options: Any) -> dict[str, Any]:
    """Return the options for ``import_checkpoints`` that are not ``None``.

    Raises:
        UserError: The family does not take one of the other options.
    """
    taken = inspect.signature(family.import_checkpoints).parameters
    for name, value in options.items():
        if value and name not in taken:
            raise NoEffectError(name, f"on {family.title} checkpoints", "leave it out")
    return {name: value for name, value in options.items() if value is not None and name in taken}


def family_names() -> list[str]:
    """Return the names of all families in this version, beginning with ``DEFAULT_FAMILY``."""
    return sorted(
        (file.parent.name for file in MODELS.glob("*/family.py")), key=lambda name: (name != DEFAULT_FAMILY, name)
    )


def find_family(name: str = DEFAULT_FAMILY) -> ModelFamily:
    """Return the family with this name. Raises UserError if this version has no such family."""
    if name not in family_names():
        raise UserError(f"no model family is named {name!r} in this version: update tortoise-ane")
    return importlib.import_module(f"ane.models.{name}.family").FAMILY


def families() -> Iterator[ModelFamily]:
    """Return an iterator over all families in this version."""
    return map(find_family, sorted(family_names()))


def recognised_family(path: Path) -> ModelFamily | None:
    """Return the family that recognises the checkpoints at ``path``, or ``None`` if no family recognises them."""
    return next((family for family in families() if family.recognises(path)), None) if os.path.exists(path) else None


def family_of_repository(repository: str) -> ModelFamily:
    """Return the family whose ``repositories`` matches a hub repository's name.

    If none does, return ``DEFAULT_FAMILY``.
    """
    return next(
        (
            family
            for family in families()
            if family.repositories and re.search(family.repositories, repository, re.IGNORECASE)
        ),
        find_family(),
    )
