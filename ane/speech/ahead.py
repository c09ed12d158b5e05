"""Speak several chunks of a text in parallel, each on a separate thread, and yield the chunks in order.

The threads work on a limited number of chunks, so that they do not make sound long before the caller reads it.
"""

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

# makes the sound of a chunk, and reports the facts about the chunk
Speak = Callable[[RenderedChunk, SpeechContext], Iterator[np.ndarray]]
AHEAD = 2  # a stream works on at most this many chunks: the chunk that the caller reads, and the next chunk


class ChunkWork:
    """The work on one chunk.

    One thread makes the sound with ``run``, and another thread reads the sound with ``read``.
    """

    def __init__(self, chunk: Chunk, speak: Speak, context: SpeechContext):
        self.rendered = RenderedChunk(chunk)
        self._pieces = speak(self.rendered, replace(context, timeline=context.timeline.branch()))
        self._made = SimpleQueue[np.ndarray | BaseException | None]()  # pieces of sound, then ``None`` or an error
        self._stopped = False

    def run(self) -> None:
        """Make the pieces of sound, until the chunk ends or another thread calls ``stop``."""
        end: BaseException | None = None
        try:
            with closing_source(self._pieces):
                while not self._stopped and (piece := next(self._pieces, None)) is not None:
                    self._made.put(piece)
        except BaseException as error:  # ``read`` raises this error after it has yielded the pieces made so far
            end = error
        self._made.put(end)

    def stop(self) -> None:
        """Tell ``run`` to end after the current piece."""
        self._stopped = True

    def read(self, at_piece: Callable[[], None]) -> Iterator[np.ndarray]:
        """Yield the pieces as ``run`` makes them, and call ``at_piece`` before each piece.

        If ``run`` fails, yield the pieces that it made before the error, then raise the error.
        """
        while (piece := self._made.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            at_piece()
            yield piece


def rendered_in_order(
    chunks: Sequence[Chunk], speak: Speak, context: SpeechContext, threads: int
) -> Iterator[RenderedChunk]:
    """Yield chunks in order, with the sound that ``speak`` makes. The number of threads does not change the sound.

    If there are two or more threads, the threads make later chunks while the caller reads earlier chunks. For a whole
    speech, every thread works on a chunk. For a stream, the threads work on at most ``AHEAD`` chunks. The threads begin
    the second chunk when the first piece of the first chunk is ready. Closing the iterator waits for the pieces that
    the threads are making, and then ends the threads.
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
            """Begin chunks until ``number`` chunks are in work or no chunk is left."""
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
