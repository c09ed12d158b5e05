"""What a kind of model (Tortoise, FastSpeech, Whisper, …) declares, so that bundles and backends need not know it.

A family is the constant ``FAMILY`` of the module ``ane.models.<name>.family``; bundle.json names it.
"""

import importlib
import importlib.util
import os
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from ane.system.errors import UserError

if TYPE_CHECKING:       # torch takes a second to import
    from torch import nn

    from ane.speech.settings import SpeechSettings

DEFAULT_FAMILY = "tortoise"     # of a bundle.json that names none


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of a network, named as in upstream's constructors; the official values are the defaults.

    Attributes:
        without_effect: names of those that do not change what the network computes.
    """

    without_effect: ClassVar[frozenset[str]] = frozenset()

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


class ModelFamily:
    """A kind of model: what bundles, backends and commands ask about it.

    Attributes:
        name: of its folder in ``ane.models``. title: its name in messages.
        networks: by name, in the order in which bundles store them. None of PyTorch: the family runs graphs of its own.
        stages: ``ane.backends.base.ModelStages``: what a backend runs; None: it has a backend of its own.
        settings: class of the settings of a request (``ane.speech.settings``); None: it does not speak.
        speaks_voices: whether a request may name a voice.
        presets: whether a request may name a preset.
        transcribes: whether it has a transcriber.
        import_options: the options of `ane import` that not every family has.
        data: what its bundles contain beside networks and voices: "tokenizer", "mel_norms".
        package_formats: of ``ane.bundles.packages.FORMATS``, those that `ane convert` makes of it.
        usage: the flag or the command that uses a bundle of it, to which the bundle's name is added.
        required_files: official files without which the model cannot be opened.
        extra_files: other files that are used if they are in the same directory.
        repository: the Hugging Face repository with the official checkpoints.
        repositories: regular expression found in the names of repositories of this family; "": any other.
        kept: its networks stay loaded between requests on the CPU too: reading them takes as long as running them.
    """

    name: str
    title: str
    networks: Mapping[str, Network] = MappingProxyType({})
    stages: Any = None
    settings: "type[SpeechSettings] | None" = None
    speaks_voices = presets = transcribes = kept = False
    import_options: frozenset[str] = frozenset()
    data: frozenset[str] = frozenset()
    package_formats: frozenset[str] = frozenset()
    usage = "--bundle"
    required_files: tuple[str, ...] = ()
    extra_files: tuple[str, ...] = ()
    repository = repositories = ""

    # Speaking

    def synthesizer(self, model: Any, backend: Any) -> Any:
        """What ``ane.load`` returns: an ``ane.speech.Speaker``. Raises UserError when the family does not speak."""
        raise UserError(f"{model.name} is a {self.title} model, which cannot speak")

    def transcriber(self, model: Any, backend: Any) -> Any:
        """An object with ``transcribe``. Raises UserError when the family has none."""
        raise UserError(f"{model.name} is a {self.title} model, which transcribes nothing")

    def own_backend(self, model: Any) -> Any:
        """What the synthesizer gets for a backend when the family has no ``stages``."""
        raise NotImplementedError

    def is_random(self, model: Any) -> bool:
        """Whether another seed gives another sound."""
        return False

    def check_option(self, model: Any, name: str) -> None:
        """Raise UserError for an option of a request that has no effect on this model."""
        options = {} if self.settings is None else self.settings.options()
        takes = {"speed": True, "stream": True, "voice": self.speaks_voices, "preset": self.presets,
                 "no_split": "split" in options, "seed": self.is_random(model)}
        if not takes.get(name, name in options):
            raise UserError(f"{name} has no effect on {self.title} models, and {model.name} is one; leave it out", name)

    def voice_widths(self, model: Any) -> tuple[int, int] | None:
        """Widths of the two latents of its voices; None: it has no such voices."""
        return None

    def voice_names(self, model: Any) -> list[str] | None:
        """Names of the voices that are part of the model; None: there are none."""
        return None

    # Opening and importing

    def recognises(self, path: Path) -> bool:
        """Whether a file or a directory is a checkpoint of this family. Raises UserError for a damaged file."""
        return False

    def open_bundle(self, folder: Path) -> Any:
        """The ``ane.bundles.Model`` of a bundle without PyTorch networks; None: that of ``ane.bundles.bundle``."""
        return None

    def open_checkpoints(self, path: Path, arguments: Mapping[str, Any] | None, origin: str, **options: Any) -> Any:
        """The ``ane.bundles.Model`` of checkpoints, which has a ``check()`` that compares every key and shape.

        Args:
            arguments: constructor arguments, or None. origin: of these, for messages.
            options: of ``import_options``, the paths that were given.
        """
        raise NotImplementedError

    def source_files(self, path: Path, **options: Any) -> Mapping[str, Path]:
        """The files of checkpoints, by the name under which their hash is recorded. Arguments as above."""
        raise NotImplementedError

    def write_bundle(self, model: Any, destination: Path, **options: Any) -> Any:
        """``ane.bundles.bundle.write_bundle`` for a family without PyTorch networks."""
        raise NotImplementedError

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Any:
        """The ``ane.bundles.hub.Snapshot`` of a repository; None: the files above are all that it needs."""
        return None

    def check_value(self, name: str, value: Any, official: Any, where: str) -> None:
        """Raise UserError for a JSON value of the wrong kind. ``where`` begins the message."""
        raise UserError(f"a {self.title} model has no PyTorch networks")

    def check_config(self, network: str, config: Any, where: str) -> None:
        """Raise UserError for values that do not describe a network."""
        raise UserError(f"a {self.title} model has no PyTorch networks")

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Every official file, in the order of the networks, then ``extra_files``."""
        return (*dict.fromkeys(network.file for network in self.networks.values()), *self.extra_files)

    def networks_with(self, attribute: str) -> frozenset[str]:
        """Names of the networks for which a flag of ``Network`` is true, such as "quantised"."""
        return frozenset(name for name, network in self.networks.items() if getattr(network, attribute))


def find_family(name: str = DEFAULT_FAMILY) -> ModelFamily:
    """The family of that name. Raises UserError when this version has none."""
    if not name.isidentifier() or not _is_family(name):
        raise UserError(f"no model family is named {name!r} in this version: update tortoise-ane")
    return importlib.import_module(f"ane.models.{name}.family").FAMILY


def families() -> Iterator[ModelFamily]:
    """Every family of this version."""
    models = importlib.util.find_spec("ane.models")
    for module in pkgutil.iter_modules(models.submodule_search_locations if models else ()):
        if _is_family(module.name):
            yield find_family(module.name)


def family_of_checkpoints(path: Path) -> ModelFamily:
    """The family whose checkpoints are at ``path``, by their content; ``DEFAULT_FAMILY`` for any other directory.

    Raises:
        UserError: a file that is damaged, or a checkpoint of no family.
    """
    found = recognised_family(path)
    if found is None and path.is_file():
        raise UserError(f"{path} is a checkpoint of no model that this version knows: FastSpeech's has "
                        "word_emb.weight, Whisper's dims and model_state_dict; for Tortoise give the directory of its "
                        ".pth files")
    return found or find_family()


def recognised_family(path: Path) -> ModelFamily | None:
    """The family that recognises its checkpoints at ``path``; None: no family does."""
    return next((family for family in families() if family.recognises(path)), None) if os.path.exists(path) else None


def family_of_repository(repository: str) -> ModelFamily:
    """The family that a repository of the hub is of, by its name; ``DEFAULT_FAMILY`` when no other knows it."""
    return next((family for family in families()
                 if family.repositories and re.search(family.repositories, repository, re.IGNORECASE)), find_family())


def _is_family(name: str) -> bool:
    package = importlib.util.find_spec(f"ane.models.{name}")
    if package is None or package.submodule_search_locations is None:       # a module, not a folder
        return False
    return importlib.util.find_spec(f"ane.models.{name}.family") is not None
