"""What lets the streams of several requests share the lanes of one decoder: a family's synthesizer may offer it."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable


class SharedLanes(Protocol):
    """Lanes on which several streams decode, a step at a time."""

    def advance(self) -> None:
        """Give free lanes to waiting streams, then take one step for all of them."""


class StepScheduler(Protocol):
    """Who decides when a step is taken, and whose candidate gets a free lane."""

    def wait_for_step(self, lanes: SharedLanes) -> None:
        """Called by a stream that needs a step of these lanes: returns after it, or raises to end the stream."""

    def priority(self) -> Callable[[], Any]:
        """Called by a stream that begins: returns its key for sorting, the least being the most urgent."""


@runtime_checkable
class LaneSharing(Protocol):
    """A synthesizer whose streams can share lanes."""

    def share_lanes(self, scheduler: StepScheduler, lanes: int) -> SharedLanes:
        """From now on, streams decode on ``lanes`` common lanes, each as it would alone. Returns these lanes."""
