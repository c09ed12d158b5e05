"""Standard streams that are closed or cannot be written."""

import contextlib
import os
import sys
from typing import Any, TextIO


def repair_standard_streams() -> None:
    """Open the null device for each standard stream that is closed, and ignore errors in writing to standard error.

    Python sets a closed stream (``>&-``) to None, and the next file to be opened gets its number, so that what a C
    library prints would land in that file. A message that cannot be written (standard error on a full disk) must not
    change the outcome of a command.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")       # noqa: SIM115 (open as long as the program runs)
            if stream.fileno() != number:
                os.dup2(stream.fileno(), number)
            setattr(sys, name, stream)
    if not isinstance(sys.stderr, ForgivingStream):
        sys.stderr = ForgivingStream(sys.stderr)


def is_closed(stream: TextIO | None) -> bool:
    """Whether a standard stream was closed when the program began."""
    return stream is None or getattr(stream, "name", None) == os.devnull


class ForgivingStream:
    """A text stream whose ``write`` and ``flush`` ignore OSError. Everything else is the stream's own."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
