"""Speak from programs that use asyncio. Threads do the work, so that the event loop stays free."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import numpy as np

from ane.speech.calls import SpeechCall, takes_fields
from ane.speech.request import SpeechContext, SpeechRequest
from ane.speech.stream import Speech, Stream
from ane.speech.turns import Turns


class AsyncSpeech(ABC):
    """The methods of ``Speaker`` that coroutines await.

    Several coroutines may share the object, even if they run in different event loops. It makes a piece of sound for
    one coroutine, then a piece for the next coroutine, and so on.
    """

    def __init__(self) -> None:
        self.turns = Turns()  # makes the coroutines compute one after another

    @abstractmethod
    def speech_of(self, request: SpeechRequest, context: SpeechContext) -> Speech:
        """Speak a request and return all of its sound."""

    @abstractmethod
    def stream_of(self, request: SpeechRequest, context: SpeechContext) -> Stream:
        """Speak a request as a stream."""

    @takes_fields(SpeechCall)
    async def speak_async(self, call: SpeechCall) -> Speech:
        """Run ``speak`` in a thread. If you cancel the coroutine, the thread still finishes the work."""
        return await self._work(partial(self.speech_of, call, call.context(batched=True)))

    @takes_fields(SpeechCall)
    async def stream_async(self, call: SpeechCall) -> AsyncIterator[np.ndarray]:
        """Yield the pieces of ``stream``. A thread makes each piece while you await it.

        Closing the iterator stops the work. To leave the ``async for`` loop early, use ``contextlib.aclosing``.
        """
        stream = await self._work(partial(self.stream_of, call, call.context()))
        try:
            while (piece := await self._work(partial(next, stream, None))) is not None:
                yield piece
        finally:
            await self._work(stream.close)

    async def _work(self, call: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(self.turns.run, call)
