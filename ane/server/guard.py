"""Check every request before a route sees it: who may use the server, and how large a request may be."""

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

# paths that need no token: they are for programs that watch the server, or are pages that ask the user for the token
OPEN_PATHS = ("/health", "/ready", "/", "/docs")
# path → kind of request in the log and the metrics
KINDS = {
    "/v1/audio/speech": "speech",
    "/v1/audio/stream": "stream",
    "/v1/audio/voices": "voice",
    "/v1/audio/transcriptions": "transcribe",
    "/v1/audio/translations": "translate",
}
FILE_PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/voices")
# prefix of a token in a WebSocket's protocols, because browsers cannot set its headers
TOKEN_PROTOCOL = "openai-insecure-api-key."
GONE = 499  # status of a request whose client has left. It is not counted as an error
SLOWEST = 32 << 10  # minimum average bytes per second of a body, after its first seconds
FORWARDED = re.compile(r"(?i)\bfor=(\"[^\"]*\"|[^;,\s]+)")
# Starlette decodes headers as Latin-1, so encoding them as Latin-1 restores the bytes that were sent
HEADERS = "latin-1"

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Guard:
    """ASGI middleware that rejects a request that lacks the token, comes from another web page, or is too large.

    Attributes:
        stopping: Whether the server is stopping, so that the middleware rejects every new request.
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
        # current number of requests with files, and the bytes that their files may take
        self._files = self._file_bytes = 0

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
        """Pass the request to the application, and handle two cases that uvicorn would log as faults.

        If an error stops an answer halfway, cut the connection, so that the client notices the error. If a request has
        no answer when the server stops waiting for running requests, reject the request.
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
                await asyncio.sleep(0)  # lets uvicorn notice that the connection is closed
            elif ends and scope["type"] == "http" and not begun:
                await error_response(StoppingError())(scope, receive, send)
            else:
                raise

    def _counting(self, scope: Message, send: Send) -> Send:
        """Wrap ``send`` to count answers with an error status, except for paths in ``OPEN_PATHS``."""

        async def counting(message: Message) -> None:
            status = message.get("status", 0) if message["type"].endswith("response.start") else 0
            if status >= 400 and status != GONE and scope["path"] != "/ready":
                self._count_refusal(KINDS.get(scope["path"], "other"), status, client=(scope.get("client") or [""])[0])
            await send(message)

        return counting

    @contextmanager
    def _room_for_files(self, scope: Message) -> Iterator[None]:
        """Reserve disk space for a request's files during the ``with`` block. Raises BusyError if there is no room."""
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
            raise RefusedError(
                f"other machines and proxies may not call this server {host}: use one of its --hosts names", 403
            )
        if not self.settings.hosts and is_loopback(self.settings.host) and not is_loopback(name):
            raise RefusedError(
                f"this server listens only on its own machine, and may not be called {host}: behind a proxy, start it "
                f"with `ane serve --hosts {name}`",
                403,
            )
        if not self.settings.token:
            strangers = [
                address
                for address in ([client[0]] if client else []) + forwarded_for(headers)
                if not is_loopback(address)
            ]
            if strangers:
                raise RefusedError(
                    "this server has no token, so it answers only programs on its own machine: give it a token to let "
                    "others in",
                    403,
                )
        origin = headers.get("origin")
        if origin is not None and not self._is_own_page(origin, host):
            raise RefusedError(
                f"web pages from {origin} may not use this server: start it with `ane serve --cors {origin}` to allow "
                "them",
                403,
            )
        if scope["path"] in OPEN_PATHS:
            return
        if self.settings.token and not hmac.compare_digest(sent_token(headers), self.settings.token.encode()):
            raise RefusedError(
                "the token is missing or wrong: send it as Authorization: Bearer TOKEN", 401, code="invalid_api_key"
            )
        if self.stopping:
            raise StoppingError
        if self._crowded():
            raise RefusedError("this server has too many clients now: try again later", 503, code="server_busy")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._most_bytes(scope):
            raise too_large(self._most_bytes(scope))

    def _is_own_page(self, origin: str, host: str) -> bool:
        """Return whether ``origin`` is the server's own page, even behind a proxy, or a page that settings allow."""
        page = split_url(origin)
        return origin in self.settings.origins or page.netloc == host or page.hostname in self.settings.hosts

    def _most_bytes(self, scope: Message) -> int:
        return self.settings.limits.upload if has_files(scope) else self.settings.limits.body


class LimitedBody:
    """A replacement for a request's ``receive`` that limits the size of the body and the time that it may take.

    Each part must arrive within ``seconds``, and the whole body within ``in_all`` seconds. A slow client has
    ``seconds`` and the time that its bytes would take at ``SLOWEST`` bytes per second. Therefore, no client can keep a
    connection busy by sending a byte now and then.
    """

    def __init__(self, receive: Receive, most: int, seconds: float, in_all: float):
        self._receive, self._left, self._most, self._seconds = receive, most, most, seconds
        self._complete, self._began, self._in_all = False, time.monotonic(), in_all

    async def __call__(self) -> Message:
        if self._complete:  # the next message comes when the client leaves, at any time
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
            raise HTTPException(413, str(too_large(self._most)))  # FastAPI would turn other errors into 400
        return message


def has_files(scope: Message) -> bool:
    """Return whether the body of a request may be as large as uploaded files. Other bodies have the limit for JSON."""
    content = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    return scope["type"] == "http" and scope["path"] in FILE_PATHS and content == "multipart/form-data"


def too_large(most: int) -> RefusedError:
    return RefusedError(f"the body must have at most {most} bytes", 413, code="body_too_large")


def without_base(scope: Message, base: str) -> Message:
    """Remove from a request's scope the base path under which a proxy serves the server, if the proxy passed it on."""
    if not base or not scope["path"].startswith(f"{base}/"):
        return scope
    raw = scope.get("raw_path") or b""
    return {**scope, "path": scope["path"].removeprefix(base), "raw_path": raw.removeprefix(base.encode())}


def forwarded_for(headers: Headers) -> list[str]:
    """List the addresses for which proxies forwarded a request, from X-Forwarded-For and Forwarded (RFC 7239).

    A client can write these headers too, so the server uses them only to reject a request, never to accept it.
    """
    listed = [
        value for key in ("x-forwarded-for", "x-real-ip") for line in headers.getlist(key) for value in line.split(",")
    ]
    listed += [value for line in headers.getlist("forwarded") for value in FORWARDED.findall(line)]
    addresses = [value.strip().strip('"') for value in listed]
    return [
        split_url(f"//{address}").hostname or address if address.startswith("[") or address.count(":") == 1 else address
        for address in addresses
        if address
    ]


def split_url(url: str) -> SplitResult:
    """Split a Host or Origin into its parts. Raises RefusedError if it is malformed."""
    try:
        return urlsplit(url)
    except ValueError:
        raise RefusedError("the header Host or Origin is malformed") from None


def sent_token(headers: Headers) -> bytes:
    """Return the token that a client sent, or b"" if it sent none."""
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
    """Return whether a host name or address always means the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
