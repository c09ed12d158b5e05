"""Where a voice is written: under a name among the user's voices, or to a file."""

import os
from pathlib import Path

from ane.bundles import Model, is_path
from ane.system import paths
from ane.system.errors import UserError
from ane.system.files import check_output_file

SUFFIXES = (".safetensors", ".pth")


def voice_destination(output: str, model: Model, force: bool, stored: bool = True) -> Path:
    """The file for ``--output``: a path, or a name that ends in .safetensors or .pth, is a file; any other name is
    stored where ``-v NAME`` finds it, unless ``stored`` is False.

    Raises:
        UserError: a name that no voice can have, a file that exists (without ``force``) or that cannot be written.
    """
    file = Path(os.path.expanduser(output))
    if file.suffix.lower() not in SUFFIXES:
        if not stored or is_path(output):
            raise UserError(f"{output!r} cannot name a voice file: choose one that ends in {' or '.join(SUFFIXES)}"
                            f"{', or a name without a path' if stored else ''}")
        check_name(output, model)
        file = paths.voices_dir() / f"{output}.safetensors"
    check_output_file(file)
    if os.path.exists(file) and not force:
        raise UserError(f"{file} exists; give --force to replace it, or choose another name")
    return file


def check_name(name: str, model: Model) -> None:
    """Raise UserError for a name under which ``-v`` would not find the voice."""
    from ane.voices import RANDOM, list_voices
    from ane.voices.finding import is_voice_file

    if name in (RANDOM, "?") or name.startswith((".", "-", "~")) or any(sign in name for sign in "/\\&:"):
        raise UserError(f"{name!r} cannot name a voice: choose one without / \\ & : and without . - ~ in front, "
                        f"other than {RANDOM} and ?")
    if not name or name != name.strip() or not name.isprintable() or is_voice_file(Path(name)):
        raise UserError(f"{name!r} cannot name a voice: choose printable characters, without spaces at the ends and "
                        "without the suffix of a file")
    if model.voices and name in list_voices([model.voices]):
        raise UserError(f"{model.name} has a voice {name} already, which would hide yours; choose another name")
