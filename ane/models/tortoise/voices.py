"""Make a voice's latents from its name, path, mix or clips, or at random."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ane.audio import resample, resample_windowed_sinc
from ane.audio.mel import CONDITIONING_RATE, DIFFUSION_RATE, conditioning_mel, diffusion_mel
from ane.backends.base import Backend
from ane.bundles import Bundle
from ane.system.errors import UserError
from ane.voices.finding import RANDOM, find_voice, list_voices
from ane.voices.voice import Clips, Voice, cache_key, cached_voice, load_voice, mix_voices, open_voice, parse_mix

CONDITIONING_SAMPLES = 132300  # 6 s at 22050 Hz, which the autoregressive model encodes of a clip
DIFFUSION_SAMPLES = 102400  # 4.27 s at 24000 Hz, which the diffusion model encodes of a clip
VOICE_NETWORKS = ("conditioning_encoder", "contextual_embedder", "rlg_auto", "rlg_diffuser")


def encode_clips(
    clips: Sequence[tuple[np.ndarray, int]],
    backend: Backend,
    mel_norms: np.ndarray,
    rng: np.random.Generator,
    *,
    name: str = "",
    source: str = "",
    mode: str = "first",
) -> Voice:
    """Encode reference clips to a voice: the latents of both encoders, averaged over the clips.

    The autoregressive model encodes 6 s of each clip, from a random start if the clip is longer. The diffusion model
    encodes its first 4.27 s. Shorter clips are padded with silence (upstream api.py, get_conditioning_latents). All
    clips then have the same number of frames, so the mean of the clips' means is upstream's mean over all frames.

    Args:
        clips: Audio (S,) float32 and rate in Hz of each clip, at least one.
        backend: Backend of the encoders.
        mel_norms: Norms of the decoder's mel, (80,) float32.
        rng: Generator that draws ``integers(0, samples - 132300 + 1)`` for each clip longer than 6 s, in order.
        name: Name of the voice.
        source: Origin of the voice.
        mode: Parts of the clips that are encoded. "first" means the parts above. "slices" encodes all audio in slices
            of 6 s and 4.27 s, all with the same weight. "whole" takes the mean of each clip's slices, and gives all
            clips the same weight.

    Raises:
        UserError: There are no clips.
    """
    if not clips:
        raise UserError(f"voice {name}: no clips: give at least one")
    ar, diffusion = [], []
    for audio, rate in clips:  # one by one, to bound memory
        at_22050 = resample(audio, rate, CONDITIONING_RATE)
        first = mode == "first"
        windows = [conditioning_window(at_22050, rng)] if first else _slices(at_22050, CONDITIONING_SAMPLES)
        ar_rows = [backend.run("ar_conditioning", mel=conditioning_mel(window, mel_norms)[None]) for window in windows]
        windows = (
            [diffusion_window(at_22050)]
            if first
            else _slices(resample_windowed_sinc(at_22050, CONDITIONING_RATE, DIFFUSION_RATE), DIFFUSION_SAMPLES)
        )
        rows = [backend.run("diffusion_conditioning", mel=diffusion_mel(window)[None]) for window in windows]
        ar += [_mean(ar_rows)] if mode == "whole" else ar_rows
        diffusion += [_mean(rows)] if mode == "whole" else rows
    return Voice(_mean(ar), _mean(diffusion), name, source, from_clips=True)


def random_voice(backend: Backend, widths: tuple[int, int], rng: np.random.Generator) -> Voice:
    """Make a random voice: pass noise through upstream's two random latent converters.

    Args:
        backend: Backend of the converters.
        widths: Widths (D, C) of the two latents.
        rng: Generator that draws ``standard_normal((1, D))``, then ``standard_normal((1, C))``, float32.
    """
    ar_noise, diffusion_noise = (rng.standard_normal((1, width), dtype=np.float32) for width in widths)
    return Voice(
        backend.run("ar_random", noise=ar_noise),
        backend.run("diffusion_random", noise=diffusion_noise),
        "random",
        "drawn at random",
    )


def conditioning_window(audio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Crop audio (S,) at 22050 Hz to 6 s at random, or pad it with zeros at the end: (132300,)."""
    gap = len(audio) - CONDITIONING_SAMPLES
    start = int(rng.integers(0, gap + 1)) if gap > 0 else 0
    return _fit_length(audio[start:], CONDITIONING_SAMPLES)


def diffusion_window(audio: np.ndarray) -> np.ndarray:
    """Return the first 4.27 s of audio (S,) at 22050 Hz as (102400,) at 24000 Hz, padded with zeros at the end.

    This uses upstream's resampler, because the model was trained with it. Above 11 kHz it leaves spectral images of the
    speech, where soxr leaves silence. On five upstream voices, soxr lowers the three highest bands of the log-mel by
    2.3. With random weights, it changes the latent by 6 to 9 % (22 to 25 dB).
    """
    return _fit_length(resample_windowed_sinc(audio, CONDITIONING_RATE, DIFFUSION_RATE), DIFFUSION_SAMPLES)


def _slices(audio: np.ndarray, samples: int) -> list[np.ndarray]:
    """Cut audio (S,) into consecutive slices (samples,). The last slice ends with the audio, and overlaps."""
    starts = [*range(0, max(len(audio) - samples, 0), samples), max(len(audio) - samples, 0)]
    return [_fit_length(audio[start : start + samples], samples) for start in starts]


def _fit_length(audio: np.ndarray, samples: int) -> np.ndarray:
    return np.pad(audio[:samples], (0, max(0, samples - len(audio))))


def _mean(rows: list[np.ndarray]) -> np.ndarray:
    """Return the mean (1, width) float32 of latents (1, width)."""
    return np.concatenate(rows).mean(axis=0, keepdims=True, dtype=np.float64).astype(np.float32)


def resolve_voice(
    spec: str,
    *,
    folders: Iterable[Path],
    backend: Backend,
    mel_norms: np.ndarray,
    model_id: str,
    widths: tuple[int, int],
    rng: np.random.Generator,
    seed: int = 0,
    cache: bool = True,
    mode: str = "first",
) -> Voice:
    """Return the voice that ``spec`` names.

    If a mix has no weights and all its voices are clips, it is one voice that is encoded from all clips together, as in
    upstream. Any other mix is the mean of its voices' latents. (Upstream refuses to mix clips with latents, and makes a
    mix with ``random`` entirely random.)

    Args:
        spec: A name, a path, ``random``, or a mix (``a&b``, ``a:0.3&b:0.7``).
        folders: Folders in which names are looked up, in order.
        backend: Backend of the encoders.
        mel_norms: Norms of ``encode_clips``.
        model_id: Identity of the encoders' weights and precision. Cached latents belong to one model.
        widths: Widths (D, C) of the model's latents.
        rng: Generator of the request. Only ``random`` draws from it, as in ``random_voice``.
        seed: Seed that selects 6 s of longer clips. It does not come from ``rng``, so that a voice is the same in every
            request. In upstream, it changes with the request's seed.
        cache: Whether to read latents of clips from the cache, and to store them there.
        mode: Mode of ``encode_clips``.

    Raises:
        UserError: The voice does not exist, its clips are unsuitable, a file is damaged, the mix is invalid, or latents
            belong to another model.
    """
    names, weights = parse_mix(spec)
    folders = list(folders)
    parts = [
        None if name == RANDOM else open_voice((found := find_voice(name, folders)).name, found.files) for name in names
    ]
    if weights is None and all(isinstance(part, Clips) for part in parts):
        parts = [Clips(spec if len(parts) > 1 else parts[0].name, tuple(file for part in parts for file in part.files))]
    voices = []
    for part in parts:
        if part is None:
            voice = random_voice(backend, widths, rng)
        elif isinstance(part, Clips):
            encode = partial(_encode, part, backend, mel_norms, seed, mode)
            key = cache_key(part.files, model_id if mode == "first" else f"{model_id} {mode}", seed)
            voice = cached_voice(key, part.name, widths, encode) if cache else encode()
        else:
            voice = part
        if mode != "first" and not isinstance(part, Clips):
            raise UserError(
                f"clip_mode has no effect on voice {voice.name}, because it is stored as latents: leave it out, or "
                "name its clips",
                "clip_mode",
            )
        voice.check_widths(widths)
        voices.append(voice)
    backend.release(*VOICE_NETWORKS)
    return voices[0] if len(voices) == 1 else mix_voices(voices, weights, spec)


def _encode(clips: Clips, backend: Backend, mel_norms: np.ndarray, seed: int, mode: str) -> Voice:
    source = ", ".join(file.name for file in clips.files)
    return encode_clips(
        clips.read(), backend, mel_norms, np.random.default_rng(seed), name=clips.name, source=source, mode=mode
    )


def cloning_notes(model: Bundle, voice: Voice) -> list[str]:
    """Return warnings about a voice that another decoder made, or clips for a model that does not clone voices."""
    own = model.decoder_md5 if voice.decoder else ""
    if own and not own.startswith(voice.decoder):
        return [
            f"voice {voice.name} was made with another decoder (MD5 {voice.decoder[:8]}, the model's is {own[:8]}) "
            "and may sound unlike its speaker: make it again from its clips with `ane voices add`"
        ]
    if model.clones or not voice.from_clips:
        return []
    known = list_voices([model.voices] if model.voices else [])
    near = min(known, key=lambda name: np.linalg.norm(load_voice(known[name].files[0]).ar - voice.ar), default="")
    only = f"{', '.join(known)}, of which {near} is nearest" if near else "it was trained on"
    return [
        f"voice {voice.name} is not a clone of its clips: {model.name} has only the voices {only}; the official "
        "model clones voices"
    ]
