"""Sound files with chapters, a cover and tags, written while the sound arrives. PyAV (the extra ``books``) writes them.

Without PyAV, wav, flac, mp3, ogg and aiff are written without tags by libsndfile.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from ane.audio import writing
from ane.audio.writer import pcm16
from ane.books.document import CoverImage
from ane.system.errors import UserError
from ane.system.files import check_output_file
from ane.system.interruption import uninterrupted

WITHOUT_PYAV = (".wav", ".flac", ".mp3", ".ogg", ".aiff")
# the first bytes of a cover, and FFmpeg's format: without one it also opens what only names other files and addresses
IMAGES = {"image/jpeg": (b"\xff\xd8\xff", "jpeg_pipe"), "image/png": (b"\x89PNG\r\n\x1a\n", "png_pipe")}
OPUS_RATE = 48000       # Hz of every Opus stream
INSTALL = "install the extra books (README, Install)"


@dataclass(frozen=True)
class MediaFormat:
    """How a suffix is written: FFmpeg's container and encoder, bits a second, and whether it can hold a cover."""

    container: str
    encoder: str
    bit_rate: int | None = None
    cover: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


FORMATS = {
    ".m4b": MediaFormat("mp4", "aac", 64_000, cover=True, options={"brand": "M4B "}),
    ".m4a": MediaFormat("mp4", "aac", 64_000, cover=True, options={"brand": "M4A "}),
    ".mp3": MediaFormat("mp3", "libmp3lame", 64_000, cover=True, options={"id3v2_version": "3"}),
    ".opus": MediaFormat("opus", "libopus", 32_000),
    ".aac": MediaFormat("adts", "aac", 64_000),
    ".flac": MediaFormat("flac", "flac", cover=True),
    ".aiff": MediaFormat("aiff", "pcm_s16be", options={"write_id3v2": "1"}),
    ".wav": MediaFormat("wav", "pcm_s16le", options={"rf64": "auto"}),
}
SUFFIXES = (*FORMATS, ".ogg")


@dataclass(frozen=True)
class ChapterMark:
    """A chapter of a file, in seconds."""

    title: str
    start: float
    end: float


def check_media_output(path: Path) -> None:
    """Raise UserError, before any work is done, for a file that ``writing_media`` cannot write."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"cannot write {path}: end its name in {', '.join(SUFFIXES)}")
    if suffix not in WITHOUT_PYAV and not has_pyav():
        raise UserError(f"cannot write {path}: {suffix} needs PyAV: {INSTALL}, or choose {', '.join(WITHOUT_PYAV)}")
    check_output_file(path)


def has_pyav() -> bool:
    try:
        import av  # noqa: F401
    except ImportError:
        return False
    return True


def cover_size(cover: CoverImage) -> tuple[int, int] | None:
    """Width and height of a cover in pixels; None when PyAV is missing or cannot read it."""
    start, form = IMAGES[cover.media_type]
    if not cover.data.startswith(start):
        return None
    try:
        import av

        with av.open(BytesIO(cover.data), format=form) as image:
            size = image.streams.video[0].width, image.streams.video[0].height
            return size if all(size) else None
    except (ImportError, OSError, ValueError, IndexError):      # FFmpeg's errors are OSError or ValueError
        return None


@contextmanager
def writing_media(path: Path, rate: int, tags: Mapping[str, str], chapters: Sequence[ChapterMark] = (),
                  cover: CoverImage | None = None) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that appends audio (n,) float32, clipped to [-1, 1], to a mono file.

    The file is complete when the block ends without an error.

    Args:
        tags: "title", "artist", "album", "track" and so on, as FFmpeg names them.
        chapters: for formats that have them: m4b, m4a, mp3, opus, aiff.

    Raises:
        UserError: see ``check_media_output``; NaN or infinite samples.
        OSError: a full disk.
    """
    check_media_output(path)
    if path.suffix.lower() not in FORMATS or not has_pyav():
        with writing(path, rate) as append:
            yield append
        return
    encoder = _MediaEncoder(path, FORMATS[path.suffix.lower()], rate, tags, chapters, cover)
    try:
        yield encoder.append
        encoder.finish()
    finally:
        encoder.close()


class EncodedStream:
    """The one stream of sound of a container.

    Args:
        container: of ``av.open``, for writing. encoder: FFmpeg's name of it. bit_rate: bits a second; None: the
            encoder's own. rate: of the sound, Hz; PyAV resamples it where the encoder takes another.
    """

    def __init__(self, container: Any, encoder: str, bit_rate: int | None, rate: int):
        import av

        self._frames, self._container, self.rate = av.AudioFrame, container, rate
        self._stream = container.add_stream(encoder, rate=OPUS_RATE if encoder == "libopus" else rate, layout="mono")
        if bit_rate:
            self._stream.bit_rate = bit_rate
        self.samples = 0

    def append(self, audio: np.ndarray) -> None:
        """Encode audio (n,) float32, clipped to [-1, 1]."""
        if len(audio):
            frame = self._frames.from_ndarray(pcm16(audio)[None], format="s16", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = self.rate, self.samples, Fraction(1, self.rate)
            self.samples += len(audio)
            self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Write what the encoder still holds."""
        self._container.mux(self._stream.encode(None))


class _MediaEncoder:
    """An open PyAV container with one stream of sound. OSError of the disk passes through."""

    def __init__(self, target: Path, media: MediaFormat, rate: int, tags: Mapping[str, str],
                 chapters: Sequence[ChapterMark], cover: CoverImage | None):
        import av

        self._av = av
        self._container: Any = av.open(str(target), "w", format=media.container,
                                       options={"fflags": "+bitexact", **media.options})
        self._container.metadata.update({name: value for name, value in tags.items() if value})
        self._stream = EncodedStream(self._container, media.encoder, media.bit_rate, rate)
        picture = self._add_cover(cover) if cover and media.cover and cover_size(cover) else None
        self._container.set_chapters([
            {"id": number, "start": round(chapter.start * 1000), "end": math.ceil(chapter.end * 1000),
             "time_base": Fraction(1, 1000), "metadata": {"title": chapter.title}}
            for number, chapter in enumerate(chapters, 1)])
        if picture is not None:
            self._container.start_encoding()
            packet = av.Packet(cover.data if cover else b"")
            packet.stream, packet.pts, packet.dts, packet.time_base = picture, 0, 0, Fraction(1, 90_000)
            packet.is_keyframe = True
            self._container.mux(packet)

    def _add_cover(self, cover: CoverImage) -> Any:
        width, height = cover_size(cover) or (0, 0)
        picture = self._container.add_mux_stream("png" if cover.media_type == "image/png" else "mjpeg",
                                                 width=width, height=height)
        picture.time_base = Fraction(1, 90_000)
        picture.disposition = self._av.stream.Disposition.attached_pic
        return picture

    def append(self, audio: np.ndarray) -> None:
        with uninterrupted():
            self._stream.append(audio)

    def finish(self) -> None:
        """Write the end; of a chapter of which nothing is heard, a moment of silence, since no container is empty."""
        with uninterrupted():
            if not self._stream.samples:
                self._stream.append(np.zeros(self._stream.rate // 10, np.float32))
            self._stream.finish()

    def close(self) -> None:
        with uninterrupted():
            self._container.close()
