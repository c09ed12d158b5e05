"""A voice as the user writes it, to a voice as the models take it."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np

from ane.backends.base import Backend
from ane.bundles import Model
from ane.models.tortoise.voice_encoding import NETWORKS, encode_clips, random_voice
from ane.voices.cache import cache_key, cached_voice
from ane.voices.finding import RANDOM, find_voice, list_voices
from ane.voices.mixing import mix_voices, parse_mix
from ane.voices.voice import Clips, Voice, open_voice


def resolve_voice(spec: str, *, folders: Iterable[Path], backend: Backend, mel_norms: np.ndarray, model_id: str,
                  widths: tuple[int, int], rng: np.random.Generator, seed: int = 0, cache: bool = True) -> Voice:
    """The voice that ``spec`` asks for: a name, a path, ``random``, or a mix (``a&b``, ``a:0.3&b:0.7``).

    A mix without weights of voices that are all clips is one voice from all clips together, as upstream has it;
    any other mix is the mean of its voices' latents. (Upstream refuses to mix clips with latents, and makes every mix
    with ``random`` wholly random.)

    Args:
        folders: where names are looked up, in order.
        mel_norms: (80,) float32.
        model_id: names the encoders' weights and precision; latents in the cache belong to one model.
        widths: (D, C) of the model.
        rng: the request's generator. Only ``random`` draws from it, (1, D) and then (1, C) normals, in the mix's order.
        seed: chooses the 6 s that are heard of longer clips. Apart from ``rng``, so that a voice stays the same
            from request to request; upstream lets it change with the request's seed.
        cache: look for latents of clips in the cache, and store them there.

    Raises:
        UserError: no such voice, unfit clips, damaged files, a faulty mix, or latents made for another model.
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
            voice = cached_voice(cache_key(part.files, model_id, seed), part.name, widths, encode) if cache else encode()
        else:
            voice = part
        voice.check_widths(widths)
        voices.append(voice)
    backend.release(*NETWORKS)
    return voices[0] if len(voices) == 1 else mix_voices(voices, weights, spec)


def _open(name: str, folders: list[Path]) -> Voice | Clips:
    found = find_voice(name, folders)
    return open_voice(found.name, found.files)


def _encode(clips: Clips, backend: Backend, mel_norms: np.ndarray, seed: int) -> Voice:
    source = ", ".join(file.name for file in clips.files)
    return encode_clips(clips.read(), backend, mel_norms, np.random.default_rng(seed), name=clips.name, source=source)


def not_cloned(model: Model, voice: Voice) -> list[str]:
    """What the user should know of a voice that was taken from clips for a model that knows few speakers."""
    if model.clones or not voice.clip_mels:
        return []
    known = ", ".join(list_voices([model.voices] if model.voices else [])) or "it was trained on"
    return [f"voice {voice.name} is not a clone of its clips: {model.name} knows the voices {known} alone and takes "
            "the nearest; the official model clones"]
