"""From a voice's name, path or mix to its latents."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np

from ane.backends.base import Backend
from ane.bundles import Model
from ane.models.tortoise.voice_encoding import VOICE_NETWORKS, encode_clips, random_voice
from ane.voices.finding import RANDOM, find_voice, list_voices
from ane.voices.voice import Clips, Voice, cache_key, cached_voice, mix_voices, open_voice, parse_mix


def resolve_voice(spec: str, *, folders: Iterable[Path], backend: Backend, mel_norms: np.ndarray, model_id: str,
                  widths: tuple[int, int], rng: np.random.Generator, seed: int = 0, cache: bool = True) -> Voice:
    """The voice that ``spec`` names: a name, a path, ``random``, or a mix (``a&b``, ``a:0.3&b:0.7``).

    A mix without weights whose voices are all clips is one voice encoded from all clips together, as in upstream; any
    other mix is the mean of its voices' latents. (Upstream refuses to mix clips with latents, and a mix with ``random``
    is entirely random there.)

    Args:
        folders: the folders in which names are looked up, in order.
        mel_norms: (80,) float32.
        model_id: identifies the encoders' weights and precision; cached latents belong to one model.
        widths: (D, C) of the model.
        rng: the request's generator. Only ``random`` draws from it, for each in order: (1, D), then (1, C) normals.
        seed: selects the 6 s that are used of longer clips. Not from ``rng``, so that a voice is the same in every
            request; in upstream it changes with the request's seed.
        cache: read latents of clips from the cache, and store them there.

    Raises:
        UserError: no such voice, unsuitable clips, damaged files, an invalid mix, or latents of another model.
    """
    names, weights = parse_mix(spec)
    folders = list(folders)
    parts = [None if name == RANDOM else _open(name, folders) for name in names]
    if weights is None and all(isinstance(part, Clips) for part in parts):
        parts = [Clips(spec if len(parts) > 1 else parts[0].name, tuple(file for part in parts for file in part.files))]
    voices = []
    for part in parts:
        if part is None:
            voice = random_voice(backend, widths, rng)
        elif isinstance(part, Clips):
            encode = partial(_encode, part, backend, mel_norms, seed)
            key = cache_key(part.files, model_id, seed)
            voice = cached_voice(key, part.name, widths, encode) if cache else encode()
        else:
            voice = part
        voice.check_widths(widths)
        voices.append(voice)
    backend.release(*VOICE_NETWORKS)
    return voices[0] if len(voices) == 1 else mix_voices(voices, weights, spec)


def _open(name: str, folders: list[Path]) -> Voice | Clips:
    found = find_voice(name, folders)
    return open_voice(found.name, found.files)


def _encode(clips: Clips, backend: Backend, mel_norms: np.ndarray, seed: int) -> Voice:
    source = ", ".join(file.name for file in clips.files)
    return encode_clips(clips.read(), backend, mel_norms, np.random.default_rng(seed), name=clips.name, source=source)


def cloning_notes(model: Model, voice: Voice) -> list[str]:
    """A warning when a voice was encoded from clips for a model that was trained on few speakers."""
    if model.clones or not voice.clip_mels:
        return []
    known = ", ".join(list_voices([model.voices] if model.voices else [])) or "it was trained on"
    return [f"voice {voice.name} is not a clone of its clips: {model.name} has only the voices {known} and uses the "
            "nearest; the official model clones voices"]
