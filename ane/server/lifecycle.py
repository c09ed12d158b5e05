"""Start a server, and stop it on SIGTERM: reject new requests, and wait until the running requests have ended."""

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
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn

from ane.backends.torch.device import share_heaps
from ane.server.app import make_app
from ane.server.connections import (
    BACKLOG,
    MAX_HEADERS,
    QUEUE,
    SEND_BUFFER,
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
REPEATS = 20  # records of one kind that the log gets per ``INTERVAL``. Further records are only counted
INTERVAL = 60.0  # seconds after which repeated records are logged again
ENGINE_SECONDS = 1.0  # minimum seconds that the engine has to end after its last request
SWITCH_SECONDS = 0.0005  # seconds after which a thread that runs Python lets another thread run
TELLING = 1.0  # seconds after the drain in which clients are told that their requests have ended
GRACE = 3.0  # seconds after the drain until the process ends, even if a network call still runs


class JsonHandler(logging.Handler):
    """A log handler that writes JSON lines to standard error. It limits repeated warnings and errors of one kind."""

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
        """Return whether to write a log record.

        Records of a frequent kind are left out, and later a line says how many.
        """
        if record.created > self._since + INTERVAL:
            for (_, _, message), count in self._seen.items():
                if count > REPEATS:
                    self._write({"level": "warning", "message": f"{count - REPEATS} more of: {message}"})
            self._seen, self._since = {}, record.created
        size = 300 if record.name == "py.warnings" else 60  # a warning of Python begins with the path of its file
        kind = (record.name, record.lineno, str(record.msg)[:size])
        self._seen[kind] = self._seen.get(kind, 0) + 1
        return self._seen[kind] <= REPEATS

    @staticmethod
    def _write(content: dict[str, Any]) -> None:
        sys.stderr.write(json.dumps(content, ensure_ascii=False) + "\n")
        sys.stderr.flush()


@contextlib.contextmanager
def json_log() -> Iterator[None]:
    """Log the records of the server, backends and uvicorn, and Python's warnings, as JSON lines during the block."""
    handler = JsonHandler()
    names = "ane.backends", "ane.speech", "uvicorn.error", "asyncio", "py.warnings"
    loggers = [LOGGER, *map(logging.getLogger, names)]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.WARNING if logger in loggers[2:] else logging.INFO)
    with warnings.catch_warnings():
        # FastAPI hides this warning of pydantic, but cannot if another thread changes the filters at the same time
        warnings.filterwarnings("ignore", "The 'alias' attribute")
        logging.captureWarnings(True)
        try:
            yield
        finally:
            logging.captureWarnings(False)
            for logger in loggers:
                logger.removeHandler(handler)
                logger.propagate = True


@contextlib.contextmanager
def short_switches() -> Iterator[None]:
    """Within the ``with`` block, let threads wait at most ``SWITCH_SECONDS`` for Python's lock instead of 5 ms.

    A decoder step takes Python's lock many times, and may wait each time for a thread that reads text.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class QuietServer(uvicorn.Server):
    """uvicorn's server, without its handling of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_server(settings: ServerSettings, on_start: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Then, the server takes no more requests, and waits a limited time for the running requests (the drain). Nothing can
    interrupt a call of a network. If a call still runs ``GRACE`` seconds after the drain, the process ends.

    Args:
        settings: Settings of the server.
        on_start: Function that is called with the server's address once the port is open.

    Raises:
        UserError: A model is missing, or a port cannot be opened.
    """
    share_heaps()
    end = threading.Timer(settings.limits.drain + GRACE, end_process)
    end.daemon = True
    with json_log(), short_switches():
        if asyncio.run(serve(settings, on_start, end.start)):
            end.cancel()


def end_process() -> None:
    LOGGER.warning("the process ends while a network call still runs, because the time of --drain is over")
    os._exit(0)


async def serve(
    settings: ServerSettings, on_start: Callable[[str], None], on_stop: Callable[[], None] = lambda: None
) -> bool:
    """Serve until SIGTERM or SIGINT, and call ``on_stop`` at the signal. Return whether all work has ended."""
    opened = open_port(settings.host, settings.port)  # before any thread starts, because opening a port may fail
    service = Service(settings)
    limits = settings.limits
    connections = Connections(affordable_connections(limits.connections))
    if connections.most < limits.connections:
        LOGGER.warning(
            f"only {connections.most} of {limits.connections} connections are possible at once, because of the limit "
            "of descriptors: raise it with ulimit -n"
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
        """Return the seconds that are left of the drain."""
        return limits.drain - (0.0 if stopped is None else time.monotonic() - stopped)

    async def end_wyoming() -> None:
        await wyoming.close(max(TELLING, drain()))

    def end_engine() -> None:
        if not service.engine.stop(max(ENGINE_SECONDS, drain())):
            LOGGER.warning("a network call still runs after the time of --drain: a step of a model has not ended")

    wyoming: WyomingServer | None = None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    app.middleware_stack = app.build_middleware_stack()  # creates the guard, which ``stop`` needs
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(end_engine)
        if settings.wyoming_port is not None:
            from ane.server import wyoming_protocol

            wyoming = wyoming_protocol.WyomingServer(service, connections)
            host = settings.wyoming_host or settings.host
            await wyoming.start(host, settings.wyoming_port)
            if not is_loopback(host):
                LOGGER.warning(f"anybody who reaches {host} can use Wyoming, because this protocol has no token")
            stack.push_async_callback(end_wyoming)
            LOGGER.info("listening", extra={"fields": {"wyoming_port": wyoming.port}})
        address = f"http://{settings.host if ':' not in settings.host else f'[{settings.host}]'}"
        on_start(f"{address}:{opened.getsockname()[1]}")
        loading = asyncio.ensure_future(service.preload())
        serving = asyncio.ensure_future(server.serve([opened]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        opened.listen(QUEUE)  # more connections may wait in the system than asyncio accepts together
        await asyncio.wait([loading, serving], return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and loading.exception() is not None:
            server.should_exit = True
        await serving
        await end_tasks(loading)
        if loading.done() and not loading.cancelled():
            loading.result()
    return not service.engine.alive


def open_port(host: str, port: int) -> socket.socket:
    """Open a socket that listens on a port. Raises UserError if the port cannot be opened."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # accepted connections inherit this size, so the server stops computing soon after a client stops reading
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        opened.bind((host, port))
    except OSError as error:
        opened.close()
        raise UserError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error
    opened.listen(QUEUE)
    return opened
