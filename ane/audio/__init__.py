"""Sound: reading and writing files, resampling, playback, mel spectrograms, trimming of silence.

PyAV (``media``) writes files with chapters, a cover and tags. Without it, or without tags, wav, flac, mp3, ogg and aiff
are written by libsndfile (``writer``).
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
    """Check, before any work is done, that ``writing`` can write a file.

    Raises:
        UserError: an unknown suffix, one that needs PyAV, a directory or a device of that name, or a folder that is not
            there or cannot be written; for "-", a standard output that is closed or a terminal.
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
        raise UserError(f"cannot write {path}: it is a device or a pipe, not a file; - is standard output")


def write(path: Path | str, audio: np.ndarray, sample_rate: int, samples: SampleFormat | None = None) -> None:
    """Write audio (S,) float32, clipped to [-1, 1], in the format of the suffix, as ``writing`` does."""
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

    The suffix gives the format. "-" is standard output, which receives a 16-bit WAV whose header does not state
    the length. A file appears when the block ends without an error and the file is complete. ``~`` at the start of the
    path is the user's home.

    Args:
        tags: "title", "artist", "album", "track" and so on, as FFmpeg names them. None: libsndfile writes what it can.
        chapters: for formats that have them: m4b, m4a, mp3, opus, aiff.
        samples: Format and rate of the stored samples, for wav, aiff and flac without tags. ``None`` means the usual
            format at ``rate``.
        encoding: Encoding of a file with tags. ``None`` means that of the suffix.

    Raises:
        UserError: see ``check_output``; NaN or infinite samples, a rate that the format lacks, a path that cannot be
            written, or a standard output that is no longer read.
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
