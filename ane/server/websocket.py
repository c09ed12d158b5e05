"""Speak over the WebSocket /v1/audio/stream: take text while a client writes it, and send sound as soon as it is made.

The client sends {"type": "start", "model": …}, then any number of {"type": "text", "text": …}, then {"type": "end"}.
The server sends sound in binary messages, and at the end {"type": "done", "usage": …} or an error as OpenAI's API does.
If the start message sets ``word_times``, it also sends the word events of `POST /v1/audio/speech`, before their sound.
"""

import asyncio
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from ane.server.connections import PLACE
from ane.server.encoders import make_encoder
from ane.server.errors import RefusedError, error_content
from ane.server.schemas import StreamStart, StreamText
from ane.server.speech import words_event
from ane.server.speech_service import ArrivingText, Service, SpeechResponse
from ane.server.waiting import next_text, while_watching

REFUSED = 1008  # code for closing a WebSocket because its client sent something wrong
FAILED = 1011  # code for closing a WebSocket because of a fault in the server
MAX_REASON = 123  # maximum bytes of the reason for closing
OPENAI_PROTOCOL = "realtime"  # protocol to accept if the client offers its token as another protocol

Message = TypeVar("Message", StreamStart, StreamText)


def websocket_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.websocket("/v1/audio/stream")
    async def stream(socket: WebSocket) -> None:
        offered = socket.scope.get("subprotocols", [])
        await socket.accept(OPENAI_PROTOCOL if OPENAI_PROTOCOL in offered else None)
        response = None
        try:
            limits = service.settings.limits
            start = await receive(socket, StreamStart, limits.idle)
            request = service.catalogue.request(start)
            text = ArrivingText(service, request.lexicon)
            # a client uses up no connection before it sends text
            first = await text.first(partial(next_text_of, socket, limits.seconds))
            if take_place := socket.scope.get("state", {}).get(PLACE):
                take_place()
            response = service.speak(request, "stream")
            response.send_text(first)
            await converse(socket, service, response, start.response_format, text)
            await socket.close()
        except WebSocketDisconnect:
            pass
        except Exception as error:
            if response is None:
                service.count_refusal("stream", error_content(error)[0])
            await refuse(socket, error, service.settings.limits.idle)
        finally:
            if response is not None:
                response.close()

    return router


async def converse(
    socket: WebSocket, service: Service, response: SpeechResponse, form: str, text: ArrivingText
) -> None:
    """Take more text from the client and send sound to it, both at the same time.

    Args:
        socket: The client's socket.
        service: The service.
        response: The speech for the client.
        form: Response format of the sound.
        text: The client's text, which has begun.

    Raises:
        Exception: The first error in taking text or sending sound.
    """

    async def read_texts() -> None:
        """Pass the client's texts on to the speech.

        Raises an error if the client sends an invalid message or leaves.
        """
        limits = service.settings.limits
        await text.pass_on(response, partial(next_text_of, socket, limits.seconds, limits.idle, service.is_full))
        left = await socket.receive()
        if left["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(left.get("code", 1000))
        raise RefusedError("nothing may be sent after the end of the text")

    async def send_sound() -> None:
        encoder = None
        try:
            async for piece in response:
                encoder = encoder or make_encoder(form, piece.rate)
                if piece.words and response.request.word_times:
                    await send_within(socket, words_event(piece.words), service)
                await send_within(socket, await asyncio.to_thread(encoder.feed, piece.audio), service)
            if encoder is not None:
                await send_within(socket, await asyncio.to_thread(encoder.finish), service)
        finally:
            if encoder is not None:
                # ``close`` may wait for a thread that is in ``feed``
                asyncio.get_running_loop().run_in_executor(None, encoder.close)
        await send_within(socket, {"type": "done", **response.ending(text.length)}, service)

    await while_watching(send_sound(), read_texts())


async def send_within(socket: WebSocket, data: bytes | dict[str, Any], service: Service) -> None:
    """Send bytes, or an object as JSON. If there are no bytes, send nothing."""
    if data:
        try:
            async with asyncio.timeout(service.settings.limits.idle):
                await (socket.send_bytes(data) if isinstance(data, bytes) else socket.send_json(data))
        except (TimeoutError, RuntimeError):  # Starlette raises RuntimeError when the client has left
            raise WebSocketDisconnect(1006) from None


async def next_text_of(socket: WebSocket, *waiting: Any) -> str | None:
    """Wait for the next text with the limits of ``receive``. ``None`` means that the text is complete."""
    message = await receive(socket, StreamText, *waiting)
    return message.text if message.type == "text" else None


async def receive(
    socket: WebSocket,
    kind: type[Message],
    seconds: float,
    idle: float = math.inf,
    is_full: Callable[[], bool] = lambda: False,
) -> Message:
    """Wait for the client's next message, with the limits of ``next_text``.

    Raises:
        RefusedError: No message came in time, or the message is not text.
        ValidationError: The message does not have the fields of ``kind``.
    """
    try:
        text = await next_text(socket.receive_text, seconds, idle, is_full)
        await asyncio.sleep(0)  # lets other tasks run between two messages, even if many messages have come
        return kind.model_validate_json(text)
    except TimeoutError:
        raise RefusedError("no text came for too long", 408) from None
    except KeyError:
        raise RefusedError("messages must be JSON in text frames") from None


async def refuse(socket: WebSocket, error: Exception, seconds: float) -> None:
    """Send an error to the client within ``seconds``, and close the socket. If it is a fault of the server, log it."""
    status, content = error_content(error)
    reason = content["error"]["message"].encode()[:MAX_REASON].decode(errors="ignore")
    try:
        async with asyncio.timeout(seconds):
            await socket.send_text(json.dumps({"type": "error", **content}))
            await socket.close(REFUSED if status < 500 else FAILED, reason)
    except (TimeoutError, RuntimeError, WebSocketDisconnect):
        pass
