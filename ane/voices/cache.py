"""A cache of the latents computed from clips. An entry that is damaged or does not fit the model is computed again."""

import contextlib
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from ane.system import paths
from ane.system.errors import UserError
from ane.voices.voice import Voice, load_voice, save_voice

VERSION = 1         # increase it when the same clips and model give other latents than before


def cache_key(files: Iterable[Path], model_id: str, seed: int) -> str:
    """SHA-256 (hex) of what the latents depend on: the files' bytes in order, the model, the seed, ``VERSION``.

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


def cached_voice(key: str, name: str, widths: tuple[int, int], compute: Callable[[], Voice]) -> Voice:
    """Return the voice stored under ``key`` if it is intact and of widths (D, C), else compute and store it."""
    with contextlib.suppress(UserError):        # missing, damaged, of another model
        voice = load_voice(_path(key), name)
        voice.check_widths(widths)
        return voice
    voice = compute()
    with contextlib.suppress(UserError):        # a cache that cannot be written costs time, not the result
        save_voice(_path(key), voice)
    return voice


def _path(key: str) -> Path:
    return paths.cache_dir() / "voices" / f"{key}.safetensors"
