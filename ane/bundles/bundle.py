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
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ane.bundles.family import Network, find_family
from ane.bundles.hashes import FileRecord, check_hash, check_hashes, check_size, record
from ane.bundles.manifest import MANIFEST_FILE, Manifest, NetworkRecord, read_manifest, write_manifest
from ane.bundles.model import Model, read_tokenizer
from ane.bundles.packages import FORMATS, WEIGHTS, PackageRecord, read_section, sections_of
from ane.bundles.weights import SCALE, convert_precision, expanded, layout, shape_text
from ane.system.errors import UserError
from ane.system.files import check_output_folder, link_or_copy, replacing
from ane.system.version import version


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
        self.family = find_family(self.manifest.family)
        self.name = self.manifest.name
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
    def precision(self) -> str:
        return self.manifest.precision

    @property
    def voices(self) -> Path | None:
        """The directory of its voices, each checked, or None when it has none.

        Raises:
            UserError: a voice is missing or damaged, or bundle.json does not list one that is there.
        """
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


def check_destination(destination: Path, overwrite: bool, source: Path | None = None) -> None:
    """Refuse a destination where a bundle must not be written: only a bundle is ever replaced, and only on request.

    Raises:
        UserError: a file or another directory is there, a bundle is there and ``overwrite`` is False, or writing
            would delete ``source``.
    """
    if source is not None and source.resolve().is_relative_to(destination.resolve()):
        raise UserError(f"{destination} contains the checkpoints to import; choose another destination")
    check_output_folder(destination, MANIFEST_FILE, "a bundle", overwrite)


def write_bundle(model: Model, destination: Path | str, *, precision: str | None = None, name: str | None = None,
                 description: str = "", licence: str = "", default_voice: str | None = None,
                 source: Mapping[str, Any] | None = None, packages: Sequence[PackageRecord] = (),
                 packages_root: Path | None = None, overwrite: bool = False,
                 progress: Callable[[str], None] = lambda network: None) -> Bundle:
    """Write ``model`` as a bundle, network by network; it appears at ``destination`` complete or not at all.

    ``precision`` (default: the model's own) applies to all parameters; buffers stay float32, integers are
    unchanged. ``source`` states where the weights came from. ``packages`` of any format are in ``packages_root``, from
    where they are linked, or copied where links cannot be. ``progress`` is called with each network's name before
    it is written. Peak memory is about the size of the largest network.

    Raises:
        UserError: the destination is taken or not writable, a value is not finite or does not fit the precision.
    """
    destination = Path(destination)
    precision = precision or model.precision
    check_destination(destination, overwrite)
    with replacing(destination, directory=True, lasting=True) as directory:
        (directory / "weights").mkdir()
        networks = {}
        for network in (name for name in model.family.networks if name in model.networks):
            progress(network)
            networks[network] = _write_network(model, network, directory, precision)
        for package in packages:
            shutil.copytree(packages_root / package.path, directory / package.path, copy_function=link_or_copy)
        bound = [replace(package, source={**package.source, WEIGHTS: networks[package.network].sha256})
                 for package in packages]
        write_manifest(directory, Manifest(
            name=name or destination.name, precision=precision, trained=model.trained,
            default_voice=model.default_voice if default_voice is None else default_voice, networks=networks,
            **_write_data(model, directory), voices=_copy_voices(model, directory), source=dict(source or {}),
            licence=licence, description=description, created_by=f"tortoise-ane {version()}",
            settings=dict(model.settings), clones=model.clones, family=model.family.name,
            sections=sections_of(bound)))
    return Bundle(destination)


def _write_network(model: Model, network: str, directory: Path, precision: str) -> NetworkRecord:
    config = model.config(network)
    buffers = layout(model.family.networks[network], config).buffers
    tensors = convert_precision(model.tensors(network), precision, buffers, f"{model.name}: {network}")
    file = f"weights/{network}.safetensors"
    _save(tensors, directory / file)
    parameters = sum(tensor.numel() for key, tensor in tensors.items() if key not in buffers)
    return NetworkRecord(**asdict(record(directory, file)), config=config, parameters=parameters)


def _write_data(model: Model, directory: Path) -> dict[str, FileRecord]:
    """Write the tokenizer and the mel norms, where the model's family has them."""
    records = {}
    if "tokenizer" in model.family.data:
        (directory / "tokenizer.json").write_text(model.tokenizer, encoding="utf-8")
        records["tokenizer"] = record(directory, "tokenizer.json")
    if "mel_norms" in model.family.data:
        _save({"mel_norms": torch.from_numpy(model.mel_norms.copy())}, directory / "mel_norms.safetensors")
        records["mel_norms"] = record(directory, "mel_norms.safetensors")
    return records


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write safetensors with the permissions of any new file (the library makes files that only their owner reads)."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:
        raise UserError(f"cannot write {path.name} of the bundle: {error}") from error
    path.chmod(mode)


def _copy_voices(model: Model, directory: Path) -> dict[str, FileRecord]:
    found = sorted(model.voices.glob("*.safetensors")) if model.voices else []
    if found:
        (directory / "voices").mkdir()
    for path in found:
        shutil.copyfile(path, directory / "voices" / path.name)
    return {path.stem: record(directory, f"voices/{path.name}") for path in found}
