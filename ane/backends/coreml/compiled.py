"""Cache compiled Core ML models, and write single functions as separate packages.

Each package is compiled once for a chip and a build of macOS.

An entry is a folder ``compiled/<key>`` of the cache. It holds the compiled model and ``compiled.json``, with the
model's name and the size of each of its files. The key is a hash of the chip, the build of macOS and all files of the
package, so another macOS or another model never finds an old entry. The path of an entry never changes, because macOS
caches its specialisation for the Neural Engine, the slowest part of a first load, under the path of the compiled model.
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
from ane.system.errors import UserError
from ane.system.files import link_or_copy, read_json, replacing, write_json

VERSION = 1  # of the layout of an entry
RECORD = "compiled.json"
TRIED = "tried.json"  # file of an entry: results of first loads, by function and compute units
SECONDS = " seconds"  # suffix of a key in it: median time of a call
BUILD = "build.txt"  # file of an entry: the build of macOS that compiled it
LOADED = " loaded in"  # suffix of a key in TRIED: seconds of the first load
COMPILED = "compiled in"  # key in TRIED: seconds of the compilation
SEVERAL = "several functions"  # key in TRIED: this system rejects the package because it has several functions
SECONDS_A_FUNCTION = 10.0  # estimate of a first load, until functions have been loaded on this Mac
UNCOMPILED = "uncompiled.txt"  # file in place of the model: why the compilation did not end
LOCK = ".lock"
ENTRY_NAME = re.compile(r"[0-9a-f]{32}|\.[0-9a-f]{32}\..*\.partial")  # an entry, or one that is being written
MODEL = Path("Data") / "com.apple.CoreML" / "model.mlmodel"  # path in a package

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompiledRecord:
    """The content of ``compiled.json``: the name of the model and its file sizes."""

    version: int
    model: str
    files: dict[str, int]

    @classmethod
    def read(cls, entry: Path) -> "CompiledRecord | None":
        """Read the record of an entry. Returns ``None`` if it is missing, damaged or of another version."""
        record = stored_record(cls, entry / RECORD)
        valid = record is not None and record.version == VERSION and Path(record.model).name == record.model
        return record if valid else None


class CompiledCache:
    """The compiled models in ``folder``. ``None`` means the folder in the user's cache."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder or paths.cache_dir() / "compiled"

    def model(
        self, package: Path, machine: MacMachine, compile: Callable[[Path, Path], None], recompile: bool = False
    ) -> tuple[Path, bool]:
        """Return the path of a compiled model, and whether ``compile(package, destination)`` was called for it.

        If several processes need the same model, one compiles it, and the others wait.

        Args:
            package: Folder of the package.
            machine: The Mac.
            compile: Compiles a package.
            recompile: Whether to replace an existing entry, because it does not load.

        Raises:
            UserError: There is no such package, or the cache cannot be written.
            EngineRefusalError: Core ML cannot compile the package (``compile`` raises RuntimeError). If Core ML did not
                answer, the cache remembers that, and it is not tried again.
        """
        entry, model = self._entry(package, machine), f"{package.stem}.mlmodelc"
        if not recompile and self._is_complete(entry):
            return entry / model, False
        if (entry / UNCOMPILED).is_file():
            raise cannot_compile(package, f"{(entry / UNCOMPILED).read_text(encoding='utf-8')} when it was tried")
        with self._locked():
            if not recompile and self._is_complete(entry):  # another process has compiled it in the meantime
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
        """List the folders of all entries, including unfinished ones."""
        return [
            path
            for path in _children(self.folder)
            if ENTRY_NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
        ]

    def is_new(self, package: Path, machine: MacMachine, units: Mapping[str, str]) -> bool:
        """Return whether no function of a package was loaded or refused on this machine and these compute units.

        Args:
            package: Folder of the package.
            machine: The Mac.
            units: Compute units by function name.
        """
        if (self._entry(package, machine) / UNCOMPILED).is_file():
            return False
        tried = {key for results in self._tried(package, machine) for key in results}
        return not any(f"{function} {on}" in tried for function, on in units.items())

    def is_of_other_build(self, package: Path, machine: MacMachine) -> bool:
        """Return whether another build of macOS has compiled the package on this chip, and this build has not."""
        if self._entry(package, machine).is_dir():
            return False
        builds = set[str]()
        for entry in self.entries():
            with contextlib.suppress(OSError):
                builds.add((entry / BUILD).read_text(encoding="utf-8"))
        return any(self._entry(package, machine._replace(os_build=build)).is_dir() for build in builds)

    def load_estimate(self, functions: int, packages: Iterable[Path], machine: MacMachine) -> str:
        """Estimate in words how long it takes to compile and load this many functions of these packages.

        The estimate is the mean time of these packages on this machine, or else of all packages in the cache.
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
        """Delete entries while no process is compiling. Raises UserError if one cannot be deleted."""
        if not entries:
            return
        with self._locked():
            for entry in entries:
                remove(entry)

    def _tried(self, package: Path, machine: MacMachine) -> list[dict[str, str]]:
        """Read what first loads did, of a package and of its functions as separate packages (``read_tried``)."""
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
        """Remove entries of processes that were killed while compiling. Call it only inside ``_locked``."""
        for path in _children(self.folder):
            if ENTRY_NAME.fullmatch(path.name) and path.name.endswith(".partial"):
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock under which one process at a time compiles or deletes. It is released when a process dies."""
        lock = FileLock(self.folder / LOCK)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                LOGGER.info("Waiting for another process that is compiling models")
                lock.acquire()
        except OSError as error:
            raise UserError(
                f"cannot write {self.folder}: {error.strerror or error}: set ANE_HOME to a folder that can be written"
            ) from error
        try:
            yield
        finally:
            lock.release()


def read_tried(compiled: Path) -> dict[str, str]:
    """Read the results of first loads of a compiled model's functions: "" or the reason of a refusal, and times.

    Two keys belong to no function: ``COMPILED``, and ``SEVERAL``, which says that this system rejects the package.
    """
    with contextlib.suppress(UserError):
        results = read_json(compiled.parent / TRIED)
        if isinstance(results, dict) and all(isinstance(text, str) for text in results.values()):
            return results
    return {}


def seconds_a_function(tried: Iterable[Mapping[str, str]]) -> float | None:
    """Return the mean seconds of a first load, with its share of the compilation, or ``None`` without any."""
    times = [
        (key, float(text)) for results in tried for key, text in results.items() if key.endswith((LOADED, COMPILED))
    ]
    loads = sum(key.endswith(LOADED) for key, _ in times)
    return sum(seconds for _, seconds in times) / loads if loads else None


def write_tried(compiled: Path, results: Mapping[str, str]) -> None:
    """Store results of a function's first load, as ``read_tried`` returns them, unless the cache cannot be written."""
    with contextlib.suppress(OSError, UserError), replacing(compiled.parent / TRIED) as temporary:
        write_json(temporary, {**read_tried(compiled), **results})


def file_about(package: Path, machine: MacMachine, what: str) -> Path:
    """Return the path of a file that records a fact about a package on this machine."""
    key = hashlib.sha256("\n".join((*machine, package_hash(package))).encode()).hexdigest()[:32]
    return paths.cache_dir() / "verified" / f"{what}-{key}.json"


def cannot_compile(package: Path, why: str) -> EngineRefusalError:
    return EngineRefusalError(
        f"Core ML cannot compile {package}: {why}",
        on_all_units=True,
        advice="convert the model again, or use backend=torch",
    )


def package_hash(package: Path) -> str:
    """Return the SHA-256 (hex) of a package's file names and bytes. It is cached while their sizes and times are equal.

    Hidden files such as Finder's .DS_Store are left out. Raises UserError if there is no package or it cannot be read.
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
    """Return the bytes of a file, or of all files in a folder, except files that another process deletes."""
    folders: Iterable = os.walk(path) if path.is_dir() and not path.is_symlink() else [(path.parent, [], [path.name])]
    size = 0
    for folder, _, names in folders:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += os.lstat(os.path.join(folder, name)).st_size
    return size


def remove(path: Path) -> None:
    """Delete a file or folder, or a link without its target. Raises UserError if that is not allowed."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass  # another process has deleted it
    except OSError as error:
        raise UserError(f"cannot delete {path}: {error.strerror or error}") from error


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
    """Return a function as a separate package in the user's cache, for systems that reject several functions.

    Raises UserError if the cache cannot be written.
    """
    path = single_function_path(package, function)
    if not path.is_dir():
        with replacing(path, directory=True) as folder:
            folder.rmdir()
            extract_function(package, function, folder)
    return path


def extract_function(package: Path, function: str, destination: Path) -> None:
    """Write one function of a package as a separate package, in which it is called "main". Weights are linked.

    Core ML's compute plan takes no function name, and plans the default function.
    """
    from ane.backends.mil.package import model_messages  # imports torch, which a list of the cache does not need

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
    (destination / MODEL).unlink()  # because it may be a hard link to the original
    (destination / MODEL).write_bytes(spec.SerializeToString())
