"""Read and decode the text of `ane say` from the command line, a file or standard input."""

import argparse
import codecs
import io
import os
import re
import stat
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ane.system.errors import UserError
from ane.system.streams import waiting_stated
from ane.text import nothing_to_say_error, read_passages

if TYPE_CHECKING:
    from ane.speech.request import SpeechRequest

MAX_SPOKEN = 4 << 20  # maximum bytes of a text, because `ane say` prepares the whole text before it speaks
DOCUMENTS = {b"PK\x03\x04": "an EPUB or a Word document", b"%PDF": "a PDF"}  # first bytes of a file → kind of document
NO_TEXT = "no text given: name TEXT or -f FILE, or pipe the text in"


def reads_standard_input(args: argparse.Namespace) -> bool:
    """Return whether the text comes from standard input: with ``-f -``, or if there is no other text.

    Raises:
        UserError: TEXT and ``-f`` are both given, or there is no text.
    """
    if args.text and args.file is not None:
        raise UserError("both TEXT and -f FILE are given: leave one out")
    if args.text or args.file is not None:
        return args.file == "-"
    if sys.stdin.isatty():
        raise UserError(NO_TEXT)
    return True


def arrives_late(args: argparse.Namespace) -> bool:
    """Return whether the text comes from standard input, and another program may still write it."""
    if not reads_standard_input(args):
        return False
    try:
        status = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):
        return True
    return not (stat.S_ISREG(status.st_mode) or os.path.samestat(status, os.stat(os.devnull)))


def arriving_text() -> Iterator[str]:
    """Yield the text of standard input as it arrives. Raises UserError if it cannot be read or is not UTF-8."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    position = 0
    try:
        while content := sys.stdin.buffer.read1(1 << 16):
            yield decoder.decode(content)
            position += len(content)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise UserError(
            f"standard input is not text in UTF-8 (near byte {position + error.start}): convert it first"
        ) from error
    except OSError as error:
        raise UserError(f"cannot read the text from standard input: {error.strerror or error}") from error


def read_text(args: argparse.Namespace) -> str:
    """Return the text to speak. Raises UserError if it cannot be read, is not UTF-8, or standard input is empty.

    Standard input can be read only once, but a command may begin again without a default that has no effect. So all
    copies of ``args`` share the list ``texts_read``, which keeps the text.
    """
    if not args.texts_read:
        args.texts_read.append(_read_text(args))
    return str(args.texts_read[0])


def _read_text(args: argparse.Namespace) -> str:
    if args.text:
        # Python turns bytes that are not UTF-8 on the command line into lone surrogates, which are not text
        return decoded(" ".join(args.text).encode("utf-8", "surrogatepass"), "the text on the command line")
    piped = args.file in (None, "-")
    where = "standard input" if piped else args.file
    try:
        with (
            waiting_stated(where),
            nullcontext(sys.stdin.buffer) if piped else Path(args.file).expanduser().open("rb") as file,
        ):
            content = file.read(MAX_SPOKEN + 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: the path begins with the name of an unknown user, ~USER
        raise UserError(f"cannot read the text from {where}: {getattr(error, 'strerror', None) or error}") from error
    if not content and args.file is None:
        raise UserError(NO_TEXT)
    if len(content) > MAX_SPOKEN:
        raise UserError(
            f"the text from {where} has more than {MAX_SPOKEN >> 20} MB, which is over 80 hours of speech: "
            "divide it, or narrate it with `ane read`, which can resume after an interruption"
        )
    for start, kind in DOCUMENTS.items():
        if content.startswith(start):
            raise UserError(f"{where} is {kind}, but `ane say` reads only text: use `ane read {where} -o OUT.m4b`")
    return decoded(content, where)


def has_words(text: str) -> bool:
    """Return whether a text contains a letter, a digit or a sign that has a reading, such as "%"."""
    return any(unicodedata.category(character)[0] in "LNS" or character in "%&@#*" for character in text)


def decoded(content: bytes, where: str) -> str:
    """Decode UTF-8, and turn every line end into a line feed. Raises UserError if ``content`` is not UTF-8."""
    try:
        return re.sub("\r\n?", "\n", content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not text in UTF-8 (byte {error.start}): convert it first") from error


def check_lines(request: "SpeechRequest") -> None:
    """Raise UserError if a line has no words or has faulty markup. Empty lines are allowed."""
    faulty: dict[int, str] = {}
    for number, line in enumerate(request.text.splitlines(), 1):
        try:
            passages = read_passages(line, request.lexicon, request.ssml, markdown=request.markdown)
            if line.strip() and not any(any(map(str.isalnum, passage.text)) for passage in passages):
                raise nothing_to_say_error(line)
        except UserError as error:
            faulty[number] = str(error).removeprefix("line 1: ")
    if faulty:
        (first, message), *others = faulty.items()
        more = f" (also wrong: line {', '.join(str(number) for number, _ in others)})" if others else ""
        raise UserError(f"line {first}: {message}{more}")
