"""Encode sound in the response format of a request, either while the sound arrives or once it is finished.

PyAV (extra ``server``) encodes the compressed formats.
"""

import tempfile
import threading
from dataclasses import dataclass
from typing import IO

import numpy as np
import soxr

from ane.audio import media
from ane.audio.media import MediaEncoder
from ane.audio.writer import HEADER_BYTES, pcm16, wav_header
from ane.system import sound_formats
from ane.system.sound_formats import MediaFormat

# Hz of the format ``pcm``, as at OpenAI. The format has no header to record the rate
PCM_RATE = 24000


@dataclass(frozen=True)
class SoundFormat:
    """A response format: its media type, and FFmpeg's settings for it. ``None`` means plain samples, without FFmpeg."""

    media_type: str
    media: MediaFormat | None = None


FORMATS = {
    suffix[1:]: SoundFormat(row.media_type, row.streamed)
    for suffix, row in sound_formats.FORMATS.items()
    if row.media_type
} | {"pcm": SoundFormat("audio/pcm")}


class SampleEncoder:
    """An encoder of 16-bit little-endian samples. It writes WAV without a length, or only samples, at ``PCM_RATE``."""

    def __init__(self, rate: int, with_header: bool):
        self._header = wav_header(rate) if with_header else b""
        self._resampler = (
            None if with_header or rate == PCM_RATE else soxr.ResampleStream(rate, PCM_RATE, 1, dtype="float32")
        )

    def feed(self, audio: np.ndarray, last: bool = False) -> bytes:
        if self._resampler is not None:
            audio = self._resampler.resample_chunk(np.ascontiguousarray(audio, np.float32), last=last)
        header, self._header = self._header, b""
        return header + pcm16(audio).tobytes()

    def finish(self) -> bytes:
        return self.feed(np.zeros(0, np.float32), last=True)

    def close(self) -> None:
        """Do nothing, because there is nothing to free."""


class CompressingEncoder:
    """An encoder that uses FFmpeg.

    PyAV writes to ``file``. Without a file, it writes to this object, as to a file that cannot seek. ``close`` frees
    FFmpeg's threads, even while another thread is in ``feed``.
    """

    def __init__(self, media: MediaFormat, rate: int, file: IO[bytes] | None = None):
        self._data = bytearray()
        self._encoder: MediaEncoder | None = MediaEncoder(file or self, media, rate)
        self._lock = threading.Lock()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def feed(self, audio: np.ndarray) -> bytes:
        with self._lock:
            if self._encoder is not None:
                self._encoder.append(audio)
            return self._taken()

    def finish(self) -> bytes:
        with self._lock:
            if self._encoder is not None:
                self._encoder.finish()
        self.close()
        return self._taken()

    def close(self) -> None:
        with self._lock:
            if self._encoder is not None:
                self._encoder.close()
                self._encoder = None

    def _taken(self) -> bytes:
        data, self._data = bytes(self._data), bytearray()
        return data


def make_encoder(name: str, rate: int) -> SampleEncoder | CompressingEncoder:
    """Create an encoder for one of ``FORMATS``. ``feed`` takes sound, (n,) float32 from -1 to 1 at ``rate`` Hz.

    The encoded bytes depend only on the arrays that ``feed`` gets.
    """
    media = FORMATS[name].media
    return CompressingEncoder(media, rate) if media else SampleEncoder(rate, name == "wav")


class FileEncoder:
    """An encoder that writes the sound to a file on disk, so that the header can contain the length of the sound.

    Attributes:
        file: The file, which is deleted when it is closed. After ``finish``, read it from the beginning.
    """

    def __init__(self, name: str, rate: int):
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (the sender closes it)
        compresses = FORMATS[name].media is not None
        self._encoder = (
            CompressingEncoder(media.FORMATS[f".{name}"], rate, self.file) if compresses else make_encoder(name, rate)
        )
        self._rate = rate if name == "wav" else None

    def close(self) -> None:
        """Free FFmpeg, and delete the file."""
        self._encoder.close()
        self.file.close()

    def feed(self, audio: np.ndarray) -> None:
        self.file.write(self._encoder.feed(audio))

    def finish(self) -> int:
        """Complete the file and return its size in bytes."""
        self.file.write(self._encoder.finish())
        size = self.file.seek(0, 2)
        self.file.seek(0)
        if self._rate:
            self.file.write(wav_header(self._rate, size - HEADER_BYTES))
            self.file.seek(0)
        return size
