"""Where the text to speak comes from: the command line, a file or standard input."""

import argparse
import codecs
import io
import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from ane.system.errors import UserError

DOCUMENTS = {b"PK\x03\x04": "an EPUB or a Word document", b"%PDF": "a PDF"}      # by their first bytes
NO_TEXT = "no text given: pass TEXT, -f FILE or pipe it in"


def reads_standard_input(args: argparse.Namespace) -> bool:
    """Whether the text comes from standard input: asked for by ``-f -``, or piped in with no other text given.

    Raises:
        UserError: two texts, or none.
    """
    if args.text and args.file is not None:
        raise UserError("two texts given: pass either TEXT or -f FILE")
    if args.text or args.file is not None:
        return args.file == "-"
    if sys.stdin.isatty():
        raise UserError(NO_TEXT)
    return True


def arriving_text() -> Iterator[str]:
    """Standard input in the pieces in which it arrives. Raises UserError when it cannot be read or is not UTF-8."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    position = 0
    try:
        while content := sys.stdin.buffer.read1(1 << 16):
            yield decoder.decode(content)
            position += len(content)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not text in UTF-8 (near byte {position + error.start}): convert it "
                        "first") from error
    except OSError as error:
        raise UserError(f"cannot read the text from standard input: {error.strerror or error}") from error


def read_text(args: argparse.Namespace) -> str:
    """The text. Raises UserError when it cannot be read, is not UTF-8, or nothing was piped in."""
    if args.text:
        # bytes of the command line that are not UTF-8 reach Python as lone surrogates, which must not pass for text
        return decoded(" ".join(args.text).encode("utf-8", "surrogatepass"), "the text on the command line")
    piped = args.file in (None, "-")
    where = "standard input" if piped else args.file
    try:
        content = sys.stdin.buffer.read() if piped else Path(args.file).expanduser().read_bytes()
    except (OSError, RuntimeError) as error:        # RuntimeError: the home of an unknown user
        raise UserError(f"cannot read the text from {where}: {getattr(error, 'strerror', None) or error}") from error
    if not content and args.file is None:
        raise UserError(NO_TEXT)
    for start, kind in DOCUMENTS.items():
        if content.startswith(start):
            raise UserError(f"{where} is {kind}, and say speaks plain text: use `ane read {where} -o OUT.m4b`")
    return decoded(content, where)


def has_words(text: str) -> bool:
    """Whether there is a letter, a digit or a sign in it that may be spoken."""
    return any(unicodedata.category(character)[0] in "LNS" or character in "%&@#*" for character in text)


def decoded(content: bytes, where: str) -> str:
    """Decode UTF-8 and convert line ends to \"\\n\". Raises UserError when it is not UTF-8."""
    try:
        return re.sub("\r\n?", "\n", content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not text in UTF-8 (byte {error.start}): convert it first") from error
