"""Create the HTTP application of the server, with its routes for speech, models, voices and health."""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.middleware.cors import CORSMiddleware

from ane.server.connections import Connections
from ane.server.encoders import FORMATS, FileEncoder, make_encoder
from ane.server.errors import RESPONSES, RefusedError, install_error_handlers
from ane.server.guard import Guard
from ane.server.page import page_routes
from ane.server.schemas import (
    AudioModel,
    AudioModelList,
    Health,
    ModelCard,
    ModelList,
    SpeechBody,
    VoiceCard,
    VoiceList,
)
from ane.server.settings import OPENAI_TRANSCRIBERS
from ane.server.speech import SoundPiece, words_event
from ane.server.speech_service import Service, SpeechResponse
from ane.server.transcriptions import SSE, event, transcription_routes
from ane.server.uploads import voice_routes
from ane.server.waiting import while_connected
from ane.server.websocket import websocket_routes
from ane.speech.words import SpokenWord
from ane.system.errors import NoEffectError
from ane.system.version import version

BLOCK = 1 << 16  # maximum bytes of a finished sound file in one message


def make_app(service: Service, connections: Connections | None = None) -> FastAPI:
    """Create the application. Once its ``state.guard.stopping`` is set, it rejects new requests.

    Args:
        service: The service that speaks and transcribes.
        connections: Connections of the server. If there are too many, the application rejects new requests. ``None``
            means that nobody counts connections.
    """
    settings = service.settings
    app = FastAPI(
        title="ane serve",
        version=version(),
        docs_url=None,
        redoc_url=None,
        description="Text to speech as OpenAI's API offers it.",
    )
    install_error_handlers(app)
    app.include_router(speech_routes(service), responses=RESPONSES)
    app.include_router(transcription_routes(service), responses=RESPONSES)
    app.include_router(voice_routes(service), responses=RESPONSES)
    app.include_router(status_routes(service), responses=RESPONSES)
    app.include_router(websocket_routes(service))
    app.include_router(page_routes())
    without_422(app)

    def guarded(inner: Any, **_: Any) -> Guard:
        app.state.guard = Guard(
            inner, settings, lambda: connections is not None and connections.crowded, service.count_refusal
        )
        return app.state.guard

    app.add_middleware(guarded)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After", "Server-Timing", "X-Notes", "X-Request-Id"],
        )
    return app


def without_422(app: FastAPI) -> None:
    """Remove status 422 from FastAPI's schema. This server answers invalid requests with 400, as OpenAI does."""
    make_schema = app.openapi

    def schema() -> dict[str, Any]:
        content = make_schema()
        for methods in content["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        return content

    app.openapi = schema  # type: ignore[method-assign]


def status_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["the server"])

    @router.get("/health")
    async def health() -> Health:
        """Check that the process answers."""
        return Health(status="ok", version=version())

    @router.get("/ready")
    async def ready(request: Request) -> Health:
        """Check whether the server takes requests. The status is 503 while it loads models, stops, or is broken."""
        if not service.engine.alive:
            raise RefusedError("the thread that watches the requests has ended: start the server again", 503)
        if request.app.state.guard.stopping or not service.ready:
            raise RefusedError("the server is stopping" if service.ready else "the server is still loading models", 503)
        return Health(status="ready", version=version())

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return counts and durations in the format of Prometheus."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router


def speech_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["speech"])
    catalogue = service.catalogue

    def model_card(name: str) -> ModelCard:
        if name not in catalogue.models:
            return ModelCard(id=name)  # a model that transcribes has no presets, seed or voice
        known = catalogue.models[name]
        return ModelCard(
            id=name,
            presets=catalogue.presets(name),
            random=known.uses_seed,
            voice=known.default_voice,
            characters=service.settings.limits.characters,
        )

    @router.get("/models")
    async def models() -> ModelList:
        """List the models of this server."""
        named = [*catalogue.models, *([service.settings.transcriber] if service.settings.transcriber else [])]
        return ModelList(data=[model_card(name) for name in named])

    @router.get("/models/{model}")
    async def model(model: str) -> ModelCard:
        """Return facts about one model.

        For a name of OpenAI's, return facts about the model that this server uses in its place.
        """
        transcribes = service.settings.transcriber and model in (service.settings.transcriber, *OPENAI_TRANSCRIBERS)
        return model_card(catalogue.transcriber(model) if transcribes else catalogue.model(model))

    @router.get("/audio/models")
    async def audio_models() -> AudioModelList:
        """List the models that speak."""
        return AudioModelList(models=[AudioModel(id=name, name=name) for name in catalogue.models])

    @router.get("/audio/voices")
    async def voices() -> VoiceList:
        """List the voices. Each voice names the models that have it."""
        by_name: dict[str, list[str]] = {}
        for name in catalogue.models:
            for voice in catalogue.voices(name):
                by_name.setdefault(voice, []).append(name)
        cards = [VoiceCard(id=name, name=name, models=its_models) for name, its_models in by_name.items()]
        return VoiceList(data=cards, voices=cards)

    @router.post(
        "/audio/speech",
        response_class=Response,
        responses={
            200: {
                "description": "sound in the response format, or events that contain the sound in base64",
                "content": {**{sound.media_type: {} for sound in FORMATS.values()}, SSE: {}},
            }
        },
    )
    async def speech(body: SpeechBody, request: Request) -> Response:
        """Speak a text. The server sends each part of the sound as soon as it is made."""
        wanted = catalogue.request(body, body.input)
        service.check_text(body.input, wanted.lexicon)
        if body.instructions and not service.settings.ignore_instructions:
            raise RefusedError(
                "no model here follows instructions: leave out the field instructions", 400, "instructions"
            )
        as_events = body.stream_format == "sse"
        if body.word_times and not as_events:
            raise NoEffectError("word_times", "without stream_format sse", "leave it out")
        if body.stream is False and as_events:
            message = "stream false has no effect with stream_format sse: leave it out"
            raise NoEffectError("stream", "with stream_format sse", text=message)
        response = service.speak(wanted)
        try:
            first = await first_piece(response, request)
            if body.stream is False:
                return await while_connected(finished_sound(response, first, body.response_format), request)
        except BaseException:
            response.close()
            raise
        sender = send_events if as_events else send_sound
        media_type = SSE if as_events else FORMATS[body.response_format].media_type
        return StreamingResponse(
            sender(response, first, body.response_format), media_type=media_type, headers=response.headers
        )

    return router


async def first_piece(response: SpeechResponse, request: Request) -> SoundPiece:
    """Wait for the first sound before the HTTP status is sent, so that an error can still set the status.

    Raises:
        UserError: The request is wrong.
        RefusedError: The client has left (499), or nothing in the text can be spoken.
    """
    try:
        return await while_connected(anext(response), request)
    except StopAsyncIteration:
        raise RefusedError("nothing in the text can be spoken", 400, "input") from None


async def encoded(
    response: SpeechResponse, first: SoundPiece, form: str
) -> AsyncGenerator[tuple[bytes, Sequence[SpokenWord]], None]:
    """Encode sound as it arrives. Yield the encoded bytes, and the words whose times became known with this sound."""
    encoder = make_encoder(form, first.rate)
    try:
        yield await asyncio.to_thread(encoder.feed, first.audio), first.words
        async for piece in response:
            yield await asyncio.to_thread(encoder.feed, piece.audio), piece.words
        yield await asyncio.to_thread(encoder.finish), ()
    finally:
        response.close()
        # ``close`` may wait for a thread that is in ``feed``
        asyncio.get_running_loop().run_in_executor(None, encoder.close)


async def send_sound(response: SpeechResponse, first: SoundPiece, form: str) -> AsyncIterator[bytes]:
    async with aclosing(encoded(response, first, form)) as pieces:
        async for data, _ in pieces:
            if data:
                yield data


async def finished_sound(response: SpeechResponse, first: SoundPiece, form: str) -> Response:
    """Wait until the model has made all the sound, and answer with a file whose header contains the sound's length."""
    encoder = FileEncoder(form, first.rate)
    try:
        await asyncio.to_thread(encoder.feed, first.audio)
        async for piece in response:
            await asyncio.to_thread(encoder.feed, piece.audio)
        size = await asyncio.to_thread(encoder.finish)
    except BaseException:
        asyncio.get_running_loop().run_in_executor(None, encoder.close)  # may wait for a thread that is in ``feed``
        raise
    response.close()

    def blocks() -> Iterator[bytes]:
        with encoder.file:
            while block := encoder.file.read(BLOCK):
                yield block

    return StreamingResponse(
        blocks(), media_type=FORMATS[form].media_type, headers={**response.headers, "Content-Length": str(size)}
    )


async def send_events(response: SpeechResponse, first: SoundPiece, form: str) -> AsyncIterator[str]:
    """Yield server-sent events as OpenAI does: the sound in base64, then the usage.

    If the request sets ``word_times``, also yield events with the times of words.
    """
    try:
        async with aclosing(encoded(response, first, form)) as pieces:
            async for data, words in pieces:
                if words and response.request.word_times:
                    yield event(words_event(words))
                if data:
                    yield event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
    except Exception as error:
        yield event(response.error(error))
        return
    yield event({"type": "speech.audio.done", **response.ending(len(response.request.text))})
