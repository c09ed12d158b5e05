"""Describe a model that is not a bundle yet. Importers return a ``Contents``, and ``write_bundle`` writes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.bundles.surplus import Surplus

if TYPE_CHECKING:  # importing torch takes a second
    import numpy as np
    import torch

    from ane.bundles.package_records import PackageRecord


@dataclass(frozen=True)
class Contents:
    """A model as the importer passes it to the writer of a bundle, checked except for the values of the weights.

    Attributes:
        family: Name of the model's family.
        path: File or folder of the original model, for messages. It must not be replaced by the bundle.
        name: Name of the model for messages. "" means the name of the bundle's folder.
        configs: Config dataclass of each network.
        tensors: Function that reads the state dict of a network, on the CPU. The writer holds only one network in
            memory, so its peak memory is about the size of the largest network.
        precision: Number format of the stored parameters: "fp32", "fp16" or "bf16".
        trained: Whether the weights were trained. ``False`` means that they are random numbers.
        tokenizer: Tokenizer, as JSON for Hugging Face ``tokenizers``, if the family has a tokenizer.
        mel_norms: Mel norms, (80,) float32, if the family has mel norms.
        voices: Path of each voice's file, by name of the voice.
        files: Name and content of each file that the family declares in ``ModelFamily.files``, by role.
        default_voice, settings, clones: See ``ane.bundles.Bundle``.
        licence, description: Licence and description of the model, for bundle.json.
        source: Origin of the weights, for bundle.json.
        surplus: Entries and files of the checkpoints that the import leaves out.
        notes: Sentences to show to the user who imports the model.
        packages: Function that writes the packages that come with the model into the bundle's folder, and returns their
            records. If such a package has the file NETWORK.safetensors, the bundle reads the weights of this network
            from there.
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
