"""Sound as bytes of a format, while it arrives. PyAV (in the extra ``server``) encodes what is compressed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import soxr

from ane.audio.writer import endless_wav_header, pcm16
from ane.books.media_writer import EncodedStream

PCM_RATE = 24000        # of ``pcm``, which states no rate: that of OpenAI's


@dataclass(frozen=True)
class SoundFormat:
    """A response format: its media type, and FFmpeg's container, encoder and options; no container: plain samples."""

    media_type: str
    container: str = ""
    encoder: str = ""
    bit_rate: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)


FORMATS = {
    "mp3": SoundFormat("audio/mpeg", "mp3", "libmp3lame", 64_000, {"write_xing": "0"}),     # no seeking back
    "opus": SoundFormat("audio/ogg", "opus", "libopus", 32_000, {"page_duration": "100000"}),
    "aac": SoundFormat("audio/aac", "adts", "aac", 64_000),
    "flac": SoundFormat("audio/flac", "flac", "flac"),
    "wav": SoundFormat("audio/wav"),
    "pcm": SoundFormat("audio/pcm"),
}


class SoundEncoder(Protocol):
    """Turns pieces of sound (n,) float32 within ±1 into bytes. The bytes of a text depend on its pieces alone."""

    def feed(self, audio: np.ndarray) -> bytes: ...

    def finish(self) -> bytes: ...


def make_encoder(name: str, rate: int) -> SoundEncoder:
    """An encoder to one of ``FORMATS`` for sound at ``rate`` Hz."""
    if name == "pcm":
        return PcmEncoder(rate)
    if name == "wav":
        return WavEncoder(rate)
    return CompressingEncoder(FORMATS[name], rate)


class PcmEncoder:
    """16-bit little-endian samples at ``PCM_RATE``, without a header."""

    def __init__(self, rate: int):
        self._resampler = None if rate == PCM_RATE else soxr.ResampleStream(rate, PCM_RATE, 1, dtype="float32")

    def feed(self, audio: np.ndarray) -> bytes:
        return self._encode(audio, last=False)

    def finish(self) -> bytes:
        return self._encode(np.zeros(0, np.float32), last=True)

    def _encode(self, audio: np.ndarray, last: bool) -> bytes:
        if self._resampler is not None:
            audio = self._resampler.resample_chunk(np.ascontiguousarray(audio, np.float32), last=last)
        return pcm16(audio).tobytes()


class WavEncoder:
    """A 16-bit WAV whose header does not state the length."""

    def __init__(self, rate: int):
        self._header = endless_wav_header(rate)

    def feed(self, audio: np.ndarray) -> bytes:
        header, self._header = self._header, b""
        return header + pcm16(audio).tobytes()

    def finish(self) -> bytes:
        return self.feed(np.zeros(0, np.float32))


class _Sink:
    """Where PyAV writes: it has no ``seek``, so the muxers do without."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> int:
        self.data += data
        return len(data)

    def take(self) -> bytes:
        data, self.data = bytes(self.data), bytearray()
        return data


class CompressingEncoder:
    """What an encoder and a container of FFmpeg make of the sound."""

    def __init__(self, sound: SoundFormat, rate: int):
        import av

        self._sink = _Sink()
        self._container: Any = av.open(self._sink, "w", format=sound.container,
                                       options={"fflags": "+bitexact+flush_packets", **sound.options})
        self._stream = EncodedStream(self._container, sound.encoder, sound.bit_rate, rate)

    def feed(self, audio: np.ndarray) -> bytes:
        self._stream.append(audio)
        return self._sink.take()

    def finish(self) -> bytes:
        if self._stream.samples:        # an encoder that was never fed cannot be flushed
            self._stream.finish()
        self._container.close()
        return self._sink.take()
