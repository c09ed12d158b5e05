"""Describe a model before it is a bundle: importers return it, and ``ane.bundles.writing.write_bundle`` writes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.bundles.surplus import Surplus

if TYPE_CHECKING:  # torch takes a second to import
    import numpy as np
    import torch

    from ane.bundles.package_records import PackageRecord


@dataclass(frozen=True)
class Contents:
    """The parts of a model. All are checked, except the weights, which are read only when they are needed.

    Attributes:
        family: Name of the model's family.
        path: Where the model comes from, for messages. A bundle that would replace this folder is rejected.
        name: Name of the model in messages. "" means the name of the bundle's folder.
        configs: Config dataclass of each network.
        tensors: Function that returns a network's state dict, on the CPU. The writer holds one network at once, so that
            its peak memory is about the size of the largest network.
        precision: Type in which the parameters are stored: "fp32", "fp16" or "bf16".
        trained: Whether the weights were trained. ``False`` means that they are random numbers.
        tokenizer: JSON of Hugging Face ``tokenizers``, if the family has a tokenizer.
        mel_norms: Mel norms, (80,) float32, if the family has them.
        voices: File of each voice, by the voice's name.
        files: Name and content of the further files that the family declares (``ModelFamily.files``), by role.
        default_voice, settings, clones: As in ``ane.bundles.Bundle``.
        licence, description: Texts that the bundle records about itself.
        source: Where the weights came from.
        surplus: Checkpoint entries that are left out.
        notes: Sentences for the user who imports the model.
        packages: Function that writes the model's own packages into a bundle's folder and returns them. If one has the
            file NETWORK.safetensors, the bundle reads that network's weights there.
    """

    family: str
    path: Path
    name: str = ""
    configs: Mapping[str, Any] = field(default_factory=dict)
    tensors: "Callable[[str], dict[str, torch.Tensor]]" = lambda network: {}
    precision: str = "fp32"
    trained: bool = True
    tokenizer: str | None = None
    mel_norms: "np.ndarray | None" = None
    voices: Mapping[str, Path] = field(default_factory=dict)
    files: Mapping[str, tuple[str, Path | bytes]] = field(default_factory=dict)
    default_voice: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    clones: bool = True
    licence: str = ""
    description: str = ""
    source: Mapping[str, Any] = field(default_factory=dict)
    surplus: Surplus = field(default_factory=Surplus)
    notes: Sequence[str] = ()
    packages: "Callable[[Path], Sequence[PackageRecord]]" = lambda folder: ()
