"""Closing of generators that read from other generators."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def closing_source(source: Iterable) -> Iterator[None]:
    """Close ``source`` when the block is left, if it can be closed.

    A generator that reads from another one closes it this way when it is itself closed.
    """
    try:
        yield
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()
