"""A bundle: one model in one directory that can be copied, checked and loaded lazily.

    bundle.json                    its content (manifest.py)
    weights/<network>.safetensors  the network's state dict, weight norm folded in; int8 with a scale beside each tensor
    tokenizer.json                 Hugging Face tokenizers, where the family has one
    mel_norms.safetensors          mel_norms (80,) float32, where the family has them
    voices/<name>.safetensors      voices that come with it
    packages/<name>.mlpackage      Core ML packages of the networks (packages.py)
    packages/<name>.onnx/          ONNX packages of the networks (packages.py)
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from ane.bundles.family import Network
from ane.bundles.hashes import FileRecord, check_hash, check_hashes, check_size
from ane.bundles.manifest import MANIFEST_FILE, read_manifest
from ane.bundles.model import Model, read_tokenizer
from ane.bundles.packages import FORMATS, read_section
from ane.bundles.weights import SCALE, expanded, layout, shape_text
from ane.system.errors import UserError


class Bundle(Model):
    """A bundle on disk. Opening it reads bundle.json and looks at the size of every file.

    A file's SHA-256 is checked when the file is first used, and remembered (``hashes.check_hash``); tensors are
    memory-mapped. ``packages`` are those of Core ML, ``onnx_packages`` those of ONNX.

    Raises:
        UserError: no bundle there, bundle.json damaged or too new, a file missing or truncated.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self.packages, self.onnx_packages = (
            read_section(self.manifest.sections, str(self.path / MANIFEST_FILE), self.manifest.networks, name)
            for name in FORMATS)
        for file in self.files:
            check_size(self.path, file)
        self.kind, self.name, self.precision = self.manifest.family, self.manifest.name, self.manifest.precision
        self.networks = frozenset(self.manifest.networks)
        self.trained = self.manifest.trained
        self.default_voice = self.manifest.default_voice
        self.settings = self.manifest.settings
        self.clones = self.manifest.clones

    @property
    def identity(self) -> str:
        manifest = self.manifest
        parts = [[name, network.sha256, {key: value for key, value in asdict(network.config).items()
                                                 if key not in network.config.without_effect}]
                 for name, network in manifest.networks.items()]
        content = json.dumps([sorted(parts), *(file.sha256 for file in manifest.data_files)])
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def files(self) -> list[FileRecord]:
        return [*self.manifest.files,
                *(file for package in (*self.packages, *self.onnx_packages) for file in package.files)]

    @property
    def voices(self) -> Path | None:
        """The directory of its voices, each checked, or None when it has none. Raises UserError: a voice is missing or
        damaged, or bundle.json does not list one that is there."""
        if not self.manifest.voices:
            return None
        check_hashes(self.path, self.manifest.voices.values())
        directory = self.path / "voices"
        named = {self.path / voice.file for voice in self.manifest.voices.values()}
        for entry in sorted(directory.glob("[!.]*")):
            if entry not in named:
                raise UserError(f"{entry} is not in bundle.json: remove it; add a voice of your own with "
                                "`ane voices add`")
        return directory

    def config(self, network: str) -> Any:
        self.require(network)
        return self.manifest.networks[network].config

    def tensors(self, network: str) -> dict[str, torch.Tensor]:
        self.require(network)
        known = self.manifest.networks[network]
        check_hash(self.path, known)
        path = self.path / known.file
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                _check_layout(path, self.family.networks[network], known.config, file)
                return expanded({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118 (no mapping)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} cannot be read as safetensors ({error}): it is truncated or damaged; "
                            "import or copy the bundle again") from error

    @property
    def decoder_md5(self) -> str:
        stated = self.manifest.source.get("decoder_md5")
        return stated if isinstance(stated, str) else ""

    @property
    def tokenizer(self) -> str:
        if self.manifest.tokenizer is None:
            raise self.lacks("tokenizer")
        check_hash(self.path, self.manifest.tokenizer)
        return read_tokenizer(self.path / self.manifest.tokenizer.file)

    @property
    def mel_norms(self) -> np.ndarray:
        if self.manifest.mel_norms is None:
            raise self.lacks("mel norms")
        check_hash(self.path, self.manifest.mel_norms)
        path = self.path / self.manifest.mel_norms.file
        try:
            with safe_open(path, framework="np") as file:
                norms = file.get_tensor("mel_norms")
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} has no mel_norms ({error}); import or copy the bundle again") from error
        if norms.shape != (80,) or norms.dtype != np.float32:
            raise UserError(f"{path}: mel_norms must be 80 values of float32, not {norms.dtype} {norms.shape}")
        return norms

    def verify(self) -> None:
        """Read every file and compare it with bundle.json. Raises UserError for the first that differs."""
        for file in self.files:
            check_hash(self.path, file, recompute=True)
        for network in self.networks:
            self.tensors(network)


def _check_layout(path: Path, network: Network, config: Any, file: Any) -> None:
    """Compare keys, shapes and dtypes of an open safetensors file with the network that ``config`` gives."""
    shapes, keys = layout(network, config).shapes, set(file.keys())
    scales = {key for key in keys if key.endswith(SCALE) and key.removesuffix(SCALE) in shapes} - set(shapes)
    keys -= scales
    missing, surplus = sorted(set(shapes) - keys), sorted(keys - set(shapes))
    if missing or surplus:
        fault = f"{missing[0]} is missing" if missing else f"{surplus[0]} does not belong to this network"
        raise UserError(f"{path} does not fit the {network.name} network of bundle.json: {fault}; import it again")
    for key, shape in shapes.items():
        view = file.get_slice(key)
        if tuple(view.get_shape()) != shape:
            raise UserError(f"{path}: {key} has shape {shape_text(tuple(view.get_shape()))}, the network of "
                            f"bundle.json has {shape_text(shape)}; import it again")
        if view.get_dtype() not in ("F32", "F16", "BF16", *(("I8",) if f"{key}{SCALE}" in scales else ())):
            raise UserError(f"{path}: {key} is {view.get_dtype()}, weights are F32, F16, BF16 or I8 with a scale; "
                            "import it again")
