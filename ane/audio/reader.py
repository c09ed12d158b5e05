"""Read sound files, check whether a clip is usable as reference audio, and change the sample rate."""

import io
import logging
import math
import os
from pathlib import Path

import numpy as np
import soundfile
import soxr

from ane.audio.containers import ChannelMix, read_container
from ane.audio.lengths import PatchedFile, missing_bytes, unwritten_lengths
from ane.audio.media import INSTALL, has_pyav
from ane.system.errors import NotFoundError, UserError, system_errors
from ane.system.files import no_such_file
from ane.system.sound_formats import FORMATS
from ane.system.streams import silent_c_libraries

CLIP_SUFFIXES = tuple(suffix for suffix, row in FORMATS.items() if row.clip)  # suffixes of clips in a folder
MIN_CLIP_SECONDS = 0.5  # a shorter clip has at most one syllable, and the voice encoders need 4 to 6 seconds
MAX_CLIP_SECONDS = 600.0  # ten minutes at 48 kHz take 115 MB of memory, and the voice encoders use only 6 s of a clip
MAX_RECORDING_SECONDS = 86400.0  # longest recording to transcribe, one day
MIN_RATE, MAX_RATE = 4_000, 768_000  # Hz, from half of a telephone's rate to the highest rate of studio equipment
MAX_SILENT_DBFS = -60.0  # a clip whose peak is below this level has no speech
MAX_PEAK = 2.0  # a clip with larger samples is not scaled to [-1, 1] (upstream warns at 2)

LOGGER = logging.getLogger("ane.audio")
_BLOCK = 1 << 16  # samples per read, all channels together
_RECOVERED_BLOCK = 1 << 12  # samples per read of a file with a repaired header: one FLAC frame, which may be broken
_DAMAGED = "it is cut off or damaged: copy or export it again"
_MAGIC = (b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS", b"FORM", b"caff")


def read_clip(path: Path | str) -> tuple[np.ndarray, int]:
    """Read a clip of the voice that the user wants to clone, and check the clip with ``check_clip``."""
    audio, rate = read_audio(path)
    check_clip(audio, rate, str(path))
    return audio, rate


def read_recording(path: Path | str, max_seconds: float | None = None) -> tuple[np.ndarray, int]:
    """Read a recording to transcribe. Unlike ``read_audio``, this function accepts an empty file.

    If PyAV is installed, the recording may also be in any format of FFmpeg. FFmpeg reads AAC, AVI, mp4, webm and other
    containers that libsndfile cannot read.

    Args:
        path: Path of the file.
        max_seconds: Largest length in seconds. ``None`` means ``MAX_RECORDING_SECONDS``.
    """
    max_seconds = MAX_RECORDING_SECONDS if max_seconds is None else max_seconds
    try:
        audio, rate = read_audio(path, max_seconds, allow_empty=True)
    except UserError as refused:
        if not isinstance(refused.__cause__, soundfile.LibsndfileError):  # the format is not the problem
            raise
        if not has_pyav():
            raise UserError(f"{refused} (or install PyAV, which reads more formats: {INSTALL})") from refused
        audio, rate = _read_with_ffmpeg(Path(os.path.expanduser(path)), max_seconds, refused)
    _check_finite(audio, str(path))
    return audio, rate


def _read_with_ffmpeg(path: Path, max_seconds: float, refused: UserError) -> tuple[np.ndarray, int]:
    """Read a file that libsndfile rejected with the error ``refused``.

    Raise ``refused`` if FFmpeg rejects the file too.
    """
    try:
        audio, rate, cancelled = read_container(path, max_seconds)
    except (OSError, ValueError, IndexError) as error:  # FFmpeg's errors are OSError or ValueError
        raise refused from error
    _check_size(len(audio), rate, str(path), max_seconds)
    if cancelled:
        _warn_of_opposite_channels(path)
    return audio, rate


def read_audio(
    path: Path | str, max_seconds: float = MAX_CLIP_SECONDS, allow_empty: bool = False
) -> tuple[np.ndarray, int]:
    """Read a sound file as mono, in any format that libsndfile detects by its content (wav, flac, mp3, ogg, …).

    Integer samples are divided by their full scale. The result is the mean of all channels, or the first channel if the
    channels cancel each other. (Upstream always uses the first channel: utils/audio.py, load_audio.)

    The header of a WAV, AIFF or FLAC may lack its lengths, because a program streamed the file or a recorder was
    killed. Such a file is read to its end.

    Args:
        path: Path of the file.
        max_seconds: Largest length in seconds.
        allow_empty: Whether the file may have no samples.

    Returns:
        Audio (S,) float32, and the file's sample rate in Hz. Samples of floating-point files may exceed [-1, 1].

    Raises:
        UserError: The file is missing, a directory, unreadable, cut off or not a sound file. Its rate is outside
            ``MIN_RATE`` to ``MAX_RATE``. It is longer than ``max_seconds``, or it is empty.
    """
    path = Path(os.path.expanduser(path))
    if not os.path.exists(path):
        raise NotFoundError(f"{path}: {no_such_file(path)}")
    if not os.path.isfile(path):
        raise UserError(f"{path}: is not a file: name a sound file such as clip.wav")
    with system_errors(f"{path}: cannot be read"):
        patches = unwritten_lengths(path)
        missing = 0 if patches else missing_bytes(path)
    if missing:
        raise UserError(f"{path}: ends {missing} bytes earlier than its header says, so {_DAMAGED}")
    try:
        with silent_c_libraries():
            opened = soundfile.SoundFile(io.BufferedReader(PatchedFile(path, patches)) if patches else path)
        with opened as file:
            return _read_mono(file, path, max_seconds, allow_empty, bool(patches)), file.samplerate
    except soundfile.LibsndfileError as error:
        raise UserError(f"{path}: {_open_error(path, error)}") from error
    except TypeError as error:  # for the suffix .raw, soundfile expects samples without a header
        raise UserError(
            f"{path}: a .raw file has no header with its rate: convert it to wav, for example with ffmpeg"
        ) from error


def check_clip(audio: np.ndarray, rate: int, origin: str) -> None:
    """Check that a voice can be cloned from audio (S,) at ``rate`` Hz.

    Args:
        audio: The audio, (S,).
        rate: Sample rate in Hz.
        origin: Name of the audio in messages.

    Raises:
        UserError: Samples are NaN, infinite or not scaled to [-1, 1]. The rate is outside ``MIN_RATE`` to ``MAX_RATE``.
            The audio is silent, shorter than ``MIN_CLIP_SECONDS`` or longer than ``MAX_CLIP_SECONDS``.
    """
    _check_size(len(audio), rate, origin)
    _check_finite(audio, origin)
    seconds = len(audio) / rate
    if seconds < MIN_CLIP_SECONDS:
        raise UserError(
            f"{origin}: lasts {seconds:.3f} s: choose a clip of at least {MIN_CLIP_SECONDS} s, or best 6 to 10 s"
        )
    if np.abs(audio - audio.mean()).max() < 10 ** (MAX_SILENT_DBFS / 20):
        raise UserError(
            f"{origin}: is silent (its peak is below {MAX_SILENT_DBFS:.0f} dBFS): choose a clip in which someone speaks"
        )
    peak = float(np.abs(audio).max())
    if peak > MAX_PEAK:
        raise UserError(f"{origin}: its samples reach {peak:.4g}: scale them to values between -1 and 1")


def _check_finite(audio: np.ndarray, origin: str) -> None:
    if not np.isfinite(audio).all():
        raise UserError(f"{origin}: has NaN or infinite samples: export it again from its source")


def _check_size(samples: int, rate: int, origin: str, max_seconds: float = MAX_CLIP_SECONDS) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise UserError(
            f"{origin}: has a sample rate of {rate} Hz, but recordings have {MIN_RATE} to {MAX_RATE} Hz, so its header "
            "is wrong: export it again"
        )
    if samples > max_seconds * rate:
        best = ", or best 6 to 10 s" if max_seconds == MAX_CLIP_SECONDS else ""
        raise UserError(
            f"{origin}: lasts {samples / rate / 60:.0f} minutes: cut it to at most {max_seconds / 60:.0f} minutes{best}"
        )


def _read_mono(
    file: soundfile.SoundFile, path: Path, max_seconds: float, allow_empty: bool, recovered: bool
) -> np.ndarray:
    """Read all frames of an open file as mono, (S,) float32.

    Args:
        file: The file.
        path: Path of the file, for messages.
        max_seconds: Largest length in seconds.
        allow_empty: Whether the file may have no samples.
        recovered: Whether the file's header had no lengths, so that the file may end in the middle of a frame.

    Raises:
        UserError: The file is too long, cut off or empty.
    """
    _check_size(file.frames, file.samplerate, str(path), max_seconds)
    mix = ChannelMix()
    with silent_c_libraries():
        audio = _samples(file, path, mix, recovered)
    if mix.cancelled:
        _warn_of_opposite_channels(path)
        with silent_c_libraries():
            file.seek(0)
            audio = _samples(file, path, ChannelMix(first_only=True), recovered)
    slack = 2304 if file.format == "MP3" else 0  # two frames, because encoders count padding differently
    if len(audio) + slack < file.frames and not recovered:
        raise UserError(
            f"{path}: has {len(audio) / file.samplerate:.2f} s of sound, but its header says "
            f"{file.frames / file.samplerate:.2f} s, so {_DAMAGED}"
        )
    if not len(audio) and not allow_empty:
        raise UserError(f"{path}: has no samples, so it is empty or cut off: choose another file")
    return audio


def _samples(file: soundfile.SoundFile, path: Path, mix: ChannelMix, recovered: bool) -> np.ndarray:
    """Read the frames of an open file from its current position, as (S,) float32."""
    block = max(1, (_RECOVERED_BLOCK if recovered else _BLOCK) // file.channels)
    try:
        audio, count = np.empty(file.frames, np.float32), 0
    except MemoryError:
        raise UserError(
            f"{path}: its header says {file.frames} samples, which do not fit in memory: cut the file. If it is "
            f"shorter than that, {_DAMAGED}"
        ) from None
    while count < len(audio):
        try:
            samples = file.read(block, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError:
            if not recovered:
                raise
            break
        if not len(samples):
            break
        samples = samples[: len(audio) - count]  # a damaged mp3 can have more samples than its header says
        audio[count : count + len(samples)] = mix.mono(samples)
        count += len(samples)
    return audio[:count]


def _warn_of_opposite_channels(path: Path) -> None:
    LOGGER.warning("%s: its channels have opposite signs and cancel each other, so only the first one is used", path)


def _open_error(path: Path, error: soundfile.LibsndfileError) -> str:
    """Explain why libsndfile cannot read a file: it is empty, damaged, or in another format."""
    if path.stat().st_size == 0:
        return "is an empty file"
    with path.open("rb") as file:
        start = file.read(4)
    if start in _MAGIC or start[:3] == b"ID3" or (start[0] == 0xFF and start[1:] and start[1] >= 0xE0):  # mp3
        return f"{error.error_string.rstrip('.')}, so {_DAMAGED}"
    return "is not sound in a format that libsndfile reads: convert it to wav, for example with ffmpeg"


def resample(audio: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """Resample with soxr's quality "HQ", then clip to [-1, 1] as upstream does.

    soxr leaves frequencies up to 91 % of the lower Nyquist frequency unchanged. Upstream's windowed sinc (torchaudio,
    width 6) attenuates frequencies above about 80 %. We compared both filters on a buzz with harmonics up to the
    Nyquist frequency, from 44.1 to 22.05 kHz. The results agree to 63 dB below 8 kHz, and to 28 dB over the whole band.
    The latents that random networks compute from both agree to 69 dB (decoder) and 35 dB (diffusion).

    Args:
        audio: (S,) float32.
        source_rate: Sample rate of ``audio`` in Hz.
        target_rate: Sample rate of the result in Hz.

    Returns:
        (about S · target_rate / source_rate,) float32 in [-1, 1]. If no sample changes, this is ``audio`` itself.
    """
    if source_rate != target_rate:
        audio = soxr.resample(audio, source_rate, target_rate, quality="HQ")
    if len(audio) and (audio.min() < -1 or audio.max() > 1):  # copy only if necessary: an hour at 16 kHz takes 230 MB
        audio = np.clip(audio, -1.0, 1.0)
    return audio.astype(np.float32, copy=False)


def resample_windowed_sinc(audio: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """Resample as upstream does (torchaudio.functional.resample: Hann-windowed sinc, 6 zero crossings, roll-off 0.99).

    Use this function only for networks that were trained with this filter, because ``resample`` filters better. Sample
    i of the output is at the position i · source_rate / target_rate of the input. The kernel is computed in float32, as
    in torchaudio.

    Args:
        audio: (S,) float32.
        source_rate: Sample rate of ``audio`` in Hz.
        target_rate: Sample rate of the result in Hz.

    Returns:
        (⌈S · target_rate / source_rate⌉,) float32, not clipped.
    """
    divisor = math.gcd(source_rate, target_rate)
    source, target = source_rate // divisor, target_rate // divisor
    crossings, cutoff = 6, min(source, target) * 0.99
    width = math.ceil(crossings * source / cutoff)
    taps = np.arange(-width, width + source, dtype=np.float32) / np.float32(source)
    phases = -np.arange(target, dtype=np.float32)[:, None] / np.float32(target)
    time = np.clip((phases + taps) * np.float32(cutoff), -crossings, crossings)
    window = np.cos(time * np.float32(math.pi) / crossings / 2) ** 2
    kernels = np.sinc(time) * window * np.float32(cutoff / source)  # (target, taps)
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(audio, (width, width + source)), len(taps))[::source]
    return (frames @ kernels.T).reshape(-1)[: math.ceil(len(audio) * target / source)].astype(np.float32)
