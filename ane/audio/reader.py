"""Reading sound files, checking whether a clip is usable as reference audio, and changing the sample rate."""

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
from ane.system.errors import NotFoundError, UserError
from ane.system.files import no_such_file
from ane.system.sound_formats import FORMATS
from ane.system.streams import silent_c_libraries

CLIP_SUFFIXES = tuple(suffix for suffix, row in FORMATS.items() if row.clip)  # of the clips in a folder of clips
MIN_CLIP_SECONDS = 0.5  # a shorter clip holds a syllable at most; the encoders want 4 to 6 seconds
MAX_CLIP_SECONDS = 600.0  # the encoders use 6 s of a clip; ten minutes at 48 kHz take 115 MB of memory
MAX_RECORDING_SECONDS = 86400.0  # a day; of a recording to transcribe
MIN_RATE, MAX_RATE = 4_000, 768_000  # Hz; from half of a telephone's rate to the highest of studio equipment
MAX_SILENT_DBFS = -60.0  # peak of a clip without speech, at most
MAX_PEAK = 2.0  # louder floats are on another scale than [-1, 1] (upstream warns at 2)

LOGGER = logging.getLogger("ane.audio")
_BLOCK = 1 << 16  # samples per read, all channels together
_RECOVERED_BLOCK = 1 << 12  # as long as a frame of FLAC: of a broken one nothing is read
_DAMAGED = "it is cut off or damaged: copy or export it again"
_MAGIC = (b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS", b"FORM", b"caff")


def read_clip(path: Path | str) -> tuple[np.ndarray, int]:
    """Read a clip of reference audio: ``read_audio``, then ``check_clip``."""
    audio, rate = read_audio(path)
    check_clip(audio, rate, str(path))
    return audio, rate


def read_recording(path: Path | str, max_seconds: float | None = None) -> tuple[np.ndarray, int]:
    """Read a recording to transcribe: as ``read_audio``, and also an empty one, and with PyAV any that FFmpeg reads.

    The limit is ``MAX_RECORDING_SECONDS`` unless ``max_seconds`` are given. FFmpeg reads AAC, AVI, mp4, webm and other
    containers that libsndfile refuses.
    """
    max_seconds = MAX_RECORDING_SECONDS if max_seconds is None else max_seconds
    try:
        audio, rate = read_audio(path, max_seconds, allow_empty=True)
    except UserError as refused:
        if not isinstance(refused.__cause__, soundfile.LibsndfileError):  # it can read the format
            raise
        if not has_pyav():
            raise UserError(f"{refused}; PyAV reads more formats: {INSTALL}") from refused
        audio, rate = _read_with_ffmpeg(Path(os.path.expanduser(path)), max_seconds, refused)
    _check_finite(audio, str(path))
    return audio, rate


def _read_with_ffmpeg(path: Path, max_seconds: float, refused: UserError) -> tuple[np.ndarray, int]:
    """Read a file that libsndfile ``refused``. Raises the error of libsndfile if FFmpeg refuses the file too."""
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
    """Read a sound file at its own rate, in any format that libsndfile detects by content (wav, flac, mp3, ogg, …).

    Integer samples are divided by their full scale. Channels are averaged, unless they cancel each other: then the
    first one is used. Upstream always takes the first one (utils/audio.py, load_audio). If the header of a WAV, AIFF or
    FLAC never got its lengths, because it was streamed or its recorder was killed, the file is read up to its end.

    Returns:
        audio (S,) float32 mono, sample rate in Hz. Floating-point files may exceed [-1, 1].

    Raises:
        UserError: missing, a directory, unreadable, not a sound file, cut off, a rate outside ``MIN_RATE`` to
            ``MAX_RATE``, longer than ``max_seconds``, or without samples unless ``allow_empty``.
    """
    path = Path(os.path.expanduser(path))
    if not os.path.exists(path):
        raise NotFoundError(f"{path}: {no_such_file(path)}")
    if not os.path.isfile(path):
        raise UserError(f"{path}: is not a file; name a sound file such as clip.wav")
    try:
        patches = unwritten_lengths(path)
        missing = 0 if patches else missing_bytes(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if missing:
        raise UserError(f"{path}: ends {missing} bytes earlier than its header states; {_DAMAGED}")
    try:
        with silent_c_libraries():
            opened = soundfile.SoundFile(io.BufferedReader(PatchedFile(path, patches)) if patches else path)
        with opened as file:
            return _read_mono(file, path, max_seconds, allow_empty, bool(patches)), file.samplerate
    except soundfile.LibsndfileError as error:
        raise UserError(f"{path}: {_open_error(path, error)}") from error
    except TypeError as error:  # the suffix .raw means samples without a header
        raise UserError(
            f"{path}: a .raw file has no header that states its rate; convert it to wav, with ffmpeg for example"
        ) from error


def check_clip(audio: np.ndarray, rate: int, origin: str) -> None:
    """Check that audio (S,) at ``rate`` Hz is usable as reference audio; ``origin`` is its name in messages.

    Raises:
        UserError: NaN or infinite samples, a rate outside the limits, shorter than ``MIN_CLIP_SECONDS`` or longer
            than ``MAX_CLIP_SECONDS``, silent, or not on the scale [-1, 1].
    """
    _check_size(len(audio), rate, origin)
    _check_finite(audio, origin)
    seconds = len(audio) / rate
    if seconds < MIN_CLIP_SECONDS:
        raise UserError(f"{origin}: lasts {seconds:.3f} s; a clip needs at least {MIN_CLIP_SECONDS} s, best 6 to 10 s")
    if np.abs(audio - audio.mean()).max() < 10 ** (MAX_SILENT_DBFS / 20):
        raise UserError(
            f"{origin}: is silent (its peak is below {MAX_SILENT_DBFS:.0f} dBFS); choose a clip in which someone speaks"
        )
    peak = float(np.abs(audio).max())
    if peak > MAX_PEAK:
        raise UserError(f"{origin}: its samples reach {peak:.4g}; scale them to lie between -1 and 1")


def _check_finite(audio: np.ndarray, origin: str) -> None:
    if not np.isfinite(audio).all():
        raise UserError(f"{origin}: holds NaN or infinite samples; export it again from its source")


def _check_size(samples: int, rate: int, origin: str, max_seconds: float = MAX_CLIP_SECONDS) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise UserError(
            f"{origin}: has a sample rate of {rate} Hz, which no recording has ({MIN_RATE} to {MAX_RATE}); "
            "its header is wrong: export it again"
        )
    if samples > max_seconds * rate:
        best = ", best 6 to 10 s" if max_seconds == MAX_CLIP_SECONDS else ""
        raise UserError(
            f"{origin}: lasts {samples / rate / 60:.0f} minutes; cut it to at most {max_seconds / 60:.0f} minutes{best}"
        )


def _read_mono(
    file: soundfile.SoundFile, path: Path, max_seconds: float, allow_empty: bool, recovered: bool
) -> np.ndarray:
    """All frames of an open file as (S,) float32, channels averaged; UserError when it is too long or cut off.

    ``recovered``: the header's lengths were never written, so that the file may end in the middle of a frame.
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
    slack = 2304 if file.format == "MP3" else 0  # two frames: encoders differ on the padding they count
    if len(audio) + slack < file.frames and not recovered:
        raise UserError(
            f"{path}: gives {len(audio) / file.samplerate:.2f} s of the "
            f"{file.frames / file.samplerate:.2f} s that its header states; {_DAMAGED}"
        )
    if not len(audio) and not allow_empty:
        raise UserError(f"{path}: holds no samples; it is empty or cut off")
    return audio


def _samples(file: soundfile.SoundFile, path: Path, mix: ChannelMix, recovered: bool) -> np.ndarray:
    """The frames of an open file from where it is, as (S,) float32."""
    block = max(1, (_RECOVERED_BLOCK if recovered else _BLOCK) // file.channels)
    try:
        audio, count = np.empty(file.frames, np.float32), 0
    except MemoryError:
        raise UserError(
            f"{path}: its header states {file.frames} samples, more than fit in memory; cut it, or, if it "
            f"is shorter, {_DAMAGED}"
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
        samples = samples[: len(audio) - count]  # a damaged mp3 can hold more than its header states
        audio[count : count + len(samples)] = mix.mono(samples)
        count += len(samples)
    return audio[:count]


def _warn_of_opposite_channels(path: Path) -> None:
    LOGGER.warning("%s: its channels have opposite signs and cancel each other, so the first one alone is used", path)


def _open_error(path: Path, error: soundfile.LibsndfileError) -> str:
    """Message for a file that libsndfile refused: a format that it does not know, or a damaged file of one it knows."""
    if path.stat().st_size == 0:
        return "is an empty file"
    with path.open("rb") as file:
        start = file.read(4)
    if start in _MAGIC or start[:3] == b"ID3" or (start[0] == 0xFF and start[1:] and start[1] >= 0xE0):  # mp3
        return f"{error.error_string.rstrip('.')}; {_DAMAGED}"
    return "is not sound in a format libsndfile reads; convert it to wav, with ffmpeg for example"


def resample(audio: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """Resample with soxr's quality "HQ", then clip to [-1, 1] as upstream does.

    soxr leaves 91 % of the band below the lower Nyquist frequency unchanged; upstream's windowed sinc (torchaudio,
    width 6) attenuates from about 80 % on. Measured on a buzz with harmonics up to Nyquist, 44.1 to 22.05 kHz: both
    agree to 63 dB below 8 kHz and to 28 dB over the whole band; latents of random networks agree to 69 dB (decoder)
    and 35 dB (diffusion).

    Args:
        audio: (S,) float32. source_rate, target_rate: Hz.

    Returns:
        (about S · target_rate / source_rate,) float32 in [-1, 1]; the given array where nothing had to change.
    """
    if source_rate != target_rate:
        audio = soxr.resample(audio, source_rate, target_rate, quality="HQ")
    if len(audio) and (audio.min() < -1 or audio.max() > 1):  # an hour at 16 kHz is 230 MB: not copied without need
        audio = np.clip(audio, -1.0, 1.0)
    return audio.astype(np.float32, copy=False)


def resample_windowed_sinc(audio: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """Resample as upstream does (torchaudio.functional.resample: Hann-windowed sinc, 6 zero crossings, roll-off 0.99).

    Only for input of a network that was trained on audio resampled this way; ``resample`` is the better filter. Output
    sample i lies at time i · source_rate / target_rate in input samples. The kernel is computed in float32, as in
    torchaudio.

    Args:
        audio: (S,) float32. source_rate, target_rate: Hz.

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
