"""Starting a server, and stopping it: on SIGTERM it refuses new requests and ends when those that run have ended."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn

from ane.backends.torch.device import share_heaps
from ane.server.app import make_app
from ane.server.connections import (
    BACKLOG,
    MAX_HEADERS,
    QUEUE,
    Connections,
    affordable_connections,
    limited_protocol,
    limited_websocket,
)
from ane.server.guard import is_loopback
from ane.server.settings import ServerSettings
from ane.server.speech_service import Service
from ane.server.waiting import end_tasks
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.server.wyoming_protocol import WyomingServer

LOGGER = logging.getLogger("ane.server")
REPEATS = 20  # records of a kind in each ``INTERVAL`` seconds; those beyond are counted
INTERVAL = 60.0
ENGINE_SECONDS = 1.0  # that the engine has to end at least, after its last request
SWITCH_SECONDS = 0.0005  # after which a thread that runs Python lets another one run; a step needs that many times
TELLING = 1.0  # seconds after the drain, in which the server tells clients that their requests end
GRACE = 3.0  # seconds after the drain, when the process ends whatever still runs


class JsonHandler(logging.Handler):
    """Writes records as lines of JSON to standard error; of many warnings and errors of a kind the first only."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, int, str], int] = {}
        self._since = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING and not self._few(record):
            return
        content = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            content["traceback"] = logging.Formatter().formatException(record.exc_info)
        self._write(content)

    def _few(self, record: logging.LogRecord) -> bool:
        """Whether there are few records of this kind now; those left out before are reported when an interval ends."""
        if record.created > self._since + INTERVAL:
            for (_, _, message), count in self._seen.items():
                if count > REPEATS:
                    self._write({"level": "warning", "message": f"{count - REPEATS} more of: {message}"})
            self._seen, self._since = {}, record.created
        kind = (record.name, record.lineno, str(record.msg)[:60])
        self._seen[kind] = self._seen.get(kind, 0) + 1
        return self._seen[kind] <= REPEATS

    @staticmethod
    def _write(content: dict[str, Any]) -> None:
        sys.stderr.write(json.dumps(content, ensure_ascii=False) + "\n")
        sys.stderr.flush()


@contextlib.contextmanager
def json_log() -> Iterator[None]:
    """Within the block, records of the server, of backends and of uvicorn are lines of JSON."""
    handler = JsonHandler()
    loggers = [LOGGER, *map(logging.getLogger, ("ane.backends", "ane.speech", "uvicorn.error", "asyncio"))]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.WARNING if logger in loggers[2:] else logging.INFO)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True


@contextlib.contextmanager
def short_switches() -> Iterator[None]:
    """Within the block, a thread that runs Python lets others run after ``SWITCH_SECONDS``.

    A decoder step takes Python's lock many times. Each time it waits for a thread that reads text, by default 5 ms.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class QuietServer(uvicorn.Server):
    """uvicorn without its own handling of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_server(settings: ServerSettings, on_start: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. ``on_start`` is called with the address when the port is open.

    Nothing can interrupt a network call. If one still runs ``GRACE`` seconds after the drain, the process ends with it.

    Raises:
        UserError: a model is missing, or a port cannot be opened.
    """
    share_heaps()
    end = threading.Timer(settings.limits.drain + GRACE, end_process)
    end.daemon = True
    with json_log(), short_switches():
        if asyncio.run(serve(settings, on_start, end.start)):
            end.cancel()


def end_process() -> None:
    LOGGER.warning("the process ends although a call still runs: the time of --drain is over")
    os._exit(0)


async def serve(
    settings: ServerSettings, on_start: Callable[[str], None], on_stop: Callable[[], None] = lambda: None
) -> bool:
    """Serve until SIGTERM or SIGINT, at which ``on_stop`` is called; return whether all work has ended."""
    opened = open_port(settings.host, settings.port)  # first: if it fails, no thread was started
    service = Service(settings)
    limits = settings.limits
    connections = Connections(affordable_connections(limits.connections))
    if connections.most < limits.connections:
        LOGGER.warning(
            f"{connections.most} connections at a time, not {limits.connections}: the limit of descriptors "
            "(ulimit -n) allows no more"
        )
    app = make_app(service, connections)
    server = QuietServer(
        uvicorn.Config(
            app,
            http=limited_protocol(limits.idle, connections),
            ws=limited_websocket(connections),
            ws_max_size=limits.body,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            h11_max_incomplete_event_size=MAX_HEADERS,
            timeout_keep_alive=round(limits.idle),
            timeout_graceful_shutdown=round(limits.drain + TELLING),
        )
    )

    stopped: float | None = None

    def stop() -> None:
        nonlocal stopped
        if stopped is None:
            stopped = time.monotonic()
            on_stop()
            loop.call_later(limits.drain, service.engine.end_jobs)
        app.state.guard.stopping = True
        server.should_exit = True
        if wyoming is not None:
            wyoming.stop()

    def drain() -> float:
        """The seconds that are left of the drain."""
        return limits.drain - (0.0 if stopped is None else time.monotonic() - stopped)

    async def end_wyoming() -> None:
        await wyoming.close(max(TELLING, drain()))

    def end_engine() -> None:
        if not service.engine.stop(max(ENGINE_SECONDS, drain())):
            LOGGER.warning("a call still runs after the time of --drain")

    wyoming: WyomingServer | None = None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    app.middleware_stack = app.build_middleware_stack()  # it makes the guard, which ``stop`` needs
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(end_engine)
        if settings.wyoming_port is not None:
            from ane.server import wyoming_protocol

            wyoming = wyoming_protocol.WyomingServer(service, connections)
            host = settings.wyoming_host or settings.host
            await wyoming.start(host, settings.wyoming_port)
            if not is_loopback(host):
                LOGGER.warning(f"whoever reaches {host} may speak: Wyoming has no token")
            stack.push_async_callback(end_wyoming)
            LOGGER.info("listening", extra={"fields": {"wyoming_port": wyoming.port}})
        address = f"http://{settings.host if ':' not in settings.host else f'[{settings.host}]'}"
        on_start(f"{address}:{opened.getsockname()[1]}")
        loading = asyncio.ensure_future(service.preload())
        serving = asyncio.ensure_future(server.serve([opened]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        opened.listen(QUEUE)  # the system may hold more than are accepted at a time
        await asyncio.wait([loading, serving], return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and loading.exception() is not None:
            server.should_exit = True
        await serving
        await end_tasks(loading)
        if loading.done() and not loading.cancelled():
            loading.result()
    return not service.engine.alive


def open_port(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises UserError when it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
    except OSError as error:
        opened.close()
        raise UserError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error
    opened.listen(QUEUE)
    return opened
