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
    from ane.voices import check_voice_name, list_voices

    file = Path(os.path.expanduser(output))
    if file.suffix.lower() not in SUFFIXES:
        if not stored or is_path(output):
            raise UserError(f"{output!r} cannot name a voice file: choose one that ends in {' or '.join(SUFFIXES)}"
                            f"{', or a name without a path' if stored else ''}")
        check_voice_name(output)
        if model.voices and output in list_voices([model.voices]):
            raise UserError(f"{model.name} has a voice {output} already, which would hide yours; choose another name")
        file = paths.voices_dir() / f"{output}.safetensors"
    check_output_file(file)
    if os.path.exists(file) and not force:
        raise UserError(f"{file} exists; give --force to replace it, or choose another name")
    return file
