"""Read, write and play sound, resample it, trim silence, and compute mel spectrograms.

PyAV (``media``) writes files with chapters, a cover and tags. Without PyAV or without tags, libsndfile (``writer``)
writes wav, flac, mp3, ogg and aiff.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ane.audio import media, writer
from ane.audio.playback import check_sound_device, play
from ane.audio.reader import (
    CLIP_SUFFIXES,
    MIN_CLIP_SECONDS,
    check_clip,
    read_audio,
    read_clip,
    resample,
    resample_windowed_sinc,
)
from ane.audio.sample_format import SampleFormat, resampling
from ane.system.errors import UserError
from ane.system.files import check_output_file, replacing
from ane.system.sound_formats import FORMATS

__all__ = [
    "CLIP_SUFFIXES",
    "MIN_CLIP_SECONDS",
    "check_clip",
    "check_output",
    "check_sound_device",
    "play",
    "read_audio",
    "read_clip",
    "resample",
    "resample_windowed_sinc",
    "write",
    "writing",
]


def check_output(path: Path | str) -> None:
    """Check that ``writing`` can write a file, before any work is done.

    Raises:
        UserError: The suffix is unknown or needs PyAV, the path is a directory or a device, or its folder does not
            exist or cannot be written. For "-", standard output is closed or a terminal.
    """
    suffix = Path(path).suffix.lower()
    if str(path) == "-":
        writer.check_standard_output()
        return
    if suffix not in FORMATS:
        raise UserError(f"cannot write {path}: end its name in {', '.join(FORMATS)}")
    if suffix not in writer.FORMATS and not media.has_pyav():
        raise UserError(
            f"cannot write {path}: {suffix} needs PyAV: {media.INSTALL}, or choose {', '.join(writer.FORMATS)}"
        )
    check_output_file(path)
    target = os.path.expanduser(path)
    if os.path.exists(target) and not os.path.isfile(target):
        raise UserError(f"cannot write {path}, because it is a device or a pipe: name a file, or - for standard output")


def write(path: Path | str, audio: np.ndarray, sample_rate: int, samples: SampleFormat | None = None) -> None:
    """Write audio (S,) float32 to a mono file, clipped to [-1, 1]. The suffix chooses the format (see ``writing``)."""
    with writing(path, sample_rate, samples=samples) as append:
        append(audio)


@contextmanager
def writing(
    path: Path | str,
    rate: int,
    tags: Mapping[str, str] | None = None,
    chapters: Sequence[media.ChapterMark] = (),
    cover: media.CoverImage | None = None,
    samples: SampleFormat | None = None,
    encoding: media.MediaFormat | None = None,
) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that appends audio (n,) float32, clipped to [-1, 1], to a mono file as it arrives.

    The suffix chooses the format. "-" is standard output, which gets a 16-bit WAV without a length in its header. The
    file appears when the block has ended without an error. ``~`` at the start of the path is the user's home.

    Args:
        tags: Tags by FFmpeg's names: "title", "artist", "album", "track" and so on. ``None`` means a file without tags,
            which libsndfile writes if it can.
        chapters: Chapters, for formats that have them: m4b, m4a, mp3, opus, aiff.
        samples: Format and rate of the stored samples, for wav, aiff and flac without tags. ``None`` means the usual
            format at ``rate``.
        encoding: Encoding of a file with tags. ``None`` means the usual encoding for the suffix.

    Raises:
        UserError: An error of ``check_output``, samples are NaN or infinite, the format does not support the rate, the
            path cannot be written, or the reader of standard output has closed it.
    """
    check_output(path)
    suffix = Path(path).suffix.lower()
    if samples is not None:
        with (
            writer.writing(path, samples.rate or rate, samples.subtype(suffix)) as append,
            resampling(append, rate, samples.rate) as resampled,
        ):
            yield resampled
        return
    if suffix not in media.FORMATS or (suffix in writer.FORMATS and (tags is None or not media.has_pyav())):
        with writer.writing(path, rate) as append:
            yield append
        return
    with (
        replacing(path, lasting=True) as target,
        media.encoding(target, encoding or media.FORMATS[suffix], rate, tags or {}, chapters, cover) as append,
    ):
        yield append
