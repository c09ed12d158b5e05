"""Cache compiled Core ML models, and write a single function of a package as a separate package.

Core ML compiles each package once per chip and build of macOS. The cache has an entry for each compiled package: a
folder ``compiled/<key>``. The folder has the compiled model, and the file ``compiled.json`` with the model's name and
the sizes of its files. The key is a hash of the chip, the build of macOS and all files of the package. If macOS or the
package is updated, the key changes, so `ane` never reads an old entry.

`ane` never moves an entry. The slowest part of a first load is that macOS specialises the model for the Neural Engine.
macOS caches the specialised model under the path of the compiled model.
"""

import contextlib
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ane.backends.coreml.tools import MacMachine, error_summary
from ane.backends.coreml.trial import UnansweredError
from ane.backends.packaged.functions import EngineRefusalError
from ane.bundles.hashes import remembered_hash, sha256_of
from ane.system import paths
from ane.system.checked import stored_record
from ane.system.errors import UserError, system_errors
from ane.system.files import link_or_copy, read_json, replacing, write_json

VERSION = 1  # version of the files in an entry
RECORD = "compiled.json"
TRIED = "tried.json"  # file in an entry: how first loads ended, with keys "function compute_units"
SECONDS = " seconds"  # suffix of a key in TRIED: median seconds of a call
BUILD = "build.txt"  # file in an entry: the build of macOS that compiled the package
LOADED = " loaded in"  # suffix of a key in TRIED: seconds that the first load took
COMPILED = "compiled in"  # key in TRIED: seconds that the compilation took
SEVERAL = "several functions"  # key in TRIED: this macOS rejects the package because it has several functions
SECONDS_A_FUNCTION = 10.0  # estimated seconds of a first load, used until this Mac has loaded a function
UNCOMPILED = "uncompiled.txt"  # file in an entry without a compiled model: why Core ML did not finish compiling
LOCK = ".lock"
ENTRY_NAME = re.compile(r"[0-9a-f]{32}|\.[0-9a-f]{32}\..*\.partial")  # name of a finished or unfinished entry
MODEL = Path("Data") / "com.apple.CoreML" / "model.mlmodel"  # path inside a package

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompiledRecord:
    """The content of ``compiled.json``: the name of a compiled model and the sizes of its files."""

    version: int
    model: str
    files: dict[str, int]

    @classmethod
    def read(cls, entry: Path) -> "CompiledRecord | None":
        """Read ``compiled.json`` of an entry. Returns ``None`` if it is missing, damaged or of another version."""
        record = stored_record(cls, entry / RECORD)
        valid = record is not None and record.version == VERSION and Path(record.model).name == record.model
        return record if valid else None


class CompiledCache:
    """A cache of compiled models in ``folder``. ``None`` means the folder ``compiled`` of the user's cache."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder or paths.cache_dir() / "compiled"

    def model(
        self, package: Path, machine: MacMachine, compile: Callable[[Path, Path], None], recompile: bool = False
    ) -> tuple[Path, bool]:
        """Return the path of a package's compiled model. Compile the package if the cache does not have it.

        If several processes need the same model, one process compiles it while the others wait.

        Args:
            package: Folder of the package.
            machine: Chip and build of macOS.
            compile: Function that takes a package and a destination, and compiles the package.
            recompile: Whether to replace the existing entry, because its model does not load.

        Returns:
            The path, and whether this call has compiled the package.

        Raises:
            UserError: There is no such package, or the cache cannot be written.
            EngineRefusalError: Core ML cannot compile the package (``compile`` raises RuntimeError). If Core ML did not
                answer, the entry says so, and later calls raise this error without trying again.
        """
        entry, model = self._entry(package, machine), f"{package.stem}.mlmodelc"
        if not recompile and self._is_complete(entry):
            return entry / model, False
        if (entry / UNCOMPILED).is_file():
            raise cannot_compile(package, f"{(entry / UNCOMPILED).read_text(encoding='utf-8')} on an earlier try")
        with self._locked():
            if not recompile and self._is_complete(entry):  # another process compiled it while this process waited
                return entry / model, False
            self._remove_unfinished()
            LOGGER.info("Compiling %s for %s, once for each version of macOS", package.stem, machine.chip)
            refusal = None
            with replacing(entry, directory=True) as staging:
                try:
                    compile(package, staging / model)
                except UnansweredError as error:
                    shutil.rmtree(staging / model, ignore_errors=True)
                    (staging / UNCOMPILED).write_text(str(error), encoding="utf-8")
                    refusal = cannot_compile(package, str(error))
                except (RuntimeError, MemoryError) as error:
                    raise cannot_compile(package, error_summary(error)) from error
                (staging / BUILD).write_text(machine.os_build, encoding="utf-8")
                write_json(staging / RECORD, asdict(CompiledRecord(VERSION, model, _file_sizes(staging / model))))
        if refusal is not None:
            raise refusal
        return entry / model, True

    def entries(self) -> list[Path]:
        """List the folders of all entries, including entries that a process is still writing."""
        return [
            path
            for path in _children(self.folder)
            if ENTRY_NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
        ]

    def is_new(self, package: Path, machine: MacMachine, units: Mapping[str, str]) -> bool:
        """Return whether Core ML has never tried to load a function of this package on these compute units.

        Args:
            package: Folder of the package.
            machine: Chip and build of macOS.
            units: Compute units by function name.
        """
        if (self._entry(package, machine) / UNCOMPILED).is_file():
            return False
        tried = {key for results in self._tried(package, machine) for key in results}
        return not any(f"{function} {on}" in tried for function, on in units.items())

    def is_of_other_build(self, package: Path, machine: MacMachine) -> bool:
        """Return whether the cache has the package for this chip, but only for another build of macOS."""
        if self._entry(package, machine).is_dir():
            return False
        builds = set[str]()
        for entry in self.entries():
            with contextlib.suppress(OSError):
                builds.add((entry / BUILD).read_text(encoding="utf-8"))
        return any(self._entry(package, machine._replace(os_build=build)).is_dir() for build in builds)

    def load_estimate(self, functions: int, packages: Iterable[Path], machine: MacMachine) -> str:
        """Say how long it will probably take to compile and load this many functions of these packages.

        The estimate uses the mean time of earlier first loads of these packages on this machine. If there were none, it
            uses the mean time for all packages in the cache.
        """
        measured = seconds_a_function([results for package in packages for results in self._tried(package, machine)])
        source = "as first loads of this model took on this machine"
        if measured is None:
            measured = seconds_a_function([read_tried(entry / RECORD) for entry in self.entries()])
            source = "as first loads of other models took on this machine"
        if measured is None:
            measured, source = SECONDS_A_FUNCTION, "an estimate"
        mean = max(measured, 0.1)
        seconds = functions * mean
        return (
            f"about {f'{seconds / 60:.1f} minutes' if seconds >= 60 else f'{seconds:.0f} s'}, "
            f"at {mean:.1f} s per function, {source}"
        )

    def remove(self, entries: list[Path]) -> None:
        """Delete entries, once no process is compiling any more. Raises UserError if an entry cannot be deleted."""
        if not entries:
            return
        with self._locked():
            for entry in entries:
                remove(entry)

    def _tried(self, package: Path, machine: MacMachine) -> list[dict[str, str]]:
        """Call ``read_tried`` for a package, and for its functions that also exist as separate packages."""
        pattern = single_function_path(package, "*")
        return [
            read_tried(self._entry(path, machine) / RECORD) for path in (package, *pattern.parent.glob(pattern.name))
        ]

    def _entry(self, package: Path, machine: MacMachine) -> Path:
        key = hashlib.sha256("\n".join((*machine, package_hash(package), package.stem)).encode()).hexdigest()[:32]
        return self.folder / key

    def _is_complete(self, entry: Path) -> bool:
        record = CompiledRecord.read(entry)
        return record is not None and bool(record.files) and _file_sizes(entry / record.model) == record.files

    def _remove_unfinished(self) -> None:
        """Remove the unfinished models of processes that were killed while they compiled.

        Call this only inside ``_locked``.
        """
        for path in _children(self.folder):
            if ENTRY_NAME.fullmatch(path.name) and path.name.endswith(".partial"):
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold a file lock, so that only one process compiles or deletes. If the process dies, the lock ends."""
        lock = FileLock(self.folder / LOCK)
        with system_errors(f"cannot write {self.folder}", paths.CACHE_ADVICE):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                LOGGER.info("Waiting for another process that is compiling models")
                lock.acquire()
        try:
            yield
        finally:
            lock.release()


def read_tried(compiled: Path) -> dict[str, str]:
    """Read how the first loads of a compiled model's functions ended.

    Returns:
        Texts and times by key. The key "function compute_units" has the reason why a load failed, or "" if it
        succeeded. The same key with the suffix ``SECONDS`` or ``LOADED`` has a time. The key ``COMPILED`` has the time
        of the compilation. If there is a key ``SEVERAL``, this macOS rejects the package because it has several
        functions.
    """
    with contextlib.suppress(UserError):
        results = read_json(compiled.parent / TRIED)
        if isinstance(results, dict) and all(isinstance(text, str) for text in results.values()):
            return results
    return {}


def seconds_a_function(tried: Iterable[Mapping[str, str]]) -> float | None:
    """Return the mean seconds of a first load, including its share of the compilation.

    Args:
        tried: Return values of ``read_tried``, one per package.

    Returns:
        The mean, or ``None`` if no function was loaded.
    """
    times = [
        (key, float(text)) for results in tried for key, text in results.items() if key.endswith((LOADED, COMPILED))
    ]
    loads = sum(key.endswith(LOADED) for key, _ in times)
    return sum(seconds for _, seconds in times) / loads if loads else None


def write_tried(compiled: Path, results: Mapping[str, str]) -> None:
    """Record how Core ML's first compilation or load of each function ended, for ``read_tried``.

    If the cache cannot be written, do nothing.
    """
    with contextlib.suppress(OSError, UserError), replacing(compiled.parent / TRIED) as temporary:
        write_json(temporary, {**read_tried(compiled), **results})


def file_about(package: Path, machine: MacMachine, what: str) -> Path:
    """Return the path of the cached JSON file with a fact (``what``) about a package on this machine."""
    key = hashlib.sha256("\n".join((*machine, package_hash(package))).encode()).hexdigest()[:32]
    return paths.cache_dir() / "verified" / f"{what}-{key}.json"


def cannot_compile(package: Path, why: str) -> EngineRefusalError:
    return EngineRefusalError(
        f"Core ML cannot compile {package}: {why}",
        on_all_units=True,
        advice="convert the model again, or use backend=torch",
    )


def package_hash(package: Path) -> str:
    """Return the SHA-256 (hex) of a package's file names and bytes. Hidden files such as .DS_Store do not count.

    The hash is cached until the size or the modification time of a file changes.

    Raises:
        UserError: The package does not exist, or cannot be read.
    """
    if not package.is_dir():
        raise UserError(f"there is no Core ML package at {package}")
    files = sorted(path for path in package.rglob("*") if path.is_file() and not path.name.startswith("."))
    return remembered_hash(
        package,
        files,
        lambda: hashlib.sha256(
            "".join(
                (
                    f"package {VERSION}\n",
                    *(f"{sha256_of(file)} {file.relative_to(package).as_posix()}\n" for file in files),
                )
            ).encode()
        ).hexdigest(),
    )


def size_of(path: Path) -> int:
    """Return the size in bytes of a file, or of all files in a folder.

    Files that another process deletes do not count.
    """
    folders: Iterable = os.walk(path) if path.is_dir() and not path.is_symlink() else [(path.parent, [], [path.name])]
    size = 0
    for folder, _, names in folders:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += os.lstat(os.path.join(folder, name)).st_size
    return size


def remove(path: Path) -> None:
    """Delete a file, a folder, or a link but not the link's target.

    Raises UserError if the system does not allow this.
    """
    # FileNotFoundError: another process has deleted it
    with system_errors(f"cannot delete {path}"), contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _file_sizes(model: Path) -> dict[str, int]:
    return {path.relative_to(model).as_posix(): path.stat().st_size for path in model.rglob("*") if path.is_file()}


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def single_function_path(package: Path, function: str) -> Path:
    return paths.cache_dir() / "functions" / f"{package_hash(package)[:32]}-{function}.mlpackage"


def single_function(package: Path, function: str) -> Path:
    """Write a function as a separate package in the user's cache, and return the path of this package.

    Call this function if macOS rejects packages with several functions. Raises UserError if the cache cannot be
    written.
    """
    path = single_function_path(package, function)
    if not path.is_dir():
        with replacing(path, directory=True) as folder:
            folder.rmdir()
            extract_function(package, function, folder)
    return path


def extract_function(package: Path, function: str, destination: Path) -> None:
    """Write one function of a package as a separate package, in which the function's name is "main".

    The weights are hard links to the original weights. Core ML's compute plan needs such a package, because it plans
    only a package's default function.
    """
    from ane.backends.mil.package import model_messages  # imports torch, which takes long and which few commands need

    shutil.copytree(package, destination, copy_function=link_or_copy)
    spec = model_messages().Model()
    spec.ParseFromString((package / MODEL).read_bytes())
    functions, description = spec.mlProgram.functions, spec.description
    for name in list(functions):
        if name == function != "main":
            functions["main"].CopyFrom(functions[name])
        if name != "main" or name != function:
            functions.pop(name)
    for interface in description.functions:
        if interface.name == function:
            description.input.extend(interface.input)
            description.output.extend(interface.output)
            description.state.extend(interface.state)
    description.ClearField("functions")
    description.ClearField("defaultFunctionName")
    (destination / MODEL).unlink()  # the file may be a hard link, and writing to it would change the original
    (destination / MODEL).write_bytes(spec.SerializeToString())
