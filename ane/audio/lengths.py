"""Check the lengths in the headers of sound files.

The code here finds files that were cut off, and repairs headers into which a program never wrote the lengths.
"""

import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

_TAIL = 1 << 18  # the last frame of a FLAC is searched for in this many bytes at the end of the file
_UNKNOWN = 0x7FFFF000  # a program that streams (sox, ffmpeg) writes at least this number if it does not know the size


def missing_bytes(path: Path) -> int:
    """Return how many bytes are missing at the end of a wav, aiff or ogg file. Return 0 for all other files."""
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
        if magic in (b"RIFF", b"RIFX", b"RF64", b"FORM"):
            position, length = _sound_chunk(file, size, _byte_order(magic))
            return max(0, position + length - size)
        if magic == b"OggS":
            return _missing_in_pages(file, size)
    return 0


def _byte_order(magic: bytes) -> str:
    """Return the character with which ``struct`` names the byte order of a RIFF or FORM file."""
    return ">" if magic in (b"RIFX", b"FORM") else "<"


def _sound_chunk(file: BinaryIO, size: int, byte_order: str) -> tuple[int, int]:
    """Return the position of the sound in a RIFF or FORM file, and the length that the header states, in bytes.

    If the header states no length, the length is 0.
    """
    position, data_size_64 = 12, None
    while position + 8 <= size:
        file.seek(position)
        name, length = struct.unpack(byte_order + "4sI", file.read(8))
        position += 8
        if name == b"ds64" and length >= 16 and position + 16 <= size:
            # RF64 (EBU Tech 3306) has the 64-bit size of the file, followed by the 64-bit size of the data
            data_size_64 = struct.unpack("<QQ", file.read(16))[1]
        if name in (b"data", b"SSND"):
            if length == 0xFFFFFFFF and data_size_64 is not None:
                return position, data_size_64
            return position, length if length < _UNKNOWN else 0
        position += length + length % 2
    return size, 0


def _missing_in_pages(file: BinaryIO, size: int) -> int:
    """Return how many bytes are missing at the end of the last page of an Ogg file.

    A page has a header of 27 bytes, a table with the lengths of its segments, and the segments (RFC 3533).
    """
    position = 0
    while position < size:
        file.seek(position)
        header = file.read(27)
        if header[:4] != b"OggS"[: len(header)]:
            return 0  # other data, such as a tag, follows the last page
        if len(header) < 27:
            return 27 - len(header)
        table = file.read(header[26])
        position += 27 + header[26] + sum(table)
        if len(table) < header[26] or position > size:
            return max(position - size, header[26] - len(table))
    return 0


class PatchedFile(io.FileIO):
    """A file in which some bytes are replaced when a program reads it. The file on disk does not change."""

    def __init__(self, path: Path, patches: Mapping[int, bytes]):
        super().__init__(path)
        self._patches = patches

    def readinto(self, buffer: memoryview) -> int:
        begin = self.tell()
        count = super().readinto(buffer)
        for position, data in self._patches.items():
            for index, byte in enumerate(data):
                if begin <= position + index < begin + count:
                    buffer[position + index - begin] = byte
        return count


def unwritten_lengths(path: Path) -> dict[int, bytes]:
    """Return the bytes that repair a header whose lengths were never written, by their positions in the file.

    A recorder that was killed leaves a WAV or AIFF with 0 samples in the header. A program that streams a FLAC also
    leaves 0 samples. For any other file, the result is empty.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(26)
        if head[:4] in (b"RIFF", b"RIFX", b"FORM"):
            order, fields = _byte_order(head[:4]), 8 * (head[:4] == b"FORM")  # AIFF has 8 bytes before the samples
            position, length = _sound_chunk(file, size, order)
            [file_size] = struct.unpack(f"{order}I", head[4:8].ljust(4, b"\0"))
            file.seek(max(0, position - 4))
            nothing = struct.pack(f"{order}I", fields)
            unknown = file_size + 8 <= position + fields or (fields and file_size >= _UNKNOWN)
            if length in (0, fields) and unknown and position + fields < size and file.read(4) == nothing:
                return {
                    4: struct.pack(f"{order}I", min(size - 8, 0xFFFFFFFF)),
                    position - 4: struct.pack(f"{order}I", min(size - position, 0xFFFFFFFF)),
                }
        # RFC 9639, 8.2: the first block is STREAMINFO, with the number of samples in 36 bits starting at byte 13
        if head[:5] in (b"fLaC\x00", b"fLaC\x80") and len(head) == 26 and not (head[21] & 15 or any(head[22:26])):
            file.seek(max(0, size - _TAIL))
            samples = _flac_samples(file.read(), struct.unpack(">H", head[8:10])[0])
            return {21: bytes([head[21] & 0xF0 | samples >> 32 & 15]) + struct.pack(">I", samples & 0xFFFFFFFF)}
    return {}


def _flac_samples(tail: bytes, block_size: int) -> int:
    """Return the number of samples in a FLAC file, from the last frame in the file's ``tail``.

    ``block_size`` is the number of samples per frame.
    """
    start = len(tail)
    while (start := tail.rfind(b"\xff", 0, start)) >= 0:
        frame = _flac_frame(tail[start : start + 16])
        if frame is not None:
            number, samples, variable = frame
            return (number if variable else number * block_size) + samples
    return 1  # the tail has no frame; 0 would mean that the file's number of samples is unknown


def _flac_frame(header: bytes) -> tuple[int, int, bool] | None:
    """Read the header of a FLAC frame (RFC 9639, 9.1).

    Returns:
        The frame's index, its number of samples, and whether the index counts samples instead of frames. ``None`` means
        that the bytes are not the header of a frame.
    """
    if len(header) < 6 or header[1] & 0xFE != 0xF8 or header[3] & 1 or header[3] >> 4 > 10:
        return None
    size_code, rate_code, first = header[2] >> 4, header[2] & 15, header[4]
    extra = 0 if first < 0x80 else 7 - (first ^ 0xFF).bit_length()  # number of bytes after the first byte, as in UTF-8
    at = 5 + extra
    ends = at + {6: 1, 7: 2}.get(size_code, 0) + {12: 1, 13: 2, 14: 2}.get(rate_code, 0)
    if not size_code or rate_code == 15 or 0x80 <= first < 0xC0:
        return None
    if len(header) <= ends or _crc8(header[:ends]) != header[ends]:
        return None
    number = first if first < 0x80 else first & (0x3F >> extra)
    for byte in header[5:at]:
        number = number << 6 | byte & 0x3F
    sizes = {1: 192, 6: header[at] + 1, 7: (header[at] << 8 | header[min(at + 1, len(header) - 1)]) + 1}
    samples = sizes.get(size_code) or (576 << (size_code - 2) if size_code < 6 else 1 << size_code)
    return number, samples, bool(header[1] & 1)


def _crc8(data: bytes) -> int:
    """Compute the checksum of a frame's header, with the polynomial x^8 + x^2 + x + 1."""
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value << 1 ^ 7 if value & 0x80 else value << 1) & 0xFF
    return value
