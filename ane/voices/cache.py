"""Latents of clips, computed once. An entry that cannot be read or does not fit is computed again."""

import contextlib
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from ane.system import paths
from ane.system.errors import UserError
from ane.voices.voice import Voice, load_voice, save_voice

VERSION = 1         # raise when the same clips and model would give other latents than before


def cache_key(files: Iterable[Path], model_id: str, seed: int) -> str:
    """Sha-256 (hex) of what the latents depend on: the files' bytes in order, the model, the seed, the algorithm.

    Raises:
        UserError: a file cannot be read.
    """
    total = hashlib.sha256(f"voice {VERSION}\n{seed}\n{model_id}\n".encode())
    for path in files:
        try:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    return total.hexdigest()


def remember(key: str, name: str, widths: tuple[int, int], compute: Callable[[], Voice]) -> Voice:
    """The voice stored under ``key`` if it is whole and of widths (D, C), else what ``compute`` gives, stored."""
    path = paths.cache_dir() / "voices" / f"{key}.safetensors"
    with contextlib.suppress(UserError):        # missing, damaged or foreign: compute it
        voice = load_voice(path, name)
        voice.check_widths(widths)
        return voice
    voice = compute()
    with contextlib.suppress(UserError):        # a cache that cannot be written costs time, not the result
        save_voice(path, voice)
    return voice
