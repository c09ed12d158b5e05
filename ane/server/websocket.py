"""The WebSocket /v1/audio/stream: text in as it is written, sound out as it is made.

The client sends {"type": "start", "model": …}, then {"type": "text", "text": …} as often as it likes, then
{"type": "end"}. The server sends sound in binary messages, with ``word_times`` the events of `POST /v1/audio/speech`
before the sound that they are in, and at the end {"type": "done", "usage": …}, or an error in
OpenAI's shape. Nothing else is sent.
"""

import asyncio
import json
from typing import Any, TypeVar

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from ane.server.encoders import make_encoder
from ane.server.errors import RefusedError, error_content
from ane.server.schemas import StreamStart, StreamText
from ane.server.speech import words_event
from ane.server.speech_service import Service, Utterance
from ane.server.waiting import while_watching

REFUSED = 1008          # of a WebSocket that is closed because of what its client sent
FAILED = 1011           # because of a fault of the server
MAX_REASON = 123        # bytes of a reason for closing
OPENAI_PROTOCOL = "realtime"        # the name under which the token's protocol is offered

Message = TypeVar("Message", StreamStart, StreamText)


def websocket_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.websocket("/v1/audio/stream")
    async def stream(socket: WebSocket) -> None:
        offered = socket.scope.get("subprotocols", [])
        await socket.accept(OPENAI_PROTOCOL if OPENAI_PROTOCOL in offered else None)
        utterance = None
        try:
            start = await receive(socket, StreamStart, service.settings.limits.idle)
            utterance = service.speak(service.catalogue.request(start), "stream")
            await converse(socket, service, utterance, start.response_format)
            await socket.close()
        except WebSocketDisconnect:
            pass
        except Exception as error:
            await refuse(socket, error, service.settings.limits.idle)
        finally:
            if utterance is not None:
                utterance.close()

    return router


async def converse(socket: WebSocket, service: Service, utterance: Utterance, form: str) -> None:
    """Pass texts on while sound is sent. Raises the error of whichever fails first."""
    received = 0

    async def read_texts() -> None:
        """Ends with an error when the client sends what it must not, or leaves."""
        nonlocal received
        while (message := await receive(socket, StreamText, service.settings.limits.seconds)).type == "text":
            received += service.check_text(message.text, utterance.request.lexicon)
            service.check_stream(received)
            utterance.send_text(message.text)
        utterance.send_text(None)
        left = await socket.receive()
        if left["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(left.get("code", 1000))
        raise RefusedError("nothing may be sent after the end of the text")

    async def send_sound() -> None:
        encoder = None
        try:
            async for piece in utterance:
                encoder = encoder or make_encoder(form, piece.rate)
                if piece.words and utterance.request.word_times:
                    await send_within(socket, words_event(piece.words), service)
                await send_within(socket, await asyncio.to_thread(encoder.feed, piece.audio), service)
            if encoder is not None:
                await send_within(socket, await asyncio.to_thread(encoder.finish), service)
        finally:
            if encoder is not None:
                asyncio.get_running_loop().run_in_executor(None, encoder.close)     # a thread may be in ``feed``
        await send_within(socket, {"type": "done", **utterance.ending(received)}, service)

    await while_watching(send_sound(), read_texts())


async def send_within(socket: WebSocket, data: bytes | dict[str, Any], service: Service) -> None:
    """Send bytes, unless there are none, or an object as JSON."""
    if data:
        try:
            async with asyncio.timeout(service.settings.limits.idle):
                await (socket.send_bytes(data) if isinstance(data, bytes) else socket.send_json(data))
        except (TimeoutError, RuntimeError):        # Starlette raises the latter when the client has left
            raise WebSocketDisconnect(1006) from None


async def receive(socket: WebSocket, kind: type[Message], seconds: float) -> Message:
    """The next message. Raises RefusedError, or ValidationError for one that is not of this kind, or none within
    ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            text = await socket.receive_text()
        return kind.model_validate_json(text)
    except TimeoutError:
        raise RefusedError("no text came for too long", 408) from None
    except KeyError:
        raise RefusedError("messages must be JSON in text frames") from None


async def refuse(socket: WebSocket, error: Exception, seconds: float) -> None:
    """Tell the client of an error within ``seconds``, and close with its reason; the server's own faults are logged."""
    status, content = error_content(error)
    reason = content["error"]["message"].encode()[:MAX_REASON].decode(errors="ignore")
    try:
        async with asyncio.timeout(seconds):
            await socket.send_text(json.dumps({"type": "error", **content}))
            await socket.close(REFUSED if status < 500 else FAILED, reason)
    except (TimeoutError, RuntimeError, WebSocketDisconnect):
        pass
