"""Collect the messages that the program logs for its user: records of the logger ``ane`` from INFO on."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def noticed() -> Iterator[list[str]]:
    """The lines that are logged inside the block, also while it runs."""
    lines: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("ane")
    handler.emit = lambda record: lines.append(record.getMessage())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
