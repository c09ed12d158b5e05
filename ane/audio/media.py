"""Write sound files that have chapters, a cover and tags, with the library PyAV (installed by the extra ``books``)."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ane.audio.writer import ByteSender, clipped, pcm16
from ane.system import sound_formats
from ane.system.interruption import uninterrupted
from ane.system.sound_formats import MediaFormat

# media type of a cover → first bytes of its file, and FFmpeg's name of the format. If no format were given, FFmpeg
# would also open files that only refer to other files and addresses.
IMAGES = {"image/jpeg": (b"\xff\xd8\xff", "jpeg_pipe"), "image/png": (b"\x89PNG\r\n\x1a\n", "png_pipe")}
# code of a language in ISO 639-1 → code in ISO 639-2. Containers need the three letters of ISO 639-2
LANGUAGES = {
    "ar": "ara",
    "ca": "cat",
    "cs": "ces",
    "cy": "cym",
    "da": "dan",
    "de": "deu",
    "el": "ell",
    "en": "eng",
    "es": "spa",
    "fi": "fin",
    "fr": "fra",
    "ga": "gle",
    "he": "heb",
    "hi": "hin",
    "hu": "hun",
    "is": "isl",
    "it": "ita",
    "ja": "jpn",
    "ko": "kor",
    "la": "lat",
    "nl": "nld",
    "no": "nor",
    "pl": "pol",
    "pt": "por",
    "ro": "ron",
    "ru": "rus",
    "sv": "swe",
    "tr": "tur",
    "uk": "ukr",
    "zh": "zho",
}
INSTALL = "pip install '.[books]'"
FORMATS = {suffix: row.media for suffix, row in sound_formats.FORMATS.items() if row.media}


def iso_639_2(language: str) -> str:
    """Convert a language tag to three letters, such as "en-GB" to "eng". An unknown language becomes "und"."""
    first = re.split("[-_]", language.lower())[0]
    return LANGUAGES.get(first, first if re.fullmatch("[a-z]{3}", first) else "und")


@dataclass(frozen=True)
class CoverImage:
    """The bytes of a cover and their media type, "image/jpeg" or "image/png"."""

    data: bytes
    media_type: str


@dataclass(frozen=True)
class ChapterMark:
    """A chapter of a sound file. ``start`` and ``end`` are seconds from the beginning of the file."""

    title: str
    start: float
    end: float


def has_pyav() -> bool:
    """Return whether PyAV is installed."""
    try:
        import av  # noqa: F401
    except ImportError:
        return False
    return True


def cover_size(cover: CoverImage) -> tuple[int, int] | None:
    """Return the width and height of a cover in pixels, or ``None`` if PyAV is missing or cannot read it."""
    start, form = IMAGES[cover.media_type]
    if not cover.data.startswith(start):
        return None
    try:
        import av

        with av.open(BytesIO(cover.data), format=form) as image:
            size = image.streams.video[0].width, image.streams.video[0].height
            return size if all(size) else None
    except (ImportError, OSError, ValueError, IndexError):  # FFmpeg's errors are OSError or ValueError
        return None


@contextmanager
def encoding(
    target: Path | ByteSender,
    media: MediaFormat,
    rate: int,
    tags: Mapping[str, str],
    chapters: Sequence[ChapterMark],
    cover: CoverImage | None,
) -> Iterator[Callable[[np.ndarray], None]]:
    """Open a file or a pipe, and yield a function that appends audio (see ``ane.audio.writing``)."""
    encoder = MediaEncoder(str(target) if isinstance(target, Path) else target, media, rate, tags, chapters, cover)

    def append(audio: np.ndarray) -> None:
        with uninterrupted():
            encoder.append(audio)

    try:
        yield append
        with uninterrupted():
            encoder.finish()
    finally:
        with uninterrupted():
            encoder.close()


class MediaEncoder:
    """An encoder that writes one of FFmpeg's containers with one stream of mono sound.

    Call ``append`` for each piece of sound, then ``finish``, then ``close``.

    Args:
        target: Path of the file, or an object with the method ``write``.
        media: Container and encoding of the file.
        rate: Sample rate of the sound in Hz. If the encoder needs another rate, PyAV resamples the sound.
        tags: Tags by FFmpeg's names, as for ``ane.audio.writing``.
        chapters: Chapters, as for ``ane.audio.writing``.
        cover: Cover picture, or ``None``.

    Raises:
        OSError: The disk reports an error. Every method may raise this error.
    """

    def __init__(
        self,
        target: Any,
        media: MediaFormat,
        rate: int,
        tags: Mapping[str, str] = MappingProxyType({}),
        chapters: Sequence[ChapterMark] = (),
        cover: CoverImage | None = None,
    ):
        import av

        self._av, self.rate, self.samples = av, rate, 0
        self._container: Any = av.open(
            target, "w", format=media.container, options={"fflags": "+bitexact", **media.options}
        )
        self._container.metadata.update({name: value for name, value in tags.items() if value})
        self._gain = np.float32(media.gain)
        self._stream: Any = self._container.add_stream(media.encoder, rate=media.rate or rate, layout="mono")
        if language := tags.get("language"):
            self._stream.metadata["language"] = language
        if media.bit_rate:
            self._stream.bit_rate = media.bit_rate
        if chapters:
            self._container.set_chapters(
                [
                    {
                        "id": number,
                        "start": round(chapter.start * 1000),
                        "end": math.ceil(chapter.end * 1000),
                        "time_base": Fraction(1, 1000),
                        "metadata": {"title": chapter.title},
                    }
                    for number, chapter in enumerate(chapters, 1)
                ]
            )
        if cover and media.cover and (size := cover_size(cover)):
            self._add_cover(cover, *size)

    def _add_cover(self, cover: CoverImage, width: int, height: int) -> None:
        picture = self._container.add_mux_stream(
            "png" if cover.media_type == "image/png" else "mjpeg", width=width, height=height
        )
        picture.time_base = Fraction(1, 90_000)
        picture.disposition = self._av.stream.Disposition.attached_pic
        self._container.start_encoding()
        packet = self._av.Packet(cover.data)
        packet.stream, packet.pts, packet.dts, packet.time_base = picture, 0, 0, Fraction(1, 90_000)
        packet.is_keyframe = True
        self._container.mux(packet)

    def append(self, audio: np.ndarray) -> None:
        """Encode samples (n,) float32, clipped to [-1, 1]. Raises UserError for NaN or infinite samples."""
        if len(audio):
            form, samples = ("s16", pcm16(audio)) if self._gain == 1 else ("flt", clipped(audio) * self._gain)
            frame = self._av.AudioFrame.from_ndarray(samples[None], format=form, layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = self.rate, self.samples, Fraction(1, self.rate)
            self.samples += len(audio)
            self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Write the samples that the encoder still holds. If ``append`` got no sound, write 0.1 s of silence."""
        if not self.samples:
            self.append(np.zeros(self.rate // 10, np.float32))
        self._container.mux(self._stream.encode(None))

    def close(self) -> None:
        self._container.close()
