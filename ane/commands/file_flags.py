"""Check that a command does not write a file that it also reads, and writes no file twice."""

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
    """Check the paths that flags name before the command opens any file.

    Args:
        writes: Files or folders to write, by the argument that names each of them. ``None`` is standard output.
        reads: Names of the arguments that name files or folders to read.
        voices: Names of the arguments that name voices. A voice is a name, a path or a mix.
        models: Names of the arguments that name bundles, or checkpoints for `ane import`.
        cast: The cast of ``--cast``, because its voices are also read. ``None`` means that there is no cast.

    Raises:
        UserError: An output is also an input, or two outputs are the same file. The message names the flags.
    """
    inputs: list[tuple[str, Path | str]] = []
    for name in (*reads, *voices, *models):
        find = files_of_voice if name in voices else files_of_model if name in models else list_of_path
        inputs += [(flag_of(args, name), file) for value in listed(getattr(args, name, None)) for file in find(value)]
    if cast is not None:
        inputs += [
            (flag_of(args, "cast"), file)
            for voice in (cast.narrator, *cast.voices.values())
            if voice
            for file in files_of_voice(voice)
        ]
    inputs.append(("standard input", "-"))  # the shell may have redirected a file to it
    check_apart(inputs, [(flag_of(args, name), path) for name, values in writes.items() for path in listed(values)])


def flag_of(args: argparse.Namespace, name: str) -> str:
    """Return the flag of an argument. For a positional argument, return its name in the help, such as FILE."""
    action = next(action for action in args.parser._actions if action.dest == name)
    return next((flag for flag in action.option_strings if flag.startswith("--")), str(action.metavar))


def listed(value: Any) -> list[Any]:
    """Return the value or values of an argument as a list."""
    if value is None or value == "":
        return []
    return [item for item in value if item is not None] if isinstance(value, list | tuple | Iterator) else [value]


def list_of_path(path: Path | str) -> list[Path | str]:
    return [path]


def files_of_voice(spec: str) -> list[Path]:
    """Return the files of every voice in a mix. A voice is a path, or the name of a voice that the user stored."""
    from ane.voices.finding import find_voice
    from ane.voices.voice import parse_mix

    files: list[Path] = []
    with suppress(UserError):  # loading the voice later reports the error, and finds the model's own voices too
        for name in parse_mix(str(spec))[0]:
            with suppress(UserError):
                files += find_voice(name, [paths.voices_dir()]).files
    return files


def files_of_model(name: Path | str) -> list[Path]:
    """Return the files of a model: a bundle given by name or path, a folder with checkpoints, or a package."""
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
    """Yield the file names that a manifest lists, whatever the family of the model."""
    if isinstance(content, dict):
        if isinstance(content.get("file"), str):
            yield content["file"]
        content = list(content.values())
    if isinstance(content, list):
        for part in content:
            yield from _files_in(part)
