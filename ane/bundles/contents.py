"""A model before it is a bundle: what an importer returns and ``ane.bundles.writing.write_bundle`` writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.bundles.surplus import Surplus

if TYPE_CHECKING:  # torch takes a second to import
    import numpy as np
    import torch

    from ane.bundles.packages import PackageRecord


@dataclass(frozen=True)
class Contents:
    """The parts of a model, all checked, except that weights are read when they are asked for.

    Attributes:
        family: Name of its family.
        path: Where it comes from, for messages. A bundle that would replace this folder is refused.
        name: Its name in messages; "": that of the bundle's folder.
        configs: The config dataclass of each network.
        tensors: Returns the state dict of a network, on the CPU. The writer holds one network at a time, so that its
            peak memory is about that of the largest network.
        precision: Type in which the parameters are stored: "fp32", "fp16" or "bf16".
        trained: Whether the weights are other than random numbers.
        tokenizer: JSON of Hugging Face ``tokenizers``, where the family has one.
        mel_norms: (80,) float32, where the family has them.
        voices: The file of each voice by name.
        files: Name and content of the further files that the family declares (``ModelFamily.files``), by role.
        default_voice, settings, clones: See ``ane.bundles.Bundle``.
        licence, description: What the bundle says of itself.
        source: Where the weights came from.
        surplus: The entries of checkpoints that are left out.
        notes: Sentences for whoever imports it.
        packages: Writes the model's own packages into the folder of a bundle, and returns them. If one has the file
            NETWORK.safetensors, the bundle reads the weights of that network there.
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
