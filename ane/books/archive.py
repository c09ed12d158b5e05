"""Read the files in an EPUB or a DOCX, which are ZIP archives, without trusting them or extracting them to disk."""

import codecs
import posixpath
import re
import struct
import zipfile
import zlib
from typing import BinaryIO
from urllib.parse import unquote

from ane.books.document import MAX_TEXT
from ane.system.errors import UserError
from ane.system.files import zip_directory

MAX_ENTRIES = 20_000
MAX_DIRECTORY = 8 << 20  # maximum bytes of an archive's directory, which zipfile keeps in memory
MAX_TOTAL = 2 * MAX_TEXT  # maximum decompressed bytes of all files (the longest novels have 5 MB of markup)
DECLARED = re.compile(rb"""<\?xml[^<>]{0,200}?encoding\s{0,9}=\s{0,9}["']([A-Za-z0-9._-]{1,40})["']""")
META_ENCODING = re.compile(rb"""(?i)<meta\s[^<>]{0,200}?charset\s{0,9}=\s{0,9}["']?([A-Za-z0-9._-]{1,40})""")
LATIN_1 = ("iso-8859-1", "latin-1", "us-ascii", "ascii")
ENCODINGS = (
    "utf-8",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "us-ascii",
    "ascii",
    "iso-8859-1",
    "latin-1",
    "windows-1252",
    "cp1252",
    "iso-8859-15",
    "windows-1251",
    "windows-1250",
)


class UnreadablePartError(UserError):
    """A file in an archive is missing, damaged or in an unknown encoding. The other files may still be readable."""


class BookArchive:
    """The files in an EPUB or a DOCX. A method finds a file by its path in the archive.

    Every method raises UserError if the archive is not a ZIP archive, or is damaged, protected, or larger than any
    book.
    """

    def __init__(self, file: BinaryIO):
        _check_directory(file)
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error, EOFError) as error:
            raise UserError(
                f"it is damaged, or not an archive as EPUB and DOCX are ({error}): download it again"
            ) from error
        self.names = frozenset(self._zip.namelist())
        self._left = MAX_TOTAL

    def close(self) -> None:
        self._zip.close()

    def read(self, name: str, purpose: str) -> bytes:
        """Return the bytes of a file in the archive.

        Args:
            purpose: Purpose of the file, for error messages.
        """
        if name not in self.names:
            raise UnreadablePartError(f"it lacks {name!r}, {purpose}: it is incomplete, download it again")
        limit = min(MAX_TEXT, self._left)
        try:
            with self._zip.open(name) as part:
                data = part.read(limit + 1)
        except RuntimeError as error:  # zipfile's error for a password
            raise UserError(f"{name!r} in it is encrypted: ane reads only books without protection") from error
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError) as error:
            raise UnreadablePartError(f"{name!r} in it is damaged ({error}): download the book again") from error
        if len(data) > limit:
            raise UserError(
                f"{name!r} in it has more than {limit >> 20} MB, more than any book: it is damaged or "
                "made to fill the memory"
            )
        self._left -= len(data)
        return data

    def text(self, name: str, purpose: str) -> str:
        """Return the text of an XML file.

        It may be in UTF-8, in UTF-16 with a byte order mark, or in its declared encoding.
        """
        data = self.read(name, purpose)
        encoding = "utf-8"
        if declared := DECLARED.match(data):
            encoding = declared[1].decode("ascii").lower()
            if encoding not in ENCODINGS and not data.startswith(codecs.BOM_UTF8):
                raise UnreadablePartError(
                    f"{name!r} in it declares the encoding {encoding!r}, which is not supported: "
                    "convert the book to UTF-8"
                )
        else:
            encoding = encoding_of_html(data)
        try:
            return decoded(data, encoding, f"{name!r} in it", "convert the book, with Calibre for example")
        except UserError as error:
            raise UnreadablePartError(str(error)) from error


def resolve(base: str, reference: str) -> tuple[str, str]:
    """Resolve a reference in the file ``base``, and return its path and fragment.

    Raises:
        UserError: The reference leaves the archive.
    """
    path, _, fragment = reference.partition("#")
    if not path:
        return base, unquote(fragment)
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(base), unquote(path)))
    if joined.startswith(("/", "../")) or joined == ".." or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path):
        raise UserError(f"{base!r} in it refers to {reference[:100]!r}, a path outside the book")
    return joined, unquote(fragment)


def _check_directory(file: BinaryIO) -> None:
    """Raise UserError if the directory of an archive is too long to be read into memory."""
    try:
        entries, length = zip_directory(file)
    except ValueError as error:
        raise UserError(
            f"it is cut off, or not an archive as EPUB and DOCX are ({error}): download it again"
        ) from error
    if entries > MAX_ENTRIES or length > MAX_DIRECTORY:
        raise UserError(f"it is an archive of more than {MAX_ENTRIES} files, more than any book")


def encoding_of_html(data: bytes) -> str:
    """Return the encoding that the ``<meta>`` of a page names, if it is supported and the page is not valid UTF-8.

    Return "utf-8" otherwise.
    """
    meta = META_ENCODING.search(data[:2048])
    encoding = meta[1].decode("ascii").lower() if meta else "utf-8"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        encoding = "windows-1252" if encoding in LATIN_1 else encoding  # as browsers do
        return encoding if encoding in ENCODINGS else "utf-8"
    return "utf-8"


def decoded(data: bytes, encoding: str, subject: str, advice: str) -> str:
    """Decode a text. A byte order mark at the start decides the encoding. Without such a mark, it is ``encoding``.

    Args:
        subject: Start of an error message.
        advice: End of an error message.

    Raises:
        UserError: The text is in another encoding, or has NUL characters.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif data.startswith(codecs.BOM_UTF8) or encoding in ("utf-8", "us-ascii", "ascii"):
        encoding = "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{subject} is not text in {encoding.removesuffix('-sig').upper()} (byte {error.start}): {advice}"
        ) from error
    if "\x00" in text:
        raise UserError(f"{subject} is not text, because it has NUL characters: {advice}")
    return text
