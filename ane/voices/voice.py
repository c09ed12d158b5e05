"""Define voices, read and write their files, mix them as ``a:0.3&b:0.7`` says, and cache the latents of clips.

In a mix ``a&b``, both voices have the same share. A mix ``a:0.3&b:0.7`` has weights, whose sum need not be 1.
"""

import contextlib
import hashlib
import io
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy

from ane.audio.mel import CONDITIONING_RATE
from ane.audio.reader import MIN_CLIP_SECONDS, check_clip, read_clip
from ane.system import paths
from ane.system.errors import NotFoundError, UserError, check_path, check_type, system_errors
from ane.system.files import replacing

LATENT_SUFFIXES = (".safetensors", ".pth")
_LATENT_KEYS = ("ar_latent", "diffusion_latent")
_FORMAT = "tortoise-ane voice 1"
# a file has this metadata key, or in old files this tensor, if its latents were computed from clips
_FROM_CLIPS = "from_clips", "clip_mels"
# file names of ai-voice-cloning, which contain the MD5 of the decoder
_OF_DECODER = re.compile(r"cond_latents_([0-9a-f]{8})")


@dataclass(frozen=True, eq=False, repr=False)
class Voice:
    """A pair of conditioning latents, and where they came from.

    You may pass a latent of any float type, as (width,) or (1, width).

    Attributes:
        ar: Latent for the autoregressive model, (1, D) float32.
        diffusion: Latent for the diffusion model, (1, C) float32. C is 0 if only HiFi-GAN can speak with the voice.
        name: Name of the voice.
        source: The clips or the mix that the latents were made from, for display.
        from_clips: Whether the latents were computed from clips. A mix counts as computed from clips if any of its
            latents were computed from clips.
        decoder: MD5 of the file with the decoder that computed the latents, or the first characters of this MD5.

    Raises:
        InvalidValueError: A latent is not one row of finite floats, or the name is not a text.
    """

    ar: np.ndarray
    diffusion: np.ndarray
    name: str
    source: str = ""
    from_clips: bool = False
    decoder: str = ""

    def __post_init__(self) -> None:
        check_type("name", self.name, str, "a text")
        for parameter in ("ar", "diffusion"):
            latent = getattr(self, parameter)
            check_type(parameter, latent, np.ndarray, "an array of shape (1, width)")
            if fault := _fault(latent, may_be_empty=parameter == "diffusion"):
                raise UserError(f"{parameter} {fault}", parameter)
            object.__setattr__(self, parameter, latent.astype(np.float32, copy=False).reshape(1, -1))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Voice):
            return NotImplemented
        return self._facts == other._facts and all(
            np.array_equal(own, others) for own, others in ((self.ar, other.ar), (self.diffusion, other.diffusion))
        )

    def __hash__(self) -> int:
        return hash(self._facts)

    def __repr__(self) -> str:
        return f"<Voice {self.name!r}: latents of {self.ar.size} and {self.diffusion.size} numbers, {self.source!r}>"

    @property
    def _facts(self) -> tuple[str, str, bool, str]:
        return self.name, self.source, self.from_clips, self.decoder

    @property
    def widths(self) -> tuple[int, int]:
        """The widths of the latents, (D, C)."""
        return self.ar.shape[1], self.diffusion.shape[1]

    @property
    def has_diffusion(self) -> bool:
        """Whether there is a latent for the diffusion model. Without this latent (C is 0), only HiFi-GAN can speak."""
        return self.diffusion.size > 0

    def check_widths(self, widths: tuple[int, int]) -> None:
        """Raise UserError unless the latents have the widths (D, C) that a model needs."""
        if self.widths != widths and (self.has_diffusion or self.widths[0] != widths[0]):
            raise UserError(
                f"voice {self.name} was made with another model, because its latents have the widths {self.widths[0]} "
                f"and {self.widths[1]} and this model needs {widths[0]} and {widths[1]}: compute it again from its "
                "clips with `ane voices add`"
            )


@dataclass(frozen=True)
class Clips:
    """A voice as reference audio: sound files, or one .pth file with upstream's list of raw clips."""

    name: str
    files: tuple[Path, ...]

    def read(self) -> list[tuple[np.ndarray, int]]:
        """Read the clips in order, each as audio (S,) float32 and its rate in Hz. Raises UserError for a bad clip."""
        clips = []
        for file in self.files:
            if file.suffix == ".pth":
                for number, row in enumerate(_tensors(file)):
                    check_clip(row[0], CONDITIONING_RATE, f"{file}, clip {number + 1}")
                    clips.append((row[0], CONDITIONING_RATE))
            else:
                clips.append(read_clip(file))
        return clips


def open_voice(name: str, files: tuple[Path, ...]) -> Voice | Clips:
    """Read a voice from its single .safetensors or .pth file of latents. If the files are clips, return ``Clips``.

    Upstream writes two kinds of .pth files. A file of the first kind has the pair of latents
    (get_conditioning_latents.py). A file of the second kind has a copy of the clips, a list of (1, S) at 22050 Hz
    (utils/audio.py of its git master). The length distinguishes the two kinds, because latents are shorter than any
    usable clip. ai-voice-cloning puts the first characters of the decoder's MD5 in its files' names. These characters
    become ``Voice.decoder``.

    Raises:
        UserError: A file is missing or damaged, or contains neither latents nor clips.
    """
    path = files[0]
    if path.suffix == ".safetensors":
        return load_voice(path, name)
    if path.suffix == ".pth":
        rows = _tensors(path)
        decoder = match[1] if (match := _OF_DECODER.search(path.stem)) else ""
        are_latents = all(row.shape[1] < MIN_CLIP_SECONDS * CONDITIONING_RATE for row in rows)
        if are_latents and len(rows) == 1 and "hifigan" in path.name:
            none = np.zeros((1, 0), np.float32)
            return Voice(_latent(rows[0], path, "the latent"), none, name, path.name, decoder=decoder)
        if are_latents and len(rows) == 2:
            return Voice(
                _latent(rows[0], path, "latent 1"), _latent(rows[1], path, "latent 2"), name, path.name, decoder=decoder
            )
    return Clips(name, files)


def load_voice(path: Path | str, name: str = "") -> Voice:
    """Read a voice from a .safetensors file.

    Args:
        name: Name of the voice. "" means the name in the file or, if there is none, the name of the file.

    Raises:
        UserError: The file does not exist or is damaged, or it lacks the tensor ar_latent (1, D) or diffusion_latent
            (1, C).
    """
    check_path(path)
    path = Path(os.path.expanduser(path))
    if not os.path.isfile(path):
        raise NotFoundError(f"{path}: no such voice file")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in set(file.keys()) & set(_LATENT_KEYS)}
            from_clips = not {*file.keys(), *metadata}.isdisjoint(_FROM_CLIPS)
        for tensor in tensors.values():
            if tensor.dtype.kind == "V":  # a dtype such as bfloat16, which libraries like ml_dtypes add to NumPy
                raise TypeError(f"numbers of type {tensor.dtype}")
    except (safetensors.SafetensorError, OSError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read as a safetensors voice ({error}): create it again") from error
    missing = [key for key in _LATENT_KEYS if key not in tensors]
    if missing:
        raise UserError(
            f"{path}: is not a voice file, because it lacks {' and '.join(missing)} (a voice file has "
            f"{' and '.join(_LATENT_KEYS)}): create it again"
        )
    ar, diffusion = (_latent(tensors[key], path, key) for key in _LATENT_KEYS)
    return Voice(
        ar,
        diffusion,
        name or metadata.get("name") or path.stem,
        metadata.get("source", ""),
        from_clips,
        metadata.get("decoder", ""),
    )


def save_voice(path: Path | str, voice: Voice, lasting: bool = True) -> None:
    """Write a voice to a .safetensors file, or to a .pth file as upstream does, as a pair of latents.

    Args:
        lasting: Whether to wait until the operating system has the file on disk.

    Raises:
        UserError: The path has another suffix, or cannot be written.
    """
    check_path(path)
    check_type("voice", voice, Voice, "a voice")
    path = Path(path)
    if path.suffix not in LATENT_SUFFIXES:
        raise UserError(f"cannot write voice {path}: end its name in {' or '.join(LATENT_SUFFIXES)}")
    latents = [np.ascontiguousarray(latent) for latent in (voice.ar, voice.diffusion)]
    if path.suffix == ".pth":
        import torch  # importing torch takes a second, and a .safetensors voice does not need it

        buffer = io.BytesIO()
        torch.save(tuple(torch.from_numpy(latent.copy()) for latent in latents), buffer)
        content = buffer.getvalue()
    else:
        content = safetensors.numpy.save(
            dict(zip(_LATENT_KEYS, latents, strict=True)),
            {
                "format": _FORMAT,
                "name": voice.name,
                "source": voice.source,
                **({_FROM_CLIPS[0]: "yes"} if voice.from_clips else {}),
                **({"decoder": voice.decoder} if voice.decoder else {}),
            },
        )
    # from memory, because the libraries would hide that the disk is full
    with replacing(path, lasting=lasting) as target:
        target.write_bytes(content)


def _tensors(path: Path) -> list[np.ndarray]:
    """Read the tensors of a .pth voice as rows (1, n) float32. Raises UserError if the file contains anything else.

    ai-voice-cloning writes (latent, latent, mels (1, n, 80, S), None). For such a file, return only the two latents.
    Files that ai-voice-cloning writes for HiFi-GAN have a single latent.
    """
    import torch

    from ane.bundles.torch_checkpoint import load_pickle

    content = load_pickle(path)
    if isinstance(content, torch.Tensor):
        if "hifigan_cond_latents" not in path.name:
            raise UserError(
                f"{path}: is not a voice but one tensor: use the pair of latents (1, 1024) and (1, 2048). If this is a "
                "fork's single latent for HiFi-GAN, rename the file to hifigan_cond_latents….pth"
            )
        content = [content]
    rows = list(content) if isinstance(content, (tuple, list)) else []
    if len(rows) == 4 and rows[3] is None and isinstance(rows[2], torch.Tensor) and rows[2].ndim == 4:
        rows = rows[:2]
    if not rows or not all(
        isinstance(row, torch.Tensor)
        and row.is_floating_point()
        and row.ndim in (1, 2)
        and row.layout == torch.strided
        and row.device.type == "cpu"
        and row.numel() == row.shape[-1] > 0
        for row in rows
    ):
        raise UserError(
            f"{path}: is not a voice: use the pair of latents (1, 1024) and (1, 2048), or a list of clips (1, samples)"
        )
    return [row.detach().reshape(1, -1).float().numpy() for row in rows]


def _latent(array: np.ndarray, path: Path, key: str) -> np.ndarray:
    """Convert one latent to (1, width) float32. Raises UserError if it is not a row of finite numbers."""
    if fault := _fault(array, may_be_empty=key == _LATENT_KEYS[1]):
        raise UserError(f"{path}: {key} {fault}: create the voice again")
    return array.astype(np.float32).reshape(1, -1)


def _fault(array: np.ndarray, may_be_empty: bool) -> str:
    """Return why an array is not a latent, or "" if it is. Only HiFi-GAN takes a voice with an empty latent."""
    empty = array.size == 0 and not may_be_empty
    if empty or array.dtype.kind != "f" or array.shape not in ((1, array.size), (array.size,)):
        return f"is {array.dtype} {array.shape}, but a latent is one row of floats"
    if not (np.abs(array) <= np.finfo(np.float32).max).all():  # NaN is not at most anything
        return "has NaN, infinite or far too large values"
    return ""


def parse_mix(spec: str) -> tuple[list[str], list[float] | None]:
    """Split a mix into its names or paths and their weights. If it has no weights, return ``None`` for the weights.

    A text that is the path of an existing file counts as this path, not as a mix.

    Raises:
        UserError: A name is empty, only some voices have weights, a weight is negative or not finite, or all weights
            are zero.
    """
    if os.path.exists(os.path.expanduser(spec)):
        return [spec], None
    parts = [_name_and_weight(part.strip()) for part in spec.split("&")]
    names = [name for name, _ in parts]
    weights = [weight for _, weight in parts if weight is not None]
    if not all(names):
        raise UserError(f"voice {spec!r}: a name is missing: write a, a&b or a:0.3&b:0.7")
    if weights and len(weights) < len(names):
        raise UserError(f"voice {spec!r}: give every voice a weight or none, as in a:0.3&b:0.7")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise UserError(f"voice {spec!r}: a weight must be a finite number of at least 0")
    if weights and not sum(weights):
        raise UserError(f"voice {spec!r}: all weights are zero: at least one must be positive")
    return names, weights or None


def mix_voices(voices: Sequence[Voice], weights: Sequence[float] | None = None, name: str = "") -> Voice:
    """Return the weighted mean of one or more voices.

    Args:
        weights: Weight of each voice. No weight is negative, and one is above zero. ``None`` means equal weights.

    Raises:
        UserError: The voices have latents of different widths.
    """
    if len({voice.widths for voice in voices}) > 1:
        raise UserError(
            f"voice {name}: voices with only the decoder's latent cannot be mixed with other voices: leave them out"
        )
    shares = np.asarray(weights if weights is not None else [1.0] * len(voices), np.float64)
    shares = shares / shares.max()  # divided first, so that the sum neither overflows nor underflows
    shares = shares / shares.sum()
    ar, diffusion = (
        np.sum([share * row.astype(np.float64) for share, row in zip(shares, rows, strict=True)], axis=0)
        for rows in ([voice.ar for voice in voices], [voice.diffusion for voice in voices])
    )
    from_clips = any(voice.from_clips for share, voice in zip(shares, voices, strict=True) if share > 0)
    source = "mix of " + ", ".join(f"{share:.0%} {voice.name}" for share, voice in zip(shares, voices, strict=True))
    decoders = {voice.decoder for voice in voices}
    return Voice(
        ar.astype(np.float32),
        diffusion.astype(np.float32),
        name or "mix",
        source,
        from_clips,
        decoders.pop() if len(decoders) == 1 else "",
    )


def _name_and_weight(part: str) -> tuple[str, float | None]:
    """Split "a:0.3" into ("a", 0.3), and "a" into ("a", None)."""
    name, colon, tail = part.rpartition(":")
    if not colon:
        return part, None
    try:
        return name.strip(), float(tail)
    except ValueError:
        return part, None  # the colon is part of a path


CACHE_VERSION = 1  # increase this number when the same clips and the same model result in new latents


def cache_key(files: Iterable[Path], model_id: str, seed: int) -> str:
    """Return the SHA-256 (hex) of everything that determines a voice's latents.

    The hash covers the bytes of the clips' files in order, the model, the seed and ``CACHE_VERSION``.

    Raises:
        UserError: A file cannot be read.
    """
    total = hashlib.sha256(f"voice {CACHE_VERSION}\n{seed}\n{model_id}\n".encode())
    for path in files:
        with system_errors(f"{path}: cannot be read"), path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def cached_voice(key: str, name: str, widths: tuple[int, int], compute: Callable[[], Voice]) -> Voice:
    """Return the voice stored under ``key`` if it is intact and has widths (D, C). Otherwise, compute and store it."""
    with contextlib.suppress(UserError):  # the stored voice may be missing, damaged, or from another model
        voice = load_voice(_cache_path(key), name)
        voice.check_widths(widths)
        return voice
    voice = compute()
    with contextlib.suppress(UserError):  # the voice is usable even if the cache cannot be written
        save_voice(_cache_path(key), voice, lasting=False)
    return voice


def _cache_path(key: str) -> Path:
    return paths.cache_dir() / "voices" / f"{key}.safetensors"
