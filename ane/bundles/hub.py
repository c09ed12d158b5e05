"""Download official checkpoints from the Hugging Face hub, and compare them with all recorded hashes.

huggingface_hub reads the environment variables HF_ENDPOINT, HF_HUB_OFFLINE and HF_HOME when it is imported. The
functions here therefore import it only when they need it.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ane.bundles.hashes import sha256_of
from ane.system.errors import UserError
from ane.system.files import read_json

FOLDERS = ("", ".models/", "models/")  # folders of a repository that may have the checkpoints
CHECKPOINTS, SHOWN = (".pth", ".pt", ".ckpt", ".safetensors"), 5  # SHOWN: most files in a message
HTTP_LIBRARIES = {
    "requests",
    "urllib3",
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
}  # the version of huggingface_hub decides which of these libraries it uses


@dataclass(frozen=True)
class Snapshot:
    """Checkpoints that were downloaded from one commit of a repository."""

    revision: str  # hash of the commit
    directory: Path  # directory with the files, or the path of the file if only one was requested
    files: dict[str, str]  # official name of a file → SHA-256 (hex), computed from the downloaded file
    licence: str = ""  # licence in the model card of the repository


def is_repository(text: str) -> bool:
    """Return whether ``text`` looks like a hub repository ("owner/name") or a file in it ("owner/name/file.pth")."""
    suffixes = "|".join(map(re.escape, (*CHECKPOINTS, ".onnx")))
    return re.fullmatch(rf"[\w-][\w.-]*/[\w-][\w.-]*(/[\w./ -]+({suffixes}))?", text) is not None


def is_local_path(text: str) -> bool:
    """Return whether ``text`` can only be the path of a local file or directory. The path need not exist."""
    checkpoint = text.endswith(CHECKPOINTS) and (text.count("/") < 2 or Path(text).parent.is_dir())
    return text.startswith((".", "/", "~")) or checkpoint


def download_files(
    repository: str,
    required: Sequence[str],
    files: Sequence[str] | None = None,
    *,
    revision: str | None = None,
    kind: str = "model",
    progress: Callable[[str], None] = lambda file: None,
) -> Snapshot:
    """Download files from a repository, or find them in the hub's cache, and hash them.

    Args:
        repository: Repository id, "owner/name".
        required: Files that the repository must have.
        files: Files to download if the repository has them. ``None`` means ``required``.
        revision: Branch, tag or commit. ``None`` means main.
        kind: Kind of model that the repository should have, for a message.
        progress: Function that is called with the name of each file before its download.

    Raises:
        UserError: The hub cannot be reached and the files are not in the cache. Or there is no such repository,
            revision or file. Or a file has another SHA-256 than on the hub.
    """
    from huggingface_hub import HfApi

    wanted = required if files is None else files
    revision = revision or "main"
    try:
        with _translated_errors(repository, revision):
            info = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=30)
    except _UnreachableError as unreachable:
        return _from_cache(repository, revision, required, wanted, unreachable, progress)
    entries = {entry.rfilename: entry for entry in info.siblings or []}
    folder = next((folder for folder in FOLDERS if folder + required[0] in entries), "")
    missing = [file for file in required if folder + file not in entries]
    if missing:
        raise UserError(
            f"{repository} at {revision} has no {', '.join(missing)}: it is not a {kind} repository{_others(entries)}"
        )
    hashes, directories = {}, set()
    for file in (file for file in wanted if folder + file in entries):
        progress(file)
        try:
            path = _download(repository, folder + file, revision)
        except _UnreachableError as unreachable:
            raise UserError(str(unreachable)) from unreachable
        directories.add(path.parents[len(Path(file).parts) - 1])
        hashes[file] = sha256_of(path)
        expected = getattr(entries[folder + file].lfs, "sha256", None)
        if expected and expected != hashes[file]:
            raise UserError(
                f"{path} has SHA-256 {hashes[file]}, but {repository} records {expected}: the download is "
                "damaged, so delete that file and import again"
            )
    directory = directories.pop()
    if directories or _commit(directory, folder) != info.sha:
        raise UserError(f"{revision} of {repository} changed while it was being downloaded: import again")
    return Snapshot(info.sha, directory, hashes, str(getattr(info.card_data, "license", None) or ""))


def _others(files: Iterable[str]) -> str:
    """List a repository's checkpoints for the end of a message, and say how to import one of them as a fine-tune."""
    checkpoints = sorted(file for file in files if file.endswith(CHECKPOINTS))
    if not checkpoints:
        return ""
    more = len(checkpoints) - SHOWN
    shown = ", ".join(checkpoints[:SHOWN]) + (f" and {more} more" if more > 0 else "")
    return (
        f". It has {shown}: if one is a fine-tuned decoder, give OWNER/NAME/{checkpoints[0]} as SOURCE, with --base "
        "for the other networks"
    )


def check_recorded_hashes(expected: Mapping[str, str], files: Mapping[str, str], recorder: str) -> None:
    """Compare the hashes of files with recorded hashes. A file without a recorded hash passes.

    Args:
        expected: Recorded SHA-256 by file.
        files: Actual SHA-256 by file.
        recorder: Name of the file that has the recorded hashes, for messages.

    Raises:
        UserError: A recorded file is not among ``files``, or has another SHA-256.
    """
    for file, sha256 in expected.items():
        if file not in files:
            raise UserError(f"{recorder} records a SHA-256 for {file}, but there is no such file to import")
        if files[file] != str(sha256).lower():
            raise UserError(
                f"{file} has SHA-256 {files[file]}, but {recorder} records {sha256}: these are not the weights that "
                "were recorded, so they are not imported"
            )


def read_expected(path: Path) -> dict[str, str]:
    """Read hashes by file from JSON, {"autoregressive.pth": "<SHA-256>", …}, or from the source in a bundle.json.

    Raises:
        UserError: The file cannot be read, or does not map files to hashes.
    """
    content = read_json(path)
    if isinstance(content, dict) and isinstance(content.get("source"), dict):
        content = content["source"].get("files")
    if (
        not isinstance(content, dict)
        or not content
        or not all(isinstance(value, str) and re.fullmatch("[0-9a-fA-F]{64}", value) for value in content.values())
    ):
        raise UserError(f'{path} must map files to their SHA-256: {{"autoregressive.pth": "<64 hexadecimal digits>"}}')
    return content


class _UnreachableError(Exception):
    """Means that the hub cannot be reached. The files may be in the cache."""


def _download(repository: str, file: str, revision: str, cached_only: bool = False) -> Path:
    from huggingface_hub import hf_hub_download

    with _translated_errors(repository, revision, file):
        return Path(hf_hub_download(repository, file, revision=revision, local_files_only=cached_only))


def _from_cache(
    repository: str,
    revision: str,
    required: Sequence[str],
    wanted: Sequence[str],
    unreachable: _UnreachableError,
    progress: Callable[[str], None],
) -> Snapshot:
    """Return the files of ``revision`` from the hub's cache. Raises UserError if the cache lacks a required file."""
    for folder in FOLDERS:
        cached: dict[str, Path] = {}
        for file in wanted:
            try:
                cached[file] = _download(repository, folder + file, revision, cached_only=True)
            except _UnreachableError:
                continue
        if all(file in cached for file in required):
            directory = cached[required[0]].parents[len(Path(required[0]).parts) - 1]
            hashes = {}
            for file, path in cached.items():
                progress(file)
                hashes[file] = sha256_of(path)
            return Snapshot(_commit(directory, folder), directory, hashes)
    raise UserError(
        f"{unreachable}, and its checkpoints are not all in the cache: import once with a connection, or "
        "give a directory with them"
    )


def _commit(directory: Path, folder: str) -> str:
    """Return the commit that the path of a folder in the hub's cache names, …/snapshots/<commit>/<folder>."""
    return directory.parents[len(Path(folder).parts) - 1].name if folder else directory.name


@contextmanager
def _translated_errors(repository: str, revision: str, file: str = "") -> Iterator[None]:
    """Within the block, turn errors of huggingface_hub into one-line errors, or into _UnreachableError."""
    from huggingface_hub import constants, errors

    try:
        yield
    except Exception as error:
        endpoint = constants.ENDPOINT
        known = {
            errors.OfflineModeIsEnabled: _UnreachableError(f"cannot download {repository}: HF_HUB_OFFLINE is set"),
            errors.LocalEntryNotFoundError: _UnreachableError(
                f"cannot download {repository}: the hub at {endpoint} does not answer"
            ),
            errors.GatedRepoError: UserError(
                f"{repository} is gated: accept its terms on {endpoint} and log in (hf auth login)"
            ),
            errors.RepositoryNotFoundError: UserError(
                f"{endpoint} has no repository {repository} (or it is private), and there is no directory with that "
                "name either"
            ),
            errors.RevisionNotFoundError: UserError(
                f"{repository} has no revision {revision!r}: give a branch, tag or commit"
            ),
            errors.EntryNotFoundError: UserError(f"{repository} at {revision} has no file {file}"),
            errors.HFValidationError: UserError(f"{repository!r} is not a repository id (owner/name): {error}"),
        }
        for kind, translated in known.items():  # a subclass stands before its base class
            if isinstance(error, kind):
                raise translated from error
        _explain_transport(error, repository, endpoint)
        raise


def _explain_transport(error: Exception, repository: str, endpoint: str) -> None:
    """Raise a one-line error if ``error`` is a known failure of the connection. Otherwise, do nothing."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        raise UserError(f"{endpoint} answered {status} for {repository}: try again later") from error
    module = type(error).__module__.partition(".")[0]
    if isinstance(error, json.JSONDecodeError) or (
        isinstance(error, ValueError | KeyError | TypeError) and module not in HTTP_LIBRARIES
    ):
        raise UserError(
            f"{endpoint} does not answer like a Hugging Face hub: check HF_ENDPOINT and your connection"
        ) from error
    if isinstance(error, ConnectionError) or module in HTTP_LIBRARIES:
        raise _UnreachableError(
            f"cannot download {repository}: the hub at {endpoint} cannot be reached ({error})"
        ) from error
    if isinstance(error, OSError):
        raise UserError(f"cannot download {repository}: {error}") from error
