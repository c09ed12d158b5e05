"""Comparison of the files that flags of a command read with the files that they write."""

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.bundles.manifest import MANIFEST_FILE
from ane.bundles.opening import find_bundle
from ane.system import paths
from ane.system.errors import UserError
from ane.system.file_gate import check_apart
from ane.system.files import read_json

if TYPE_CHECKING:
    from ane.text.cast import Cast

MODEL_FILES = (
    "*.safetensors",
    "*.pth",
    "*.pt",
    "*.onnx",
    "*.bin",
    "*.npz",
    "config.json",
    "tokenizer.json",
    "voices/*/*",
)
Writes = Mapping[str, Iterable[Path | str | None] | Path | str | None]


def check_files(
    args: argparse.Namespace,
    writes: Writes,
    reads: Sequence[str] = (),
    voices: Sequence[str] = (),
    models: Sequence[str] = ("bundle",),
    cast: "Cast | None" = None,
) -> None:
    """Refuse an output that is a file which the command reads, or another of its outputs, before anything is opened.

    Args:
        writes: The files or folders to write by the argument that names them. None is standard output.
        reads: Arguments with a file or folder, or several.
        voices: Arguments with a voice: a name, a path or a mix.
        models: Arguments with a bundle or, of `ane import`, checkpoints.
        cast: The cast of ``--cast``, whose voices are read too.

    Raises:
        UserError: an output that is refused. The message names the flags.
    """
    given: list[tuple[str, Path | str]] = []
    for name in (*reads, *voices, *models):
        find = files_of_voice if name in voices else files_of_model if name in models else list_of_path
        given += [(flag_of(args, name), file) for value in listed(getattr(args, name, None)) for file in find(value)]
    if cast is not None:
        given += [
            (flag_of(args, "cast"), file)
            for voice in (cast.narrator, *cast.voices.values())
            if voice
            for file in files_of_voice(voice)
        ]
    given.append(("standard input", "-"))  # a shell may redirect it, whether a flag names it or not
    check_apart(given, [(flag_of(args, name), path) for name, values in writes.items() for path in listed(values)])


def flag_of(args: argparse.Namespace, name: str) -> str:
    """Return the flag of an argument. An argument without a flag has the name in the help, such as FILE."""
    action = next(action for action in args.parser._actions if action.dest == name)
    return next((flag for flag in action.option_strings if flag.startswith("--")), str(action.metavar))


def listed(value: Any) -> list[Any]:
    """Return the values of an argument as a list."""
    if value is None or value == "":
        return []
    return [one for one in value if one is not None] if isinstance(value, list | tuple | Iterator) else [value]


def list_of_path(path: Path | str) -> list[Path | str]:
    return [path]


def files_of_voice(spec: str) -> list[Path]:
    """Return the files of each voice in a mix, given by path or by a name that the user stored."""
    from ane.voices.finding import find_voice
    from ane.voices.voice import parse_mix

    found: list[Path] = []
    with suppress(UserError):  # who speaks reports it, and knows the voices of the model
        for name in parse_mix(str(spec))[0]:
            with suppress(UserError):
                found += find_voice(name, [paths.voices_dir()]).files
    return found


def files_of_model(name: Path | str) -> list[Path]:
    """Return the files of a model: a bundle by name or path, a folder with checkpoints, or a package."""
    path = Path(os.path.expanduser(name))
    if not os.path.exists(path):
        with suppress(UserError):
            path = find_bundle(str(name))
    if not os.path.isdir(path) or path.suffix == ".mlpackage":
        return [path]
    if os.path.isfile(path / MANIFEST_FILE):
        content: Any = None
        with suppress(UserError):
            content = read_json(path / MANIFEST_FILE)
        return [path / MANIFEST_FILE, *(path / file for file in _files_in(content))]
    return [file for pattern in MODEL_FILES for file in path.glob(pattern)]


def _files_in(content: Any) -> Iterator[str]:
    """Yield the files that a manifest of any family lists."""
    if isinstance(content, dict):
        if isinstance(content.get("file"), str):
            yield content["file"]
        content = list(content.values())
    if isinstance(content, list):
        for part in content:
            yield from _files_in(part)
