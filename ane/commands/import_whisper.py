"""The part of ``ane import`` that is for Whisper: recognising its checkpoints, and where they come from."""

import argparse
import os
from pathlib import Path

from rich.console import Console

from ane.commands.import_model import CheckpointOrigin
from ane.system.errors import UserError


def is_whisper_source(source: str) -> bool:
    """Whether SOURCE is a Whisper checkpoint on this machine, or a repository OWNER/NAME with Whisper in its name.

    Raises:
        UserError: a .pt file is damaged.
    """
    from ane.bundles.hub import is_repository
    from ane.bundles.pickles import load_pickle
    from ane.models.whisper.checkpoints import find_whisper_weights

    path = Path(os.path.expanduser(source))
    if os.path.exists(path):
        weights = find_whisper_weights(path)
        if os.path.isdir(path) and any(path.glob("*.pth")):     # Tortoise's
            return False
        if weights is None or weights.suffix != ".pt":
            return weights is not None
        content = load_pickle(weights)      # FastSpeech's checkpoints have the same suffix
        return isinstance(content, dict) and "dims" in content
    return is_repository(source) and "whisper" in source.lower()


def whisper_origin(args: argparse.Namespace, console: Console) -> CheckpointOrigin:
    """The checkpoint of SOURCE, downloaded if necessary, and checked against the hashes of --expect.

    Raises:
        UserError: --config or --revision does not apply, the hub cannot be reached, or a hash differs.
    """
    from ane.bundles.hashes import sha256_of
    from ane.bundles.hub import check_recorded_hashes, download_files, read_expected
    from ane.models.whisper.checkpoints import WhisperCheckpoint
    from ane.models.whisper.family import FAMILY

    if args.config is not None:
        raise UserError("config has no effect on a Whisper checkpoint, which states its own sizes: leave it out")
    path = Path(os.path.expanduser(args.source))
    if os.path.exists(path):
        if args.revision:
            raise UserError(f"--revision is for the hub; {path} is on this machine")
        checkpoint = WhisperCheckpoint(path)
        beside = (checkpoint.folder / name for name in FAMILY.files)
        files = {file.name: sha256_of(file) for file in dict.fromkeys([*checkpoint.files, *beside]) if file.is_file()}
        origin = CheckpointOrigin(path, None, {"files": files})
    else:
        found = download_files(args.source, FAMILY.required_files, FAMILY.files, revision=args.revision,
                               kind=FAMILY.title, progress=lambda file: console.print(f"Fetching {file}"))
        source = {"repository": args.source, "revision": found.revision, "files": found.files}
        origin = CheckpointOrigin(found.directory, None, source, found.licence)
    expected = {} if args.expect is None else read_expected(args.expect)
    check_recorded_hashes(expected, origin.source["files"], str(args.expect))
    return origin
