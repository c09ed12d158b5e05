"""Speak from programs that use asyncio. Threads do the work, so that the event loop stays free."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
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
    def stream_later(self, request: SpeechRequest, context: SpeechContext) -> Callable[[], Stream]:
        """Check a request and its text without running a network, and return a function that begins the stream."""

    @takes_fields(SpeechCall)
    async def speak_async(self, call: SpeechCall) -> Speech:
        """Run ``speak`` in a thread. If you cancel the coroutine, the thread still finishes the work."""
        return await self._work(partial(self.speech_of, call, call.context(batched=True)))

    @takes_fields(SpeechCall)
    def stream_async(self, call: SpeechCall) -> AsyncGenerator[np.ndarray, None]:
        """Yield the pieces of ``stream``. A thread makes each piece while you await it.

        The call itself reads the text and looks up the voices, and raises the errors of ``stream`` about them. Closing
        the iterator stops the work. To leave the ``async for`` loop early, use ``contextlib.aclosing``.
        """
        return self._pieces(self.stream_later(call, call.context()))

    async def _pieces(self, begin: Callable[[], Stream]) -> AsyncGenerator[np.ndarray, None]:
        stream = await self._work(begin)
        try:
            while (piece := await self._work(partial(next, stream, None))) is not None:
                yield piece
        finally:
            await self._work(stream.close)

    async def _work(self, call: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(self.turns.run, call)
