"""The one way in which the server waits for clients and for its own tasks: always with a limit.

Limits of time are ``asyncio.timeout``. ``asyncio.wait_for`` loses a cancellation in Python 3.11 when the call that it
waits for has just ended, and then waits for the next one for ever.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request

from ane.server.errors import RefusedError

LOGGER = logging.getLogger("ane.server")
END_SECONDS = 1.0  # that a cancelled task has to end, before it is cancelled again
ATTEMPTS = 5  # of cancelling a task

Result = TypeVar("Result")


async def while_watching(work: Awaitable[Result], watched: Awaitable[None]) -> Result:
    """Return the result of ``work``, unless ``watched`` raises an error before. Both are ended when this returns.

    Raises:
        Exception: of either.
    """
    task, watching = asyncio.ensure_future(work), asyncio.ensure_future(watched)
    try:
        await asyncio.wait([task, watching], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            watching.result()
        return await task
    finally:
        await end_tasks(task, watching)


async def end_tasks(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks and wait until they have ended. A task that keeps ignoring it is left, and the log says so."""
    pending = {task for task in tasks if not task.done()}
    for _ in range(ATTEMPTS):
        for task in pending:
            task.cancel()
        if pending:
            _, pending = await asyncio.wait(pending, timeout=END_SECONDS)
    if pending:
        LOGGER.warning(f"{len(pending)} tasks do not end although they were cancelled: {next(iter(pending))!r}")
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # looked at: asyncio logs the others


async def next_text(
    read: Callable[[], Awaitable[Result]], seconds: float, idle: float, is_full: Callable[[], bool]
) -> Result:
    """Return the next text that a client writes, for which it has ``seconds``.

    If ``is_full``, other clients need its place: it then has ``idle`` seconds.

    Raises:
        TimeoutError: no text came.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            async with asyncio.timeout(min(idle, max(0.0, until - time.monotonic()))):
                return await read()
        except TimeoutError:
            if is_full() or time.monotonic() >= until:
                raise


async def while_connected(work: Awaitable[Result], request: Request) -> Result:
    """Return the result of ``work``, which is cancelled when the client leaves. The request's body must have been read.

    Raises:
        RefusedError: the client has gone (499). Exception: the work's own.
    """

    async def until_disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        raise RefusedError("the client has gone", 499)

    return await while_watching(work, until_disconnected())
