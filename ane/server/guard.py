"""What every request passes before a route sees it: who may use the server, and how large a request may be."""

import asyncio
import hmac
import ipaddress
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from ane.server.connections import CUT
from ane.server.errors import BusyError, RefusedError, StoppingError, error_response
from ane.server.settings import NEW_VOICES, TRANSCRIPTIONS, ServerSettings
from ane.system.errors import UserError

# without a token: for what watches over the server, and the page, which asks for the token
OPEN_PATHS = ("/health", "/ready", "/", "/docs")
# what requests ask for, by their paths
KINDS = {
    "/v1/audio/speech": "speech",
    "/v1/audio/stream": "stream",
    "/v1/audio/voices": "voice",
    "/v1/audio/transcriptions": "transcribe",
    "/v1/audio/translations": "translate",
}
FILE_PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/voices")
TOKEN_PROTOCOL = "openai-insecure-api-key."  # browsers cannot set headers of a WebSocket
GONE = 499  # status of a request whose client has left, which nobody reads
SLOWEST = 32 << 10  # bytes a second of a body, on average, beyond its first seconds
FORWARDED = re.compile(r"(?i)\bfor=(\"[^\"]*\"|[^;,\s]+)")
HEADERS = "latin-1"  # how Starlette decodes headers: what was sent in bytes is got back with it

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Guard:
    """ASGI middleware that refuses requests: without the token, from web pages of others, too large, while stopping.

    Attributes:
        stopping: whether new requests are refused because the server drains.
    """

    def __init__(
        self,
        app: Any,
        settings: ServerSettings,
        crowded: Callable[[], bool] = lambda: False,
        count_refusal: Callable[..., None] = lambda kind, status, **fields: None,
    ):
        self.app, self.settings, self._crowded, self._count_refusal = app, settings, crowded, count_refusal
        self.stopping = False
        self._files = self._file_bytes = 0  # requests with files that are held now, and what they may take

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        if scope["path"] == self.settings.base_path != "":
            await RedirectResponse(f"{self.settings.base_path}/")(scope, receive, send)
            return
        scope = without_base(scope, self.settings.base_path)
        send = self._counting(scope, send)
        with ExitStack() as stack:
            try:
                self._check(scope)
                stack.enter_context(self._room_for_files(scope))
            except UserError as error:
                if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
                    await error_response(error)(scope, receive, send)
                else:
                    self._count_refusal("stream", 403)
                    await send({"type": "websocket.close", "code": 1008, "reason": str(error)[:120]})
                return
            if scope["type"] == "http":
                limits = self.settings.limits
                receive = LimitedBody(receive, self._most_bytes(scope), limits.idle, limits.seconds)
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let the application answer. uvicorn would log two more kinds of answer as faults.

        If an error ends an answer in its middle, the connection is cut, so that its client notices. If a request has
        no answer when the drain is over, it is refused.
        """
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except (Exception, asyncio.CancelledError) as error:
            ends = self.stopping and isinstance(error, asyncio.CancelledError)
            cut = scope.get("state", {}).get(CUT)
            if begun and cut and (ends or isinstance(error.__cause__, UserError)):
                cut()
                await asyncio.sleep(0)  # uvicorn knows then that the connection is closed
            elif ends and scope["type"] == "http" and not begun:
                await error_response(StoppingError())(scope, receive, send)
            else:
                raise

    def _counting(self, scope: Message, send: Send) -> Send:
        """Return ``send`` with a count of answers that are errors. Programs that watch over the server are left out."""

        async def counting(message: Message) -> None:
            status = message.get("status", 0) if message["type"].endswith("response.start") else 0
            if status >= 400 and status != GONE and scope["path"] != "/ready":
                self._count_refusal(KINDS.get(scope["path"], "other"), status, client=(scope.get("client") or [""])[0])
            await send(message)

        return counting

    @contextmanager
    def _room_for_files(self, scope: Message) -> Iterator[None]:
        """Before the body of a request with files is read. Raises BusyError when those that are held take too much."""
        if not has_files(scope):
            yield
            return
        limits, length = self.settings.limits, Headers(scope=scope).get("content-length", "")
        size = int(length) if length.isdigit() else limits.upload
        if self._file_bytes + size > limits.files or self._files >= limits.uploads + TRANSCRIPTIONS + NEW_VOICES:
            raise BusyError(limits.idle / 10)
        self._files, self._file_bytes = self._files + 1, self._file_bytes + size
        try:
            yield
        finally:
            self._files, self._file_bytes = self._files - 1, self._file_bytes - size

    def _check(self, scope: Message) -> None:
        headers = Headers(scope=scope)
        host, client = headers.get("host", ""), scope.get("client")
        name = split_url(f"//{host}").hostname or "localhost"
        is_local = client is not None and is_loopback(client[0])
        if self.settings.hosts and name not in self.settings.hosts and not (is_local and is_loopback(name)):
            raise RefusedError(f"the server is not called {host}", 403)
        if not self.settings.hosts and is_loopback(self.settings.host) and not is_loopback(name):
            raise RefusedError(
                f"the server listens on this machine alone, and is not called {host}; behind a proxy, "
                f"`ane serve --hosts {name}` allows this name",
                403,
            )
        if not self.settings.token:
            strangers = [
                address
                for address in ([client[0]] if client else []) + forwarded_for(headers)
                if not is_loopback(address)
            ]
            if strangers:
                raise RefusedError("without a token the server answers its own machine alone", 403)
        origin = headers.get("origin")
        if origin is not None and not self._is_own_page(origin, host):
            raise RefusedError(
                "web pages of other origins may not use this server; `ane serve --cors "
                f"{origin}` allows those of this one",
                403,
            )
        if scope["path"] in OPEN_PATHS:
            return
        if self.settings.token and not hmac.compare_digest(given_token(headers), self.settings.token.encode()):
            raise RefusedError(
                "the token is missing or wrong: send it as Authorization: Bearer TOKEN", 401, code="invalid_api_key"
            )
        if self.stopping:
            raise StoppingError
        if self._crowded():
            raise RefusedError("too many clients: try again later", 503, code="server_busy")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._most_bytes(scope):
            raise too_large(self._most_bytes(scope))

    def _is_own_page(self, origin: str, host: str) -> bool:
        """Whether a page of this origin is the server's own, also if a proxy replaced its name in ``host``, or one that
        the settings allow.
        """
        own = split_url(origin)
        return origin in self.settings.origins or own.netloc == host or own.hostname in self.settings.hosts

    def _most_bytes(self, scope: Message) -> int:
        return self.settings.limits.upload if has_files(scope) else self.settings.limits.body


class LimitedBody:
    """``receive`` of a request whose body has a limit.

    Each part must come within ``seconds``, all within ``in_all``, and whoever sends less than ``SLOWEST`` has no longer
    than ``seconds`` and what the bytes that came are worth at that rate: a trickle does not hold a place.
    """

    def __init__(self, receive: Receive, most: int, seconds: float, in_all: float):
        self._receive, self._left, self._most, self._seconds = receive, most, most, seconds
        self._complete, self._began, self._in_all = False, time.monotonic(), in_all

    async def __call__(self) -> Message:
        if self._complete:  # what follows is that the client goes, whenever it likes
            return await self._receive()
        earned = min(self._in_all, self._seconds + (self._most - self._left) / SLOWEST)
        left = self._began + earned - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            async with asyncio.timeout(min(self._seconds, left)):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "the body did not arrive in time") from None
        self._left -= len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._left < 0:
            raise HTTPException(413, str(too_large(self._most)))  # any other, FastAPI would turn into 400
        return message


def has_files(scope: Message) -> bool:
    """Whether a request may be as large as files are; any other multipart body is as limited as JSON."""
    content = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    return scope["type"] == "http" and scope["path"] in FILE_PATHS and content == "multipart/form-data"


def too_large(most: int) -> RefusedError:
    return RefusedError(f"the body must have at most {most} bytes", 413, code="body_too_large")


def without_base(scope: Message, base: str) -> Message:
    """The scope of a request without the path under which a proxy serves the server, if it passed that on."""
    if not base or not scope["path"].startswith(f"{base}/"):
        return scope
    raw = scope.get("raw_path") or b""
    return {**scope, "path": scope["path"].removeprefix(base), "raw_path": raw.removeprefix(base.encode())}


def forwarded_for(headers: Headers) -> list[str]:
    """Addresses for which proxies pass a request on, as X-Forwarded-For and Forwarded (RFC 7239) state them.

    Whoever asks can write these headers, so they only ever take a right away.
    """
    listed = [
        value for key in ("x-forwarded-for", "x-real-ip") for line in headers.getlist(key) for value in line.split(",")
    ]
    listed += [found for line in headers.getlist("forwarded") for found in FORWARDED.findall(line)]
    addresses = [value.strip().strip('"') for value in listed]
    return [
        split_url(f"//{address}").hostname or address if address.startswith("[") or address.count(":") == 1 else address
        for address in addresses
        if address
    ]


def split_url(url: str) -> SplitResult:
    """The parts of a Host or Origin. Raises RefusedError when it is malformed."""
    try:
        return urlsplit(url)
    except ValueError:
        raise RefusedError("the header Host or Origin is malformed") from None


def given_token(headers: Headers) -> bytes:
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip().encode(HEADERS)
    protocols = headers.get("sec-websocket-protocol", "").split(",")
    return next(
        (
            name.strip().removeprefix(TOKEN_PROTOCOL).encode(HEADERS)
            for name in protocols
            if name.strip().startswith(TOKEN_PROTOCOL)
        ),
        b"",
    )


def is_loopback(host: str) -> bool:
    """Whether this is a name or address of the machine itself only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
