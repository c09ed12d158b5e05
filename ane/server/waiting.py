"""Wait for clients and for the server's tasks, always with a time limit.

The functions use ``asyncio.timeout``, because ``asyncio.wait_for`` of Python 3.11 can lose a cancellation: if the call
that it waits for has just ended, a cancelled task goes on and may then wait forever.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request

from ane.server.errors import RefusedError

LOGGER = logging.getLogger("ane.server")
END_SECONDS = 1.0  # seconds that a cancelled task has to end, before it is cancelled again
ATTEMPTS = 5  # how often to cancel a task before the server leaves it running

Result = TypeVar("Result")


async def while_watching(work: Awaitable[Result], watched: Awaitable[None]) -> Result:
    """Return the result of ``work``, unless ``watched`` raises an error first.

    When the function returns, ``work`` and ``watched`` have both ended.

    Raises:
        Exception: ``work`` or ``watched`` has raised it.
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
    """Cancel tasks and wait until they have ended. If a task survives ``ATTEMPTS`` cancellations, log it and go on."""
    pending = {task for task in tasks if not task.done()}
    for _ in range(ATTEMPTS):
        for task in pending:
            task.cancel()
        if pending:
            _, pending = await asyncio.wait(pending, timeout=END_SECONDS)
    if pending:
        LOGGER.warning(f"{len(pending)} tasks were cancelled and do not end: {next(iter(pending))!r}")
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # asyncio logs exceptions that nobody looks at


async def next_text(
    read: Callable[[], Awaitable[Result]], seconds: float, idle: float, is_full: Callable[[], bool]
) -> Result:
    """Wait for the next text from a client.

    Args:
        read: Function that reads the text.
        seconds: Maximum seconds to wait.
        idle: Maximum seconds to wait if another client needs this client's connection.
        is_full: Function that returns whether another client needs the connection.

    Raises:
        TimeoutError: No text came in time.
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
    """Return the result of ``work``, or cancel it if the client leaves. The request's body must already be read.

    Raises:
        RefusedError: The client has left (status 499).
        Exception: The work raised it.
    """

    async def until_disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        raise RefusedError("the client has gone", 499)

    return await while_watching(work, until_disconnected())
