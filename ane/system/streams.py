"""Keep a command working if a standard stream that it does not need is closed, full or no longer exists."""

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

_REDIRECTING = threading.Lock()
LOGGER = logging.getLogger("ane")
PATIENCE = 1.0  # seconds after which a command reports that it is waiting for a pipe


def open_closed_streams() -> None:
    """Open the null device in place of each closed standard stream, so that no other file gets its descriptor.

    The null device is opened for writing in place of standard input, and for reading in place of an output. Using such
    a stream is therefore an error: "Bad file descriptor".
    """
    modes = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))
    for number, (name, flags, mode) in enumerate(modes):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, flags)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        if getattr(sys, name) is None:
            errors = "strict" if name == "stdin" else "backslashreplace"
            stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            stream.was_closed = True  # type: ignore[attr-defined]
            setattr(sys, name, stream)


def is_closed(stream: TextIO | None) -> bool:
    """Return whether a standard stream was closed when the program started."""
    return stream is None or getattr(stream, "was_closed", False)


class TolerantStream:
    """A stream whose writes never fail. After the first write that would fail, all output goes to the null device."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            discard(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            discard(self._stream)


@contextmanager
def tolerant_streams() -> Iterator[None]:
    """Make writes to standard error succeed inside the block, even if it is closed or a name is not valid UTF-8."""
    open_closed_streams()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    stream = sys.stderr
    sys.stderr = TolerantStream(stream) if stream is sys.__stderr__ else stream
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = stream


def discard(stream: TextIO) -> None:
    """Redirect a stream, including its buffered output, to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


@contextmanager
def silent_c_libraries() -> Iterator[None]:
    """Hide what C libraries print inside the block, by redirecting file descriptor 2 to the null device.

    ALSA prints a dozen lines if it finds no device, Core AI prints a line for each function, and libmpg123 prints lines
    about damaged MP3. The redirection applies to all threads. If another thread already redirects the descriptor, this
    thread changes nothing.
    """
    if not _REDIRECTING.acquire(blocking=False):
        yield
        return
    saved = None
    try:
        with suppress(OSError):  # standard error is closed
            saved = os.dup(2)
        if saved is None:
            yield
            return
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        if saved is not None:
            os.dup2(saved, 2)
            os.close(saved)
        _REDIRECTING.release()


@contextmanager
def waiting_stated(file: str) -> Iterator[None]:
    """Log a line if the block takes longer than ``PATIENCE`` seconds because it waits for a named pipe."""
    timer = threading.Timer(PATIENCE, LOGGER.info, ("waiting for text from the pipe %s", file))
    timer.daemon = True
    if Path(file).expanduser().is_fifo():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
