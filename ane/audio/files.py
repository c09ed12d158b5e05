"""Sound in and out: reading reference clips with care, resampling, writing, playing."""

import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path

import numpy as np
import soundfile
import soxr

from ane.audio.containers import cut_short
from ane.system.errors import UserError
from ane.system.files import check_output_file, replacing, write_whole
from ane.system.interruption import uninterrupted

CLIP_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".aif")     # what a folder of clips is searched for
MIN_CLIP_SECONDS = 0.5          # below this a clip holds a syllable at most; the encoders want 4 to 6 seconds
SILENCE_DBFS = -60.0            # peak of a clip without speech
OVERDRIVE = 2.0                 # floats beyond this are not overdriven but on another scale (upstream warns at 2)

_BLOCK = 1 << 16                # samples per read or write: libsndfile's Vorbis writer overflows its stack on long ones
_OPEN = 0xFFFFFFFF              # length in the header of a WAV that is written while it comes
_DAMAGED = "it is cut off or damaged: copy or export it again"
_FORMATS = {".wav": ("WAV", "PCM_16"), ".flac": ("FLAC", "PCM_16"),
            ".mp3": ("MP3", "MPEG_LAYER_III"), ".ogg": ("OGG", "VORBIS")}
_KNOWN_HEADS = (b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS", b"FORM", b"caff")
_PLAYERS = (("afplay",), ("paplay",), ("pw-play",), ("aplay", "-q"),
            ("ffplay", "-nodisp", "-autoexit", "-loglevel", "error"), ("play", "-q"))


def read_clip(path: Path | str) -> tuple[np.ndarray, int]:
    """Read reference audio that is fit to take a voice from: ``read_audio``, then ``check_clip``.

    Returns:
        audio (S,) float32 mono, sample rate in Hz.

    Raises:
        UserError: see ``read_audio`` and ``check_clip``.
    """
    audio, rate = read_audio(path)
    check_clip(audio, rate, str(path))
    return audio, rate


def read_audio(path: Path | str) -> tuple[np.ndarray, int]:
    """Read a sound file of any format libsndfile knows (wav, flac, mp3, ogg, …), told by content, at its own rate.

    Integer samples are divided by their full scale. Channels are averaged; upstream takes the first channel alone
    (utils/audio.py, load_audio).

    Returns:
        audio (S,) float32 mono, sample rate in Hz. Floating-point files may exceed [-1, 1].

    Raises:
        UserError: missing, a directory, unreadable, not a sound file, or cut off.
    """
    path = Path(path)
    if not os.path.exists(path):
        raise UserError(f"{path}: no such file")
    if not os.path.isfile(path):
        raise UserError(f"{path}: is not a file; name a sound file such as clip.wav")
    try:
        short_by = cut_short(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if short_by:
        raise UserError(f"{path}: ends {short_by} bytes before its header says; {_DAMAGED}")
    try:
        with soundfile.SoundFile(path) as file:
            return _read_mono(file, path), file.samplerate
    except soundfile.LibsndfileError as error:
        raise UserError(f"{path}: {_why_unreadable(path, error)}") from error
    except TypeError as error:      # libsndfile takes .raw for samples without a header
        raise UserError(f"{path}: a file of that name has no header that tells its rate; convert it to wav, with "
                        "ffmpeg for example") from error


def check_clip(audio: np.ndarray, rate: int, origin: str) -> None:
    """Refuse audio (S,) at ``rate`` Hz that no voice can be taken from; ``origin`` is what the message calls it.

    Raises:
        UserError: NaN or infinite samples, shorter than half a second, silent, or not on the scale [-1, 1].
    """
    if not np.isfinite(audio).all():
        raise UserError(f"{origin}: holds NaN or infinite samples; export it again from its source")
    seconds = len(audio) / rate
    if seconds < MIN_CLIP_SECONDS:
        raise UserError(f"{origin}: lasts {seconds:.3f} s; a clip needs at least {MIN_CLIP_SECONDS} s, best 6 to 10 s")
    centred = audio - audio.mean()
    if np.abs(centred).max() < 10 ** (SILENCE_DBFS / 20):
        raise UserError(f"{origin}: is silent (its peak is below {SILENCE_DBFS:.0f} dBFS); "
                        "choose a clip in which someone speaks")
    peak = float(np.abs(audio).max())
    if peak > OVERDRIVE:
        raise UserError(f"{origin}: its samples reach {peak:.4g}; scale them to lie between -1 and 1")


def resample(audio: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """Change the sample rate by soxr at its quality "HQ", then clip to [-1, 1] as upstream does.

    soxr passes 91 % of the band below the lower Nyquist frequency unchanged; upstream's windowed sinc (torchaudio,
    width 6) fades from about 80 % on. Measured on a buzz with harmonics up to Nyquist, 44.1 to 22.05 kHz: both agree to
    63 dB below 8 kHz and to 28 dB over the whole band; latents of random networks agree to 69 dB (decoder) and 35 dB
    (diffusion).

    Args:
        audio: (S,) float32. source_rate, target_rate: Hz.

    Returns:
        (about S · target_rate / source_rate,) float32 in [-1, 1].
    """
    if source_rate != target_rate:
        audio = soxr.resample(audio, source_rate, target_rate, quality="HQ")
    return np.clip(audio, -1.0, 1.0).astype(np.float32)


def resample_windowed_sinc(audio: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """Resample as upstream does (torchaudio.functional.resample: Hann-windowed sinc, 6 zero crossings, roll-off 0.99).

    For the one place where a network was trained behind it; ``resample`` is the better filter. Output sample i lies at
    i · source / target; the kernel is computed in float32, as there.

    Args and result as of ``resample``, not clipped; the length is rounded up.
    """
    divisor = math.gcd(source_rate, target_rate)
    source, target = source_rate // divisor, target_rate // divisor
    crossings, cutoff = 6, min(source, target) * 0.99
    width = math.ceil(crossings * source / cutoff)
    taps = np.arange(-width, width + source, dtype=np.float32) / np.float32(source)
    phases = -np.arange(target, dtype=np.float32)[:, None] / np.float32(target)
    time = np.clip((phases + taps) * np.float32(cutoff), -crossings, crossings)
    window = np.cos(time * np.float32(math.pi) / crossings / 2) ** 2
    kernels = np.sinc(time) * window * np.float32(cutoff / source)              # (target, taps)
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(audio, (width, width + source)), len(taps))[::source]
    return (frames @ kernels.T).reshape(-1)[:math.ceil(len(audio) * target / source)].astype(np.float32)


def check_output(path: Path | str) -> None:
    """Refuse, before any work is done for it, a file that ``write`` could not write.

    Raises:
        UserError: a suffix without a format, a directory in the way, or a folder that cannot be made or written; for
            "-", a standard output that is a terminal.
    """
    path = Path(path)
    if str(path) == "-":
        if sys.stdout.isatty():
            raise UserError("standard output is a terminal: pipe the sound to a program or a file, or name a file")
        return
    if path.suffix.lower() not in _FORMATS:
        raise UserError(f"cannot write {path}: end its name in {', '.join(_FORMATS)}")
    check_output_file(path)
    if os.path.isdir(path):
        raise UserError(f"cannot write {path}: it is a directory; name a file")
    folder = next(parent for parent in path.absolute().parents if os.path.exists(parent))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UserError(f"cannot write {path}: {folder} is {'read-only' if os.path.isdir(folder) else 'not a folder'}; "
                        "choose another place")


def write(path: Path | str, audio: np.ndarray, sample_rate: int) -> None:
    """Write audio (S,) float32, clipped to [-1, 1], in the format its suffix names: 16-bit wav or flac, mp3, ogg.

    The file appears when it is whole, never by halves.

    Raises:
        UserError: see ``writing``.
    """
    with writing(path, sample_rate) as feed:
        feed(audio)


@contextmanager
def writing(path: Path | str, sample_rate: int) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that appends audio (n,) float32, clipped to [-1, 1], to a file: ``write`` while sound comes.

    The format is that of the suffix; "-" is standard output, which is given a 16-bit WAV whose header leaves the
    length open. A file appears when the block ends well and the file is whole, never by halves.

    Raises:
        UserError: another suffix, NaN or infinite samples, a rate the format lacks, a place that cannot be written, or
            a standard output that is a terminal or that nobody reads any more.
    """
    check_output(path)
    path = Path(path)
    if str(path) == "-":
        with _to_standard_output(sample_rate) as feed:
            yield feed
        return
    container, encoding = _FORMATS[path.suffix.lower()]
    others: OSError | None = None       # of the block, not of the file
    try:
        with replacing(path) as target, target.open("wb", buffering=0) as opened:
            disk = _Disk(opened)
            with _sound_file(disk, sample_rate, encoding, container) as file:
                def feed(audio: np.ndarray) -> None:
                    samples = pcm16(audio) if encoding == "PCM_16" else _clipped(audio)
                    for start in range(0, len(samples), _BLOCK):
                        with uninterrupted():
                            file.write(samples[start:start + _BLOCK])
                        disk.check()

                try:
                    yield feed
                except OSError as error:
                    others = error if error is not disk.error else None
                    raise
            disk.check()
    except soundfile.LibsndfileError as error:
        raise UserError(f"cannot write {path} at {sample_rate} Hz: {error.error_string}") from error
    except UserError:
        if others is not None:
            raise others from None
        raise


class _Disk:
    """A file for libsndfile, which says of a full disk no more than "System error": the error is kept for ``check``.

    libsndfile calls it back, and what is raised there is printed and lost: opening, writing and closing must be
    uninterrupted, and the file without a buffer, which ``seek`` would write.
    """

    def __init__(self, file: RawIOBase):
        self.file = file
        self.seek, self.tell, self.read = file.seek, file.tell, file.read
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            write_whole(self.file, data)
        except OSError as error:
            self.error = error
        return len(data)

    def check(self) -> None:
        if self.error is not None:
            raise self.error


@contextmanager
def _sound_file(disk: _Disk, sample_rate: int, encoding: str, container: str) -> Iterator[soundfile.SoundFile]:
    """A mono file to be written. It is closed before the disk is, which it still writes to."""
    file: soundfile.SoundFile | None = None
    try:
        with uninterrupted():
            file = soundfile.SoundFile(disk, "w", sample_rate, 1, encoding, format=container)
        yield file
    finally:
        if file is not None:
            with uninterrupted():
                file.close()


@contextmanager
def _to_standard_output(sample_rate: int) -> Iterator[Callable[[np.ndarray], None]]:
    """``writing`` to "-". Every piece is handed on at once."""
    # as long as a header can say: who reads it reads until the end (ffmpeg writes the same to a pipe)
    header = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", _OPEN, b"WAVE", b"fmt ", 16, 1, 1, sample_rate,
                         2 * sample_rate, 2, 16, b"data", _OPEN)
    with open(sys.stdout.fileno(), "wb", buffering=0, closefd=False) as out:        # nothing is left to flush at exit
        def put(data: bytes) -> None:
            try:
                write_whole(out, data)
            except OSError as error:
                raise UserError(f"cannot write to standard output: {error.strerror or error}") from error

        put(header)
        yield lambda audio: put(pcm16(audio).tobytes())


def pcm16(audio: np.ndarray) -> np.ndarray:
    """Audio (S,) float32, clipped to [-1, 1], as (S,) little-endian int16, rounded (libsndfile truncates).

    Raises:
        UserError: NaN or infinite samples.
    """
    return np.rint(_clipped(audio) * 32767).astype("<i2")


def _clipped(audio: np.ndarray) -> np.ndarray:
    if not np.isfinite(audio).all():
        raise UserError("cannot write or play sound that holds NaN or infinite samples; "
                        "the voice, the weights or the precision is at fault")
    return np.clip(audio, -1.0, 1.0).astype(np.float32)


def find_player() -> tuple[str, ...]:
    """The command of the first player the machine has. Raises UserError when it has none."""
    player = next((command for command in _PLAYERS if shutil.which(command[0])), None)
    if player is None:
        names = ", ".join(command[0] for command in _PLAYERS)
        raise UserError(f"no program to play sound with ({names}): install ffmpeg or alsa-utils, "
                        "or write a file instead")
    return player


def play(audio: np.ndarray, sample_rate: int) -> None:
    """Play audio (S,) float32 at ``sample_rate`` Hz through the first player the machine has, and wait for its end.

    Raises:
        UserError: no player is installed, or the player failed (no sound device, say).
    """
    player = find_player()
    with tempfile.TemporaryDirectory(prefix="ane-play-") as folder:
        file = Path(folder) / "speech.wav"
        write(file, audio, sample_rate)
        result = subprocess.run([*player, str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if result.returncode:
        said = result.stderr.decode(errors="replace").strip().splitlines()
        raise UserError(f"{player[0]} could not play the sound ({said[-1] if said else 'it gave no reason'}); "
                        "check the sound device, or write a file instead")


def _read_mono(file: soundfile.SoundFile, path: Path) -> np.ndarray:
    """All frames of an open file as (S,) float32, channels averaged; raises UserError when frames are missing."""
    parts = []
    while True:
        block = file.read(_BLOCK, dtype="float32", always_2d=True)
        parts.append(block.mean(axis=1))
        if len(block) < _BLOCK:
            break
    audio = np.concatenate(parts)
    slack = 2304 if file.format == "MP3" else 0         # two frames: encoders differ on the padding they count
    if len(audio) + slack < file.frames:
        raise UserError(f"{path}: gives {len(audio) / file.samplerate:.2f} s of the "
                        f"{file.frames / file.samplerate:.2f} s its header says; {_DAMAGED}")
    if not len(audio):
        raise UserError(f"{path}: holds no samples; it is empty or cut off")
    return audio


def _why_unreadable(path: Path, error: soundfile.LibsndfileError) -> str:
    """What to tell of a file libsndfile refused: a format it never knew, or one it knew and found broken."""
    if path.stat().st_size == 0:
        return "is an empty file"
    with path.open("rb") as file:
        head = file.read(4)
    if head in _KNOWN_HEADS or head[:3] == b"ID3" or (head[0] == 0xFF and head[1:] and head[1] >= 0xE0):    # mp3
        return f"{error.error_string.rstrip('.')}; {_DAMAGED}"
    return "is not sound in a format libsndfile reads; convert it to wav, with ffmpeg for example"
