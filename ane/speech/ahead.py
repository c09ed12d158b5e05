"""Speak several chunks at once, each on its thread, and yield them in order, not far ahead of their reader."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

import numpy as np

from ane.speech.chunks import Chunk, RenderedChunk
from ane.speech.request import SpeechContext
from ane.system.timeline import closing_source

# makes the sound of a chunk, and reports its facts
Speak = Callable[[RenderedChunk, SpeechContext], Iterator[np.ndarray]]
AHEAD = 2  # chunks of a stream that are in work: the one that is read, and the next one


class ChunkWork:
    """The work on one chunk, whose sound is made on one thread and read on another."""

    def __init__(self, chunk: Chunk, speak: Speak, context: SpeechContext):
        self.rendered = RenderedChunk(chunk)
        self._pieces = speak(self.rendered, replace(context, timeline=context.timeline.branch()))
        self._made = SimpleQueue[np.ndarray | BaseException | None]()  # ends with ``None`` or an error
        self._stopped = False

    def run(self) -> None:
        """Make the sound, until the end or ``stop``."""
        end: BaseException | None = None
        try:
            with closing_source(self._pieces):
                while not self._stopped and (piece := next(self._pieces, None)) is not None:
                    self._made.put(piece)
        except BaseException as error:  # the reader raises it after the pieces made before
            end = error
        self._made.put(end)

    def stop(self) -> None:
        """End the work after the current piece."""
        self._stopped = True

    def read(self, at_piece: Callable[[], None]) -> Iterator[np.ndarray]:
        """Yield the pieces as they are made, and call ``at_piece`` before each one. Raises the error of the work."""
        while (piece := self._made.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            at_piece()
            yield piece


def rendered_in_order(
    chunks: Sequence[Chunk], speak: Speak, context: SpeechContext, threads: int
) -> Iterator[RenderedChunk]:
    """Yield chunks in order, with the sound that ``speak`` makes. The number of threads does not change the sound.

    With two or more threads, chunks are made while earlier ones are read. If the whole speech is wanted, one chunk per
    thread is in work. A stream begins its second chunk once it has the first piece of the first chunk, and has at most
    ``AHEAD`` chunks in work. Closing the iterator waits for the pieces that are being made, and ends the threads.
    """
    if threads == 1 or len(chunks) == 1:
        for done, chunk in enumerate(chunks, 1):
            rendered = RenderedChunk(chunk)
            rendered.sound = context.reporting(speak(rendered, context), "vocode", done, len(chunks))
            yield rendered
        return
    first, most = (threads + 1, threads + 1) if context.batched else (1, AHEAD)
    works, waiting = deque[ChunkWork](), iter(chunks)
    with ThreadPoolExecutor(min(threads, most), "chunk") as pool:

        def begin(number: int) -> None:
            """Begin chunks until ``number`` are in work."""
            while len(works) < number and (chunk := next(waiting, None)) is not None:
                works.append(ChunkWork(chunk, speak, context))
                pool.submit(works[-1].run)

        try:
            for done in range(1, len(chunks) + 1):
                begin(first)
                rendered = works[0].rendered
                rendered.sound = context.reporting(works[0].read(partial(begin, most)), "vocode", done, len(chunks))
                yield rendered
                works.popleft()
        finally:
            for work in works:
                work.stop()
