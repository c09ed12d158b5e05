"""Find or make a voice, which is two latent vectors: from a name, a path, a mix of voices, clips, or random noise."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ane.audio import resample, resample_windowed_sinc
from ane.audio.mel import CONDITIONING_RATE, DIFFUSION_RATE, conditioning_mel, diffusion_mel
from ane.backends.base import Backend
from ane.bundles import Bundle
from ane.system.errors import NoEffectError, UserError, check_type, short
from ane.voices.finding import RANDOM, find_voice, list_voices
from ane.voices.voice import Clips, Voice, cache_key, cached_voice, load_voice, mix_voices, open_voice, parse_mix

CONDITIONING_SAMPLES = 132300  # samples of a clip that the autoregressive model's encoder takes: 6 s at 22050 Hz
DIFFUSION_SAMPLES = 102400  # samples of a clip that the diffusion model's encoder takes: 4.27 s at 24000 Hz
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
    """Encode reference clips to a voice: a latent for the autoregressive model, and one for the diffusion model.

    In mode "first", the autoregressive model's encoder takes 6 s of each clip, from a random start if the clip is
    longer. The diffusion model's encoder takes the first 4.27 s. Shorter clips are padded with silence, as in upstream
    (api.py, get_conditioning_latents). Each latent is the mean over the clips. Upstream takes the mean over the frames
    of all clips, which is the same, because all clips have the same number of frames here.

    Args:
        clips: At least one clip. Each is a pair of the audio, (S,) float32, and its rate in Hz.
        backend: Backend that runs the encoders.
        mel_norms: Numbers by which the 80 bands of the autoregressive model's mel are divided, (80,) float32.
        rng: Generator that draws ``integers(0, samples - 132300 + 1)`` for each clip longer than 6 s, in order.
        name: Name of the voice.
        source: Text that says where the voice comes from.
        mode: Part of the clips that is encoded. "first" is described above. "slices" cuts every clip into slices, of 6
            s for one encoder and of 4.27 s for the other, and takes the mean over all slices. "whole" cuts the same
            slices. It first takes the mean over the slices of each clip, and then the mean over the clips.

    Raises:
        UserError: ``clips`` is empty.
    """
    if not clips:
        raise UserError(f"the voice {name} has no clips: give at least one clip")
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


def checked_clips(clips: Sequence[np.ndarray] | np.ndarray) -> list[np.ndarray]:
    """Return clips that a program passed as a list of mono arrays, (S,) float32. A single clip may be one array.

    Raises:
        InvalidValueError: No clip is given, or a clip is not a mono array of numbers.
    """
    wanted = "arrays of samples (for files, pass their folder or paths to `speak` as voice)"
    check_type("clips", clips, Iterable, wanted)
    if isinstance(clips, np.ndarray) and clips.ndim == 2 and clips.shape[0] > clips.shape[1]:
        raise UserError(
            f"clips must be mono arrays of shape (samples,), got shape {clips.shape}: if its columns are channels, "
            "pass clips.mean(axis=1)",
            "clips",
        )
    several = [clips] if isinstance(clips, np.ndarray) and clips.ndim == 1 else list(clips)
    if not several:
        raise UserError("clips is empty: give at least one clip", "clips")
    for number, clip in enumerate(several, 1):
        if not isinstance(clip, (np.ndarray, Sequence)) or np.asarray(clip).dtype.kind not in "fiu":
            raise UserError(f"clips must be {wanted}, got {short(clips)}", "clips")
        if (shape := np.shape(clip)) != (len(clip),):
            raise UserError(
                f"clips must be mono arrays of shape (samples,), but clip {number} has shape {shape}", "clips"
            )
    return [np.asarray(clip, np.float32) for clip in several]


def random_voice(backend: Backend, widths: tuple[int, int], rng: np.random.Generator) -> Voice:
    """Make a random voice: pass noise through the two networks that upstream calls random latent converters.

    Args:
        backend: Backend that runs the two networks.
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
    """Crop 6 s at a random start from audio (S,) at 22050 Hz. Shorter audio gets zeros at its end.

    Returns (132300,).
    """
    gap = len(audio) - CONDITIONING_SAMPLES
    start = int(rng.integers(0, gap + 1)) if gap > 0 else 0
    return _fit_length(audio[start:], CONDITIONING_SAMPLES)


def diffusion_window(audio: np.ndarray) -> np.ndarray:
    """Resample audio (S,) from 22050 to 24000 Hz, and return its first 4.27 s, (102400,). Short audio ends with zeros.

    The function uses upstream's resampler, because the model was trained with it. Above 11 kHz, upstream's resampler
    leaves spectral images of the speech, while the resampler soxr leaves silence. On five upstream voices, soxr would
    lower the three highest bands of the log-mel by 2.3. In a network with random weights, soxr would change the latent
    by 6 to 9 % (22 to 25 dB).
    """
    return _fit_length(resample_windowed_sinc(audio, CONDITIONING_RATE, DIFFUSION_RATE), DIFFUSION_SAMPLES)


def _slices(audio: np.ndarray, samples: int) -> list[np.ndarray]:
    """Cut audio (S,) into consecutive slices (samples,). The last slice may overlap, because it ends with the audio."""
    starts = [*range(0, max(len(audio) - samples, 0), samples), max(len(audio) - samples, 0)]
    return [_fit_length(audio[start : start + samples], samples) for start in starts]


def _fit_length(audio: np.ndarray, samples: int) -> np.ndarray:
    return np.pad(audio[:samples], (0, max(0, samples - len(audio))))


def _mean(rows: list[np.ndarray]) -> np.ndarray:
    """Average latents of shape (1, width). The mean is (1, width) float32, computed in float64."""
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
    decoder: str = "",
    seed: int = 0,
    cache: bool = True,
    mode: str = "first",
) -> Voice:
    """Find, load, encode, draw or mix the voice that ``spec`` describes.

    If a mix has no weights and all its voices are folders of clips, all the clips are encoded together as one voice, as
    in upstream. For any other mix, the function returns the (weighted) mean of the voices' latents. Upstream instead
    refuses to mix clips with latents, and makes the whole mix random if one of its voices is ``random``.

    Args:
        spec: A name, a path, ``random``, or a mix (``a&b``, ``a:0.3&b:0.7``).
        folders: Folders in which names are looked up, in order.
        backend: Backend that runs the encoders.
        mel_norms: Argument ``mel_norms`` for ``encode_clips``.
        model_id: Hash of the encoders' weights and their precision. Cached latents have it in their key.
        widths: Widths (D, C) of the model's two latents.
        rng: Generator of the request. Only the voice ``random`` draws from it, as in ``random_voice``.
        decoder: MD5 of the decoder, which a voice made of clips records.
        seed: Seed that chooses the 6 s of a longer clip. It does not come from ``rng``, so that a voice stays the same
            in every request. In upstream, the choice changes with the request's seed.
        cache: Whether to read latents of clips from the cache, and to store them there.
        mode: Argument ``mode`` for ``encode_clips``.

    Raises:
        UserError: The voice does not exist, its clips are unsuitable, a file is damaged, the mix is invalid, or stored
            latents belong to another model.
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
            voice = replace(cached_voice(key, part.name, widths, encode) if cache else encode(), decoder=decoder)
        else:
            voice = part
        if mode != "first" and not isinstance(part, Clips):
            raise NoEffectError(
                "clip_mode",
                f"on voice {voice.name}, which is stored as latents",
                "leave clip_mode out, or give the clips that the voice was made from",
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
    """Check whether the model can imitate the speaker of a voice, and return warnings if it may not.

    The imitation may fail if another decoder computed the latents. The imitation may also fail if the voice comes from
    clips and the model was not trained to clone voices.
    """
    own = model.decoder_md5 if voice.decoder else ""
    if own and not own.startswith(voice.decoder):
        return [
            f"voice {voice.name} was made with another decoder (MD5 {voice.decoder[:8]}, but the model's decoder has "
            f"{own[:8]}) and may sound unlike its speaker: make it again from its clips with `ane voices add`"
        ]
    if model.clones or not voice.from_clips:
        return []
    known = list_voices([model.voices] if model.voices else [])
    near = min(known, key=lambda name: np.linalg.norm(load_voice(known[name].files[0]).ar - voice.ar), default="")
    only = f"{', '.join(known)} (the nearest is {near})" if near else "it was trained on"
    return [
        f"voice {voice.name} is not a clone of its clips: {model.name} has only the voices {only}; to clone a voice, "
        "use the official model"
    ]
