"""Speech for programs on asyncio: the event loop goes on while a thread works."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import numpy as np


class AsyncSpeaking:
    """What a synthesizer has beside ``speak`` and ``stream``. It works on one piece at a time, whoever waits for it, so
    that several coroutines, also of several event loops, may share a synthesizer; their streams take turns."""

    speak: Any
    stream: Any

    async def speak_async(self, text: str, **arguments: Any) -> Any:
        """``speak`` with these arguments, in a thread, which ends its work even if the coroutine is cancelled."""
        return await self._work(partial(self.speak, text, **arguments))

    async def stream_async(self, text: str, **arguments: Any) -> AsyncIterator[np.ndarray]:
        """The pieces of ``stream`` with these arguments, each made in a thread when it is awaited.

        Work stops when the iterator is closed: use ``contextlib.aclosing`` to leave the loop early.
        """
        stream = await self._work(partial(self.stream, text, **arguments))
        try:
            while (piece := await self._work(partial(next, stream, None))) is not None:
                yield piece
        finally:
            await self._work(stream.close)

    async def _work(self, call: Callable[[], Any]) -> Any:
        lock = vars(self).setdefault("_lock", threading.Lock())     # at once, for all threads

        def locked() -> Any:
            with lock:
                return call()

        return await asyncio.to_thread(locked)
