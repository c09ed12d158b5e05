"""Limit how many connections a server has, and how long each connection may take.

The time of a connection is limited, because uvicorn waits forever for headers and for a client that does not read. The
number of connections is limited, because a server without free file descriptors can neither answer nor log.
"""

import asyncio
import logging
import resource
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

RESERVE = 128  # file descriptors that are kept for other uses: files, logs, connections about to be closed
MOST_UNCOUNTED = 1000  # maximum WebSocket frames without text: empty frames, continuations, pings and pongs
MOST_SMALL, SMALL = 1000, 256  # a chunked body may have MOST_SMALL parts of fewer than SMALL bytes
SLICE = 4096  # bytes from a WebSocket to parse in one call
SEND_BUFFER = 1 << 17  # bytes that the system may hold per connection (2.7 s of sound). Linux would allow 4 MB
QUEUE = 1024  # connections that may wait in the operating system to be accepted
BACKLOG = 16  # connections that asyncio accepts before it serves any of them
MAX_HEADERS = 32 << 10
PLACE = "ane.place"  # key, in a WebSocket's scope, of a function that marks its connection as being answered
CUT = "ane.cut"  # key, in a request's scope, of a function that ends its connection
LOGGER = logging.getLogger("ane.server")


def affordable_connections(wanted: int) -> int:
    """Raise the limit of file descriptors as far as possible, and return how many connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + RESERVE:
        raised = wanted + RESERVE if hard == resource.RLIM_INFINITY else max(soft, min(hard, wanted + RESERVE))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (OSError, ValueError):
            pass
        wanted = min(wanted, max(1, soft - RESERVE))
    return wanted


class Connections:
    """The open connections of all protocols, each identified by its transport.

    If there is no room for a new connection, the connection that has waited longest for a request is closed.

    Attributes:
        most: Maximum number of open connections.
    """

    def __init__(self, most: int):
        self.most = most
        self._open: set[Any] = set()
        # connection → function that closes it. The longest wait comes first
        self._waiting: dict[Any, Callable[[], None]] = {}

    @property
    def crowded(self) -> bool:
        """Whether requests use so many connections that the rest is reserved for programs that watch the server."""
        return len(self._open) - len(self._waiting) > self.most * 7 // 8

    def add(self, key: Any, close: Callable[[], None]) -> None:
        """Add a new connection, which waits for a request.

        If there are too many connections, close the connection that has waited longest for a request, or the new
        connection if no connection waits.
        """
        if len(self._open) >= self.most:
            if not self._waiting:
                close()
                return
            oldest = next(iter(self._waiting))
            self._waiting.pop(oldest)()
            self._open.remove(oldest)
        self._open.add(key)
        self._waiting[key] = close

    def answers(self, key: Any) -> None:
        """Record that the client of a connection has sent a request, which the server is answering."""
        self._waiting.pop(key, None)

    def waits(self, key: Any, close: Callable[[], None]) -> None:
        """Record that a connection waits for its next request, because the server has answered the one before."""
        if key in self._open:
            self._waiting[key] = close

    def are_answering(self, key: Any) -> bool:
        return key in self._open and key not in self._waiting

    def remove(self, key: Any) -> None:
        self._open.discard(key)
        self._waiting.pop(key, None)


class SmallPartsError(Exception):
    """Means that a request's body arrives in too many small parts. A small part takes as much time as a large part."""


class LimitedParser(h11.Connection):
    """h11's parser, which raises SmallPartsError for a body in too many small parts."""

    _small = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Data) and len(event.data) < SMALL:
            self._small += 1
            if self._small > MOST_SMALL:
                raise SmallPartsError
        return event


def limited_protocol(seconds: float, connections: Connections) -> type[H11Protocol]:
    """Create uvicorn's HTTP protocol, with limits on its clients.

    The protocol closes a connection if the client does not complete the headers for ``seconds``, reads nothing for
    ``seconds``, or sends its body in too many small parts.
    """

    class LimitedProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def __init__(self, config: Config, *arguments: Any, **named: Any):
            super().__init__(config, *arguments, **named)
            self.conn = LimitedParser(h11.SERVER, config.h11_max_incomplete_event_size or MAX_HEADERS)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            connections.add(transport, transport.abort)
            self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            connections.remove(self.transport)
            super().connection_lost(exc)

        def handle_events(self) -> None:
            try:
                super().handle_events()
            except SmallPartsError:
                self.transport.abort()
                return
            # the headers are complete, and the guard limits the body
            if self._answering:
                connections.answers(self.transport)
                self.scope["state"][CUT] = self.transport.abort
                if not self.flow.write_paused:
                    self._stop_timer()

        def handle_websocket_upgrade(self, event: Any) -> None:
            self._stop_timer()  # the connection counts as waiting until its client sends text (``PLACE``)
            super().handle_websocket_upgrade(event)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self._answering and not self.transport.is_closing():
                connections.waits(self.transport, self.transport.abort)
                self._start_timer()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._start_timer()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_timer()
            if not self._answering:
                self._start_timer()

        @property
        def _answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _start_timer(self) -> None:
            self._stop_timer()
            self._timer = self.loop.call_later(seconds, self.transport.abort)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return LimitedProtocol


def limited_websocket(connections: Connections) -> type[WebSocketsSansIOProtocol]:
    """Create uvicorn's WebSocket protocol, with limits on its clients.

    The protocol does not answer the pings of a client that reads nothing, and does not log an error for a rejected
    request. It closes a connection with more than ``MOST_UNCOUNTED`` frames that have no text. Call
    ``scope["state"][PLACE]`` when the client has sent text.
    """

    class LimitedWebSocket(WebSocketsSansIOProtocol):
        _uncounted = 0

        def data_received(self, data: bytes) -> None:
            for start in range(0, len(data), SLICE):
                if self.transport.is_closing():
                    return
                super().data_received(data[start : start + SLICE])

        def handle_connect(self, event: Any) -> None:
            super().handle_connect(event)
            if hasattr(self, "scope"):
                self.scope["state"][PLACE] = lambda: connections.answers(self.transport)

        def handle_cont(self, event: Any) -> None:
            self._count_frame()
            super().handle_cont(event)

        def handle_text(self, event: Any) -> None:
            if not event.data:
                self._count_frame()
            super().handle_text(event)

        def handle_pong(self, event: Any) -> None:
            self._count_frame()
            super().handle_pong(event)

        def _count_frame(self) -> None:
            self._uncounted += 1
            if self._uncounted > MOST_UNCOUNTED and not self.transport.is_closing():
                self.conn.fail(1008, "too many frames without text")
                self.transport.write(b"".join(self.conn.data_to_send()))
                self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            connections.remove(self.transport)
            super().connection_lost(exc)

        def shutdown(self) -> None:
            if not connections.are_answering(self.transport):  # speech that has begun may end during the drain
                super().shutdown()

        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "websocket.http.response.body":
                self.handshake_complete = True  # otherwise uvicorn logs that there was no answer

        def handle_ping(self) -> None:
            self._count_frame()
            answer = b"".join(self.conn.data_to_send())  # RFC 6455 5.5.3: it is enough to answer the latest ping
            if self.writable.is_set():
                self.transport.write(answer)

    return LimitedWebSocket
