"""Write sound without tags to a file with libsndfile, or to a pipe as WAV."""

import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path

import numpy as np
import soundfile

from ane.system import sound_formats
from ane.system.errors import UserError, system_errors
from ane.system.files import replacing, write_whole
from ane.system.interruption import uninterrupted
from ane.system.streams import is_closed

_BLOCK = 1 << 16  # samples per write. More samples overflow the stack of libsndfile's Vorbis writer
_UNKNOWN_LENGTH = 0xFFFFFFFF  # length in the header of a WAV whose length is not known when the header is written
HEADER_BYTES = 44  # of a WAV file
FORMATS = {suffix: row.sndfile for suffix, row in sound_formats.FORMATS.items() if row.sndfile}


def check_standard_output() -> None:
    """Raise UserError if standard output is closed or a terminal, before any work is done."""
    if is_closed(sys.stdout):
        raise UserError("standard output is closed: name a file")
    if sys.stdout.isatty():
        raise UserError("standard output is a terminal: pipe the sound to a program or a file, or name a file")


@contextmanager
def writing(path: Path | str, sample_rate: int, encoding: str = "") -> Iterator[Callable[[np.ndarray], None]]:
    """Open a file without tags in one of the ``FORMATS``, and yield a function that appends audio.

    ``ane.audio.writing`` explains the function and the errors.

    Args:
        path: Path of the file.
        sample_rate: Sample rate of the audio in Hz.
        encoding: libsndfile's name for the format of the samples. "" means the usual format for the suffix.
    """
    path = Path(path)
    container, usual = FORMATS[path.suffix.lower()]
    encoding = encoding or usual
    block_error: OSError | None = None  # an error of the code in the caller's ``with`` block, not of the file
    try:
        with replacing(path, lasting=True) as target, target.open("wb", buffering=0) as opened:
            disk = _DiskFile(opened)
            with _sound_file(disk, sample_rate, encoding, container) as file:

                def append(audio: np.ndarray) -> None:
                    samples = pcm16(audio) if encoding == "PCM_16" else clipped(audio)
                    for start in range(0, len(samples), _BLOCK):
                        with uninterrupted():
                            file.write(samples[start : start + _BLOCK])
                        disk.check()

                try:
                    yield append
                except OSError as error:
                    block_error = error if error is not disk.error else None
                    raise
            disk.check()
    except soundfile.LibsndfileError as error:
        raise UserError(f"cannot write {path} at {sample_rate} Hz: {error.error_string}") from error
    except UserError:
        if block_error is not None:
            raise block_error from None
        raise


class _DiskFile:
    """A file that libsndfile writes. If writing to the disk fails, ``check`` raises the error.

    libsndfile reports a full disk only as "System error". libsndfile calls the methods of this class from C, where
    Python would print an exception and forget it. So the caller must open, write and close the file within
    ``uninterrupted``. The file must not have a buffer, because ``seek`` would write the buffer.
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
def _sound_file(disk: _DiskFile, sample_rate: int, encoding: str, container: str) -> Iterator[soundfile.SoundFile]:
    """Open a mono sound file for writing. Close it at the end of the block, which writes its header to ``disk``."""
    file: soundfile.SoundFile | None = None
    try:
        with uninterrupted():
            file = soundfile.SoundFile(disk, "w", sample_rate, 1, encoding, format=container)
        yield file
    finally:
        if file is not None:
            with uninterrupted():
                file.close()


class ByteSender:
    """A file that writes bytes to a pipe or a device without delay.

    If writing fails, ``check`` raises the error, and ``write`` drops bytes, so that an encoder can end as usual.

    Args:
        path: Path of the pipe or the device, or "-" for standard output.
    """

    def __init__(self, path: Path | str):
        piped = str(path) == "-"
        self._error: OSError | None = None
        self._action = f"cannot write to {'standard output' if piped else path}"
        with system_errors(self._action):
            # without a buffer
            self._file = open(  # noqa: SIM115 (the caller closes it)
                sys.stdout.fileno() if piped else os.path.expanduser(path), "wb", buffering=0, closefd=not piped
            )

    def write(self, data: bytes) -> int:
        try:
            if self._error is None:
                write_whole(self._file, data)
        except OSError as error:
            self._error = error
        return len(data)

    def check(self) -> None:
        if self._error is not None:
            with system_errors(self._action):
                raise self._error

    def close(self) -> None:
        self._file.close()


@contextmanager
def sending_wav(sender: ByteSender, sample_rate: int) -> Iterator[Callable[[np.ndarray], None]]:
    """Write the header of a WAV without a length, and yield a function that writes audio."""
    sender.write(wav_header(sample_rate))

    def append(audio: np.ndarray) -> None:
        sender.write(pcm16(audio).tobytes())

    yield append


def wav_header(sample_rate: int, length: int | None = None) -> bytes:
    """Return the header of a mono 16-bit WAV with ``length`` bytes of samples. ``None`` means an unknown length."""
    # the largest possible length makes programs read to the end of the sound; ffmpeg writes the same header to a pipe
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        _UNKNOWN_LENGTH if length is None else length + HEADER_BYTES - 8,
        b"WAVE",
        b"fmt ",
        16,
        1,
        1,
        sample_rate,
        2 * sample_rate,
        2,
        16,
        b"data",
        _UNKNOWN_LENGTH if length is None else length,
    )


def pcm16(audio: np.ndarray) -> np.ndarray:
    """Clip audio (S,) float32 to [-1, 1], and convert it to (S,) little-endian int16.

    Samples are rounded here, because libsndfile would truncate them.
    """
    return np.rint(clipped(audio) * 32767).astype("<i2")


def clipped(audio: np.ndarray) -> np.ndarray:
    """Clip audio to [-1, 1] as float32. Raises UserError if samples are NaN or infinite."""
    if not np.isfinite(audio).all():
        raise UserError(
            "cannot write or play sound with NaN or infinite samples: check the voice, the weights and the precision"
        )
    return np.clip(audio, -1.0, 1.0).astype(np.float32)
