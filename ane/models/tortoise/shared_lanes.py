"""The lanes that streams of several requests share."""

from collections.abc import Callable, Iterable
from typing import Any

from ane.backends.base import Backend
from ane.models.lane_sharing import StepScheduler
from ane.models.tortoise.lane_pool import LanePool
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig

SINGLE_ROWS = 8         # rows of a stream that are yielded one by one, so that sound begins soon
SECOND_END = 24         # then 16 at once, so that playback does not wait for the first large piece
ROWS_AT_ONCE = 32       # then: 1.5 s of sound; vocoding them in one call takes less time


class SharedLanePool(LanePool):
    """Lanes of a decoder with room for the longest text that the network takes, and for ``capacity`` codes of a chunk.

    A stream's rows are divided where ``row_ends`` says, not where its neighbours' steps happened to leave it: a vocoder
    that gets the same rows in other pieces may round otherwise.
    """

    def __init__(self, backend: Backend, config: UnifiedVoiceConfig, lanes: int, scheduler: StepScheduler,
                 capacity: int):
        super().__init__(backend, config, lanes, capacity, lanes, None)
        self._scheduler = scheduler

    def wait_for_step(self) -> None:
        self._scheduler.wait_for_step(self)

    def priority(self) -> Callable[[], Any]:
        return self._scheduler.priority()

    def row_ends(self, done: int, known: int) -> Iterable[int]:
        return (end for end in range(done + 1, known + 1)
                if end <= SINGLE_ROWS or (end >= SECOND_END and (end - SECOND_END) % ROWS_AT_ONCE == 0))
