"""List the formats of sound files with codec and bit rate, one row per suffix.

Writers, flags, requests and help texts all use these rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class MediaFormat:
    """Names a format's FFmpeg container and encoder, its bits per second, and whether a file can have a cover."""

    container: str
    encoder: str
    bit_rate: int | None = None
    cover: bool = False
    rate: int | None = None  # sample rate of the file in Hz; None means the rate of the sound
    gain: float = 1.0  # factor by which to multiply the samples before encoding
    options: Mapping[str, str] = field(default_factory=dict)


TAGS = ("title", "author", "narrator", "year", "publisher", "series", "description")  # facts about a book in its files


@dataclass(frozen=True)
class FileFormat:
    """A format of sound files.

    Attributes:
        media: Settings with which PyAV writes the format. ``None`` means that PyAV does not write it.
        sndfile: Container and encoding with which libsndfile writes the format. ``None`` means that libsndfile does not
            write it.
        clip: Whether the clips of a voice may have this format.
        lacks: The tags in ``TAGS`` that a file in this format cannot contain.
        media_type: Media type with which the server sends the format. "" means that the server does not send it.
        sent: FFmpeg options that replace ``media.options`` when FFmpeg cannot seek in the output, as for a server.
    """

    media: MediaFormat | None = None
    sndfile: tuple[str, str] | None = None
    clip: bool = False
    lacks: tuple[str, ...] = ()
    media_type: str = ""
    sent: Mapping[str, str] = field(default_factory=dict)

    @property
    def streamed(self) -> MediaFormat | None:
        """FFmpeg's settings with which it never changes earlier bytes, for a pipe. ``None`` means it cannot do this."""
        if self.media is None or not self.media_type or self.media.container == "wav":
            return None
        return replace(self.media, options={"fflags": "+bitexact+flush_packets", **self.sent})


AIFF = FileFormat(MediaFormat("aiff", "pcm_s16be", options={"write_id3v2": "1"}), ("AIFF", "PCM_16"), clip=True)
FORMATS = {
    ".wav": FileFormat(
        MediaFormat("wav", "pcm_s16le", options={"rf64": "auto"}),
        ("WAV", "PCM_16"),
        True,
        lacks=("narrator", "publisher", "series", "description"),
        media_type="audio/wav",
    ),
    ".flac": FileFormat(MediaFormat("flac", "flac", cover=True), ("FLAC", "PCM_16"), True, media_type="audio/flac"),
    # LAME multiplies all samples by 0.95, and FFmpeg has no option to prevent this
    ".mp3": FileFormat(
        MediaFormat("mp3", "libmp3lame", 64_000, cover=True, gain=1 / 0.95, options={"id3v2_version": "3"}),
        ("MP3", "MPEG_LAYER_III"),
        True,
        media_type="audio/mpeg",
        sent={"write_xing": "0"},
    ),
    ".ogg": FileFormat(sndfile=("OGG", "VORBIS"), clip=True, lacks=TAGS),
    ".aiff": AIFF,
    ".aif": AIFF,
    ".m4a": FileFormat(MediaFormat("mp4", "aac", 64_000, cover=True, options={"brand": "M4A "}), lacks=("publisher",)),
    ".m4b": FileFormat(MediaFormat("mp4", "aac", 64_000, cover=True, options={"brand": "M4B "}), lacks=("publisher",)),
    ".opus": FileFormat(
        MediaFormat("opus", "libopus", 32_000, rate=48000),
        clip=True,
        media_type="audio/ogg",
        sent={"page_duration": "100000"},
    ),
    ".aac": FileFormat(MediaFormat("adts", "aac", 64_000), lacks=TAGS, media_type="audio/aac"),
}
# libsndfile writes PLAIN_SUFFIXES. PyAV, which the extra "books" installs, writes MEDIA_SUFFIXES
PLAIN_SUFFIXES = [suffix for suffix, row in FORMATS.items() if row.sndfile]
MEDIA_SUFFIXES = [suffix for suffix, row in FORMATS.items() if not row.sndfile]
SUFFIX_HELP = f"{', '.join(PLAIN_SUFFIXES)}, or with the extra books {', '.join(MEDIA_SUFFIXES)}"
SENT = (*(suffix[1:] for suffix, row in FORMATS.items() if row.media_type), "pcm")  # formats that the server sends
