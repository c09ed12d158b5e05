"""Writing a bundle: from any model, network by network."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from ane.bundles.bundle import Bundle
from ane.bundles.hashes import FileRecord, record
from ane.bundles.manifest import MANIFEST_FILE, Manifest, NetworkRecord, write_manifest
from ane.bundles.model import Model
from ane.bundles.packages import WEIGHTS, PackageRecord, sections_of
from ane.bundles.weights import convert_precision, layout
from ane.system.errors import UserError
from ane.system.files import check_output_folder, link_or_copy, replacing
from ane.system.version import version


def check_destination(destination: Path, overwrite: bool, source: Path | None = None) -> None:
    """Refuse a destination where a bundle must not be written: only a bundle is ever replaced, and only on request.
    Raises UserError: a file or another directory is there, a bundle is there and ``overwrite`` is False, or writing
    would delete ``source``."""
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
