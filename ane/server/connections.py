"""HTTP connections with limits of time: uvicorn waits for ever for headers, and for a client that does not read."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def limited_protocol(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol for connections that are closed when, for ``seconds``, a client sends no complete headers, or
    takes nothing of what is sent."""

    class LimitedProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            # the headers are complete; the guard watches over the body
            if self._answering and not self.flow.write_paused:
                self._stop_timer()

        def handle_websocket_upgrade(self, event: Any) -> None:
            self._stop_timer()
            super().handle_websocket_upgrade(event)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self._answering and not self.transport.is_closing():
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
