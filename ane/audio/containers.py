"""The number of bytes missing at the end of a sound file, from the sizes that its container states.

libsndfile reads a wav, aiff or ogg file that was cut off as if it ended there. A clip without its end gives another
voice, so such files are refused.
"""

import struct
from pathlib import Path
from typing import BinaryIO

_UNKNOWN = 0x7FFFF000       # streaming writers (sox, ffmpeg) state sizes from here on when they do not know the size


def missing_bytes(path: Path) -> int:
    """Bytes that are missing at the end of a wav, aiff or ogg file; 0 for complete files and other formats.

    Raises:
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
        if magic in (b"RIFF", b"RIFX", b"RF64", b"FORM"):
            return _missing_in_chunks(file, size, ">" if magic in (b"RIFX", b"FORM") else "<")
        if magic == b"OggS":
            return _missing_in_pages(file, size)
    return 0


def _missing_in_chunks(file: BinaryIO, size: int, byte_order: str) -> int:
    """Walk the chunks of a RIFF or FORM file up to the sound data. ``byte_order`` is struct's."""
    position = 12
    data_size_64 = None
    while position + 8 <= size:
        file.seek(position)
        name, length = struct.unpack(byte_order + "4sI", file.read(8))
        position += 8
        if name == b"ds64" and length >= 16:      # RF64 (EBU Tech 3306): 64-bit sizes of the file, then of the data
            data_size_64 = struct.unpack("<QQ", file.read(16))[1]
        if name in (b"data", b"SSND"):
            if length == 0xFFFFFFFF and data_size_64 is not None:
                return max(0, position + data_size_64 - size)
            return max(0, position + length - size) if length < _UNKNOWN else 0
        position += length + length % 2
    return 0


def _missing_in_pages(file: BinaryIO, size: int) -> int:
    """Walk the pages of an Ogg file (RFC 3533): a header of 27 bytes, a table of segment lengths, the segments."""
    position = 0
    while position < size:
        file.seek(position)
        header = file.read(27)
        if header[:4] != b"OggS"[:len(header)]:
            return 0                            # something else follows the last page: a tag, for example
        if len(header) < 27:
            return 27 - len(header)
        table = file.read(header[26])
        position += 27 + header[26] + sum(table)
        if len(table) < header[26] or position > size:
            return max(position - size, header[26] - len(table))
    return 0
