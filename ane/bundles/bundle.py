"""Open a bundle, which is a directory with one model.

Every model on disk is a bundle. You can copy it, check its files against recorded hashes, and load one network of it. A
bundle has these files:

    bundle.json                    manifest: lists all files and configs (manifest.py)
    weights/<network>.safetensors  state dict of a network, with weight norm folded in. (An int8 tensor has a
                                   scale next to it.)
    tokenizer.json                 tokenizer for Hugging Face ``tokenizers``, if this kind of model has one
    mel_norms.safetensors          mel_norms (80,) float32, if this kind of model has mel norms
    voices/<name>.safetensors      voices that come with the model
    config.json, *.onnx, *.npz     files of a model that is one ONNX graph
    packages/<name>.mlpackage      Core ML packages of networks (package_records.py)
    packages/<name>.onnx/          ONNX packages of networks (package_records.py)
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from ane.bundles.contents import Contents
from ane.bundles.family import ModelFamily, find_family
from ane.bundles.hashes import FileRecord, check_hash, check_hashes, check_size, identity_of, size_and_time
from ane.bundles.manifest import MANIFEST_FILE, read_manifest
from ane.bundles.package_records import FORMATS, NAMES, read_section
from ane.bundles.tokenizer_json import read_tokenizer
from ane.system import paths
from ane.system.errors import UserError

if TYPE_CHECKING:  # importing torch takes a second, and the --help of every command imports this module
    import torch


class Bundle:
    """An open bundle. The constructor reads bundle.json and compares the size of every file.

    The SHA-256 of a file is checked when the file is first used, and the result is remembered (``hashes.check_hash``).
    Tensors are memory-mapped.

    Attributes:
        path: Directory of the bundle.
        name: Name of the bundle for messages.
        networks: Names of the networks in the bundle, a subset of ``family.networks``.
        precision: Number format of the stored parameters: "fp32", "fp16" or "bf16".
        trained: Whether the weights were trained. ``False`` means that they are random numbers.
        default_voice: Name of the voice that speaks if a request names no voice. If the model has only one voice, this
            is its name.
        settings: Synthesis settings that replace the official ones for this model (see ``TortoiseSettings.of``).
        clones: Whether the model can copy any speaker's voice from clips. ``False`` means that it was trained on only a
            few speakers.
        packages, onnx_packages: Packages for Core ML and for ONNX Runtime.

    Raises:
        UserError: The bundle does not exist. Or bundle.json is damaged or comes from a newer version. Or a file is
            missing or truncated.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self.packages, self.onnx_packages = (
            read_section(self.manifest.sections, str(self.path / MANIFEST_FILE), self.manifest.networks, name)
            for name in FORMATS
        )
        for file in self.files:
            check_size(self.path, file)
        self.name, self.precision = self.manifest.name, self.manifest.precision
        self.networks = frozenset(self.manifest.networks)
        self.trained = self.manifest.trained
        self.default_voice = self.manifest.default_voice
        self.settings: Mapping[str, Any] = self.manifest.settings
        self.clones = self.manifest.clones

    @cached_property
    def family(self) -> ModelFamily:
        return find_family(self.manifest.family)

    @property
    def identity(self) -> str:
        """A digest (hex) of the model, to use as a cache key.

        The digest changes whenever a weight or a config changes.
        """
        manifest = self.manifest
        if manifest.files:  # earlier versions stored the sounds of a job under this key
            return identity_of([(file.file, *size_and_time(self.path / file.file)) for file in manifest.files.values()])
        parts = [
            [
                name,
                network.sha256,
                {
                    key: value
                    for key, value in asdict(network.config).items()
                    if key not in network.config.without_effect
                },
            ]
            for name, network in manifest.networks.items()
        ]
        content = json.dumps([sorted(parts), *(file.sha256 for file in manifest.data_files)])
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def files(self) -> list[FileRecord]:
        """The records of all files in the bundle except bundle.json."""
        return [
            *self.manifest.all_files,
            *(file for package in (*self.packages, *self.onnx_packages) for file in package.files),
        ]

    @property
    def voices(self) -> Path | None:
        """The directory of the voices, or ``None`` if the bundle has no voices. The property first checks all voices.

        Raises:
            UserError: A voice is missing or damaged, or the directory has a voice that bundle.json does not list.
        """
        if not self.manifest.voices:
            return None
        check_hashes(self.path, self.manifest.voices.values())
        directory = self.path / "voices"
        named = {self.path / voice.file for voice in self.manifest.voices.values()}
        for entry in sorted(directory.glob("[!.]*")):
            if entry not in named:
                raise UserError(f"{entry} is not in bundle.json: remove it, or add your voice with `ane voices add`")
        return directory

    def config(self, network: str) -> Any:
        """Return the config dataclass of a network. Raises UserError if the model lacks the network."""
        self.require(network)
        return self.manifest.networks[network].config

    def tensors(self, network: str) -> "dict[str, torch.Tensor]":
        """Read the state dict of a network, on the CPU. Do not write to its tensors, because they may be memory-mapped.

        Raises:
            UserError: The model lacks the network, or its file is damaged or does not fit the config.
        """
        from ane.bundles.weights import check_layout, expanded  # imports torch

        self.require(network)
        known = self.manifest.networks[network]
        check_hash(self.path, known)
        path = self.path / known.file
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                check_layout(path, self.family.networks[network], known.config, file)
                return expanded({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118 (no mapping)
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{path} cannot be read as safetensors ({error}), so it is truncated or damaged: "
                "import or copy the bundle again"
            ) from error

    def file(self, role: str) -> Path:
        """Return the path of a file that the family declares in ``ModelFamily.files``, after checking the file.

        Raises:
            UserError: The file is missing or damaged.
        """
        check_hash(self.path, self.manifest.files[role])
        return self.path / self.manifest.files[role].file

    @property
    def decoder_md5(self) -> str:
        """The MD5 of the decoder's official checkpoint, or "" if it is unknown.

        Forks of Tortoise put the first characters of this MD5 into the names of files with latents. If the import
        merged a LoRA into the decoder, the MD5 depends on the LoRA too.
        """
        md5 = self.manifest.source.get("decoder_md5")
        return md5 if isinstance(md5, str) else ""

    @property
    def tokenizer(self) -> str:
        """The tokenizer, as JSON for Hugging Face ``tokenizers``. Raises UserError if the family has no tokenizer."""
        if self.manifest.tokenizer is None:
            raise self.lacks("tokenizer")
        check_hash(self.path, self.manifest.tokenizer)
        return read_tokenizer(self.path / self.manifest.tokenizer.file)

    @property
    def mel_norms(self) -> np.ndarray:
        """Numbers by which the bands of the decoder's conditioning log-mel are divided, (80,) float32.

        The official file is data/mel_norms.pth. Raises UserError if the family has no mel norms.
        """
        if self.manifest.mel_norms is None:
            raise self.lacks("mel norms")
        check_hash(self.path, self.manifest.mel_norms)
        path = self.path / self.manifest.mel_norms.file
        try:
            with safe_open(path, framework="np") as file:
                norms = file.get_tensor("mel_norms")
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} has no mel_norms ({error}): import or copy the bundle again") from error
        if norms.shape != (80,) or norms.dtype != np.float32:
            raise UserError(f"{path}: mel_norms must be 80 values of float32, not {norms.dtype} {norms.shape}")
        return norms

    @property
    def widths(self) -> tuple[int, int]:
        """The widths of a voice's two latents.

        The widths are D for the decoder and C for the diffusion decoder, where C is twice the diffusion decoder's
        channels.
        """
        widths = [
            network.voice_width(self.config(name))
            for name, network in self.family.networks.items()
            if network.voice_width
        ]
        if not widths:
            raise self.lacks("voices")
        return widths[0], widths[1]

    @property
    def has_latents(self) -> bool:
        """Whether a voice of this model is a pair of latents, which the model can compute from clips."""
        return any(network.voice_width for network in self.family.networks.values())

    @property
    def voice_names(self) -> list[str]:
        """The names of the voices that are part of the model."""
        return self.family.voice_names(self)

    @property
    def takes_voices(self) -> bool:
        """Whether a request may name a voice."""
        return self.has_latents or bool(self.voice_names)

    def is_only_voice(self, name: Any) -> bool:
        """Return whether the model has only one voice and ``name`` is the name of this voice.

        A request to such a model may give this name, but need not.
        """
        return not self.takes_voices and bool(name) and isinstance(name, str) and name == self.default_voice

    @property
    def presets(self) -> Sequence[str]:
        """The names of the presets that a request may choose from."""
        return self.family.settings.presets if self.family.settings else ()

    @property
    def uses_seed(self) -> bool:
        """Whether the sound depends on the seed of a request."""
        return any(self.family.networks[name].random for name in self.networks)

    def lacks(self, part: str) -> UserError:
        """Create the error which says that this kind of model does not have a part, such as "tokenizer"."""
        return UserError(f"{self.name} is a {self.family.title} model, which has no {part}")

    def lacks_packages(self, format: str, otherwise: str = "") -> UserError:
        """Create the error for a bundle that has no packages in a format.

        Args:
            format: Format of the packages, a key of ``package_records.NAMES``.
            otherwise: Advice for users who do not want to make packages.
        """
        if not self.networks:
            return UserError(
                f"{self.name} is a {self.family.title} model, for which `ane convert` makes no {NAMES[format]} "
                "packages" + (f": {otherwise}" if otherwise else "")
            )
        embedded = self.path.parent == Path(str(resources.files("ane").joinpath("demo")))
        known = self.name if embedded else self.path.name if self.path.parent == paths.bundles_dir() else ""
        return UserError(
            f"{self.name} has no {NAMES[format]} packages: make them with `ane convert {known or self.path} --to "
            f"{format} -o DIR` and open that bundle" + (f", or {otherwise}" if otherwise else "")
        )

    def require(self, network: str) -> None:
        """Raise UserError if the bundle lacks ``network``. The message names the official file that has the network."""
        if network not in self.family.networks:
            raise self.lacks(f"{network} network")
        if network not in self.networks:
            file = self.family.networks[network].file
            raise UserError(
                f"{self.name} has no {network} network, because {file} was not among its checkpoints: "
                "add that file and import again"
            )

    def contents(self) -> Contents:
        """Return everything in the bundle except its packages, for a function that writes another bundle."""
        manifest, data = self.manifest, self.family.data
        return Contents(
            manifest.family,
            self.path,
            self.name,
            {name: self.config(name) for name in manifest.networks},
            self.tensors,
            self.precision,
            self.trained,
            self.tokenizer if "tokenizer" in data else None,
            self.mel_norms if "mel_norms" in data else None,
            {path.stem: path for path in sorted(self.voices.glob("*.safetensors"))} if self.voices else {},
            {role: (record.file, self.file(role)) for role, record in manifest.files.items()},
            self.default_voice,
            self.settings,
            self.clones,
            manifest.licence,
            manifest.description,
            manifest.source,
        )

    def verify(self) -> None:
        """Hash every file and compare it with bundle.json. Raises UserError for the first file that differs."""
        for file in self.files:
            check_hash(self.path, file, recompute=True)
        for network in self.networks:
            self.tensors(network)
