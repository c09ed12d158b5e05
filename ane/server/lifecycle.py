"""Starting a server, and stopping it: on SIGTERM it refuses new requests and ends when those that run have ended."""

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from ane.server.app import make_app
from ane.server.connections import limited_protocol
from ane.server.settings import ServerSettings
from ane.server.speech_service import Service
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.server.wyoming_protocol import WyomingServer

LOGGER = logging.getLogger("ane.server")
MAX_HEADERS = 32 << 10


class JsonHandler(logging.Handler):
    """Writes each record as a line of JSON to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        content = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
                   "level": record.levelname.lower(), "message": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            content["traceback"] = logging.Formatter().formatException(record.exc_info)
        sys.stderr.write(json.dumps(content, ensure_ascii=False) + "\n")
        sys.stderr.flush()


@contextlib.contextmanager
def json_log() -> Iterator[None]:
    """Within the block, records of the server, of backends and of uvicorn are lines of JSON."""
    handler = JsonHandler()
    loggers = [LOGGER, logging.getLogger("ane.backends"), logging.getLogger("uvicorn.error")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.WARNING if logger is loggers[-1] else logging.INFO)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True


class QuietServer(uvicorn.Server):
    """uvicorn without its own handling of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_server(settings: ServerSettings, on_start: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. ``on_start`` is called with the address when the port is open.

    Raises:
        UserError: a model is missing, or a port cannot be opened.
    """
    with json_log():
        asyncio.run(serve(settings, on_start))


async def serve(settings: ServerSettings, on_start: Callable[[str], None]) -> None:
    opened = open_port(settings.host, settings.port)        # first: if it fails, no thread was started
    service = Service(settings)
    app = make_app(service)
    limits = settings.limits
    server = QuietServer(uvicorn.Config(
        app, http=limited_protocol(limits.idle), ws="websockets-sansio", ws_max_size=limits.body, lifespan="off",
        log_config=None, access_log=False, server_header=False, limit_concurrency=limits.connections,
        h11_max_incomplete_event_size=MAX_HEADERS, timeout_keep_alive=round(limits.idle),
        timeout_graceful_shutdown=round(limits.drain)))

    def stop() -> None:
        app.middleware_stack = app.middleware_stack or app.build_middleware_stack()
        app.state.guard.stopping = True
        server.should_exit = True
        if wyoming is not None:
            wyoming.stop()

    wyoming: WyomingServer | None = None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    app.middleware_stack = app.build_middleware_stack()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(service.engine.stop)
        if settings.wyoming_port is not None:
            from ane.server import wyoming_protocol

            wyoming = wyoming_protocol.WyomingServer(service)
            await wyoming.start(settings.host, settings.wyoming_port)
            stack.push_async_callback(wyoming.close, limits.drain)
            LOGGER.info("listening", extra={"fields": {"wyoming_port": wyoming.port}})
        address = f"http://{settings.host if ':' not in settings.host else f'[{settings.host}]'}"
        on_start(f"{address}:{opened.getsockname()[1]}")
        loading = asyncio.ensure_future(service.preload())
        serving = asyncio.ensure_future(server.serve([opened]))
        await asyncio.wait([loading, serving], return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and loading.exception() is not None:
            server.should_exit = True
        await serving
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        if loading.done() and not loading.cancelled():
            loading.result()


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
    opened.listen(1024)
    return opened
