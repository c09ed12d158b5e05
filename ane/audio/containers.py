"""How many bytes a sound file lacks, by what its own container states.

libsndfile reads a wav, aiff or ogg file that was cut off as if it ended there. A clip that lost its end gives another
voice, so it is better refused.
"""

import struct
from pathlib import Path
from typing import BinaryIO

_UNKNOWN = 0x7FFFF000       # sizes from here on are what streaming writers (sox, ffmpeg) put when they cannot know


def cut_short(path: Path) -> int:
    """Bytes that are missing at the end of a wav, aiff or ogg file; 0 for whole files and other formats.

    Raises:
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
        if magic in (b"RIFF", b"RIFX", b"RF64", b"FORM"):
            return _cut_in_chunk(file, size, ">" if magic in (b"RIFX", b"FORM") else "<")
        if magic == b"OggS":
            return _cut_in_page(file, size)
    return 0


def _cut_in_chunk(file: BinaryIO, size: int, order: str) -> int:
    """Walk the chunks of a RIFF or FORM file up to the sound data. ``order`` is struct's byte order."""
    position = 12
    long_length = None
    while position + 8 <= size:
        file.seek(position)
        name, length = struct.unpack(order + "4sI", file.read(8))
        position += 8
        if name == b"ds64" and length >= 16:      # RF64 (EBU Tech 3306): 64-bit sizes of the file, then of the data
            long_length = struct.unpack("<QQ", file.read(16))[1]
        if name in (b"data", b"SSND"):
            if length == 0xFFFFFFFF and long_length is not None:
                return max(0, position + long_length - size)
            return max(0, position + length - size) if length < _UNKNOWN else 0
        position += length + length % 2
    return 0


def _cut_in_page(file: BinaryIO, size: int) -> int:
    """Walk the pages of an Ogg file (RFC 3533): a 27-byte head, a table of segment lengths, the segments."""
    position = 0
    while position < size:
        file.seek(position)
        head = file.read(27)
        if head[:4] != b"OggS"[:len(head)]:
            return 0                            # something else follows the last page, a tag say
        if len(head) < 27:
            return 27 - len(head)
        table = file.read(head[26])
        position += 27 + head[26] + sum(table)
        if len(table) < head[26] or position > size:
            return max(position - size, head[26] - len(table))
    return 0
