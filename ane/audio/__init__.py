"""Read, write and play sound, resample it, trim silence, and compute mel spectrograms.

Two libraries write files. PyAV (``media``) writes files that have chapters, a cover or tags. If a file has no chapters,
cover or tags, or PyAV is not installed, libsndfile (``writer``) writes wav, flac, mp3, ogg and aiff.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
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
from ane.system.files import check_output_file, is_stream, replacing
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
        UserError: The suffix is unknown or needs PyAV, the path is a directory, a pipe cannot have the format, or the
            folder of the path does not exist or cannot be written. If the path is "-": standard output is closed or is
            a terminal.
    """
    suffix = Path(path).suffix.lower()
    if str(path) == "-":
        writer.check_standard_output()
        return
    if piped := is_stream(path):
        suffix = suffix if suffix in FORMATS else ".wav"
        if suffix != ".wav" and not FORMATS[suffix].streamed:
            raise UserError(f"cannot write {path}: it is a device or a pipe, and {suffix} needs a file")
    if suffix not in FORMATS:
        raise UserError(f"cannot write {path}: end its name in {', '.join(FORMATS)}")
    if ((piped and suffix != ".wav") or suffix not in writer.FORMATS) and not media.has_pyav():
        raise UserError(
            f"cannot write {path}: {suffix} needs PyAV: {media.INSTALL}, or choose {', '.join(writer.FORMATS)}"
        )
    check_output_file(path, streams=True)


def write(
    path: Path | str,
    audio: np.ndarray,
    sample_rate: int,
    samples: SampleFormat | None = None,
    encoding: media.MediaFormat | None = None,
) -> None:
    """Write audio (S,) float32 to a mono file, clipped to [-1, 1]. The suffix chooses the format (see ``writing``)."""
    with writing(path, sample_rate, samples=samples, encoding=encoding) as append:
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
    """Open a mono sound file, and yield a function that appends audio (n,) float32 to it. Samples are clipped to ±1.

    The file appears when the ``with`` block has ended without an error. The suffix of the path chooses the format. The
    path "-" is standard output. It and pipes without a suffix get a 16-bit WAV without a length in its header. ``~`` at
    the start of the path is the user's home folder.

    Args:
        path: Path of the file.
        rate: Sample rate of the audio in Hz.
        tags: Tags by FFmpeg's names: "title", "artist", "album", "track" and so on. ``None`` means a file without tags,
            which libsndfile writes if it supports the format.
        chapters: Chapters, for the formats m4b, m4a, mp3, opus and aiff.
        cover: Cover picture, for formats that have one.
        samples: Format and rate of the stored samples, for wav, aiff and flac without tags. ``None`` means the usual
            format at ``rate``.
        encoding: Encoding of a file with tags, or of a pipe. ``None`` means the usual encoding for the suffix.

    Raises:
        UserError: ``check_output`` raises an error, samples are NaN or infinite, the format does not support the rate,
            the path cannot be written, or the program that reads standard output has closed it.
    """
    check_output(path)
    suffix = Path(path).suffix.lower()
    if is_stream(path):
        if samples is not None:
            samples.subtype("")  # raises an error, because a pipe gets the usual samples
        encoding = encoding or (FORMATS[suffix].streamed if suffix in FORMATS else None)
        with (
            closing(writer.ByteSender(path)) as sender,
            (
                media.encoding(sender, encoding, rate, {}, (), None) if encoding else writer.sending_wav(sender, rate)
            ) as append,
        ):

            def checked(audio: np.ndarray) -> None:
                append(audio)
                sender.check()

            yield checked
        sender.check()
        return
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
