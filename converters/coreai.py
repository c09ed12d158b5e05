"""Writes a bundle's Core ML packages as a folder of Core AI assets (.aimodel), one for each package.

``assets.json`` in it states the version of Core AI, and of each asset the package, its functions and the SHA-256 of its
files: a damaged asset ends the process that opens it, or computes wrong numbers.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from ane.backends.coreai.runtime import VERSION, require_core_ai, write_model
from ane.backends.mil.package import Package
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import check_hashes, sha256_of
from ane.bundles.packages import PackageRecord
from ane.system.files import check_output_folder, replacing, write_json

RECORD = "assets.json"


def write_asset_folder(bundle: Bundle, packages: Sequence[PackageRecord], destination: Path, overwrite: bool = False,
                       progress: Callable[[str], None] = lambda activity: None) -> dict[str, int]:
    """Write these packages of a bundle, computing as they declare. Returns the bytes of each asset, by its name.

    Raises UserError when Core AI is not installed or lacks an operation, a package is damaged, the destination is taken
    or not writable.
    """
    require_core_ai()
    check_asset_folder(destination, overwrite)
    sizes, records = {}, {}
    with replacing(destination, directory=True) as folder:
        for package in packages:
            path = bundle.path / package.path
            name, functions = f"{path.stem}.aimodel", list(package.functions)
            progress(f"{path.stem}: {len(functions)} functions")
            check_hashes(bundle.path, package.files)
            write_model(Package(path), functions, folder / name, fp16=True)
            files = [file for file in sorted((folder / name).rglob("*")) if file.is_file()]
            records[name] = {"package": path.name, "functions": functions, "files": {
                file.relative_to(folder / name).as_posix(): sha256_of(file) for file in files}}
            sizes[name] = sum(file.stat().st_size for file in files)
        write_json(folder / RECORD, {"coreai": VERSION, "model": bundle.identity, "assets": records})
    return sizes


def check_asset_folder(destination: Path, overwrite: bool) -> None:
    """Raise UserError for a destination that must not be replaced: only such a folder is, on request."""
    check_output_folder(destination, RECORD, "a set of Core AI assets", overwrite)
