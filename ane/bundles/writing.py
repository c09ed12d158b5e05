"""Write bundles. No other module writes bundles."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from ane.bundles.bundle import Bundle
from ane.bundles.contents import Contents
from ane.bundles.family import find_family
from ane.bundles.hashes import FileRecord, record
from ane.bundles.manifest import MANIFEST_FILE, Manifest, NetworkRecord, write_manifest
from ane.bundles.package_records import WEIGHTS, PackageRecord, sections_of
from ane.bundles.weights import SCALE, convert_precision, layout
from ane.system.errors import UserError
from ane.system.files import check_output_folder, link_or_copy, replacing
from ane.system.version import version


def check_destination(destination: Path, overwrite: bool, source: Path | None = None) -> None:
    """Check that a bundle may be written to ``destination``.

    Args:
        destination: Directory for the bundle.
        overwrite: Whether to replace a bundle at ``destination``. Anything else there is never replaced.
        source: Path that must not be deleted.

    Raises:
        UserError: At ``destination``, there is a file, a directory that is not a bundle, or a bundle and ``overwrite``
            is false. Or writing would delete ``source``.
    """
    if source is not None and source.resolve().is_relative_to(destination.resolve()):
        raise UserError(f"{destination} contains the checkpoints to import: choose another destination")
    check_output_folder(destination, MANIFEST_FILE, "a bundle", overwrite)


def write_bundle(
    contents: Contents,
    destination: Path | str,
    *,
    packages: Sequence[PackageRecord] = (),
    packages_root: Path | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda network: None,
    **changes: Any,
) -> Bundle:
    """Write a model as a bundle. After an error, ``destination`` is as it was before.

    All parameters are stored in ``contents.precision``. Buffers are stored in float32, and integers unchanged. The
    networks are loaded one after another, so the peak memory is about the size of the largest network.

    Args:
        contents: The model.
        destination: Directory of the new bundle.
        packages: Packages to include, in any format. Their paths are relative to ``packages_root``.
        packages_root: Folder with the packages. The bundle gets hard links to their files, or copies if links are
            impossible.
        overwrite: Whether to replace a bundle at ``destination``.
        progress: Function that is called with the name of each network before it is written.
        changes: Values that replace fields of ``contents``, such as ``precision``.

    Raises:
        UserError: The destination is taken or cannot be written. Or a weight is not finite, or does not fit the
            precision.
    """
    destination, contents = Path(destination), replace(contents, **changes)
    check_destination(destination, overwrite)
    with replacing(destination, directory=True, lasting=True) as directory:
        networks, model_packages = {}, contents.packages(directory)
        for network in (name for name in find_family(contents.family).networks if name in contents.configs):
            progress(network)
            networks[network] = _write_network(contents, network, directory, model_packages)
        for package in packages:
            shutil.copytree(packages_root / package.path, directory / package.path, copy_function=link_or_copy)
        bound = [
            replace(package, source={**package.source, WEIGHTS: networks[package.network].sha256})
            for package in (*model_packages, *packages)
        ]
        write_manifest(
            directory,
            Manifest(
                name=contents.name or destination.name,
                precision=contents.precision,
                trained=contents.trained,
                default_voice=contents.default_voice,
                networks=networks,
                **_write_data(contents, directory),
                voices=_copy_voices(contents.voices, directory),
                source=dict(contents.source),
                licence=contents.licence,
                description=contents.description,
                created_by=f"tortoise-ane {version()}",
                files={role: _write_file(directory, *file) for role, file in contents.files.items()},
                settings=dict(contents.settings),
                clones=contents.clones,
                family=contents.family,
                sections=sections_of(bound),
            ),
        )
    return Bundle(destination)


def _write_network(
    contents: Contents, network: str, directory: Path, packages: Sequence[PackageRecord]
) -> NetworkRecord:
    """Write the weights of a network, unless a package that comes with the model contains these weights."""
    config, name = contents.configs[network], f"{network}.safetensors"
    for stored in (file for package in packages for file in package.files if Path(file.file).name == name):
        parameters = sum(tensor.numel() for key, tensor in contents.tensors(network).items() if not key.endswith(SCALE))
        return NetworkRecord(**asdict(stored), config=config, parameters=parameters)
    buffers = layout(find_family(contents.family).networks[network], config).buffers
    tensors = convert_precision(
        contents.tensors(network), contents.precision, buffers, f"{contents.name or contents.path}: {network}"
    )
    file = f"weights/{name}"
    (directory / "weights").mkdir(exist_ok=True)
    _save(tensors, directory / file)
    parameters = sum(tensor.numel() for key, tensor in tensors.items() if key not in buffers)
    return NetworkRecord(**asdict(record(directory, file)), config=config, parameters=parameters)


def _write_data(contents: Contents, directory: Path) -> dict[str, FileRecord]:
    """Write the tokenizer and the mel norms, if the model has them."""
    records = {}
    if contents.tokenizer is not None:
        records["tokenizer"] = _write_file(directory, "tokenizer.json", contents.tokenizer.encode())
    if contents.mel_norms is not None:
        _save({"mel_norms": torch.from_numpy(contents.mel_norms.copy())}, directory / "mel_norms.safetensors")
        records["mel_norms"] = record(directory, "mel_norms.safetensors")
    return records


def _write_file(directory: Path, name: str, content: Path | bytes) -> FileRecord:
    if isinstance(content, Path):
        shutil.copyfile(content, directory / name)
    else:
        (directory / name).write_bytes(content)
    return record(directory, name)


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write safetensors with the usual permissions. The library itself creates files that only their owner can read."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:
        raise UserError(f"cannot write {path.name} of the bundle: {error}") from error
    path.chmod(mode)


def _copy_voices(voices: Mapping[str, Path], directory: Path) -> dict[str, FileRecord]:
    if voices:
        (directory / "voices").mkdir()
    return {name: _write_file(directory, f"voices/{name}.safetensors", path) for name, path in sorted(voices.items())}
