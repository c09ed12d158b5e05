"""Speak the Wyoming protocol of Home Assistant: describe the voices, and speak whole texts or text that arrives."""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_read_event, async_write_event
from wyoming.info import Attribution, Describe, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped, SynthesizeVoice

from ane.audio.writer import pcm16
from ane.server.connections import BACKLOG, QUEUE, SEND_BUFFER, Connections
from ane.server.errors import RefusedError, error_content
from ane.server.speech import ServedRequest
from ane.server.speech_service import ArrivingText, Service, SpeechResponse
from ane.server.waiting import end_tasks, next_text, while_watching
from ane.system.errors import system_errors
from ane.system.version import version

LOGGER = logging.getLogger("ane.server")
ATTRIBUTION = Attribution(name="tortoise-ane", url="")
CHUNK = 4096  # maximum samples of sound in one event


class LimitedReader:
    """A stream reader for ``async_read_event`` that waits only a limited time for every part of an event.

    Args:
        reader: The connection's reader.
        most: Maximum bytes in a part.
        seconds: Maximum seconds to wait for a part of an event.
        is_full: Function that returns whether another client needs this connection. If so, the client has ``seconds``
            between two events.

    Attributes:
        patience: Maximum seconds between two events.

    Raises:
        ValueError: A part is longer than ``most`` bytes.
        TimeoutError: A part did not come in time.
    """

    def __init__(
        self, reader: asyncio.StreamReader, most: int, seconds: float, is_full: Callable[[], bool] = lambda: False
    ):
        self._reader, self._most, self._seconds, self._is_full = reader, most, seconds, is_full
        self.patience = seconds

    async def readline(self) -> bytes:
        await asyncio.sleep(0)  # lets other tasks run between two events, even if many events have come
        begun = await next_text(lambda: self._reader.read(1), self.patience, self._seconds, self._is_full)
        async with asyncio.timeout(self._seconds):
            line = begun and begun + await self._reader.readline()  # readline takes at most 64 KiB
        if line and not isinstance(json.loads(line), dict):
            raise ValueError("a header must be an object")
        return line

    async def readexactly(self, count: int) -> bytes:
        if not isinstance(count, int) or count > self._most:
            raise ValueError(f"an event must have at most {self._most} bytes")
        async with asyncio.timeout(self._seconds):
            return await self._reader.readexactly(count)


class WyomingServer:
    """A server for the Wyoming protocol, on a separate port."""

    def __init__(self, service: Service, connections: Connections):
        self.service, self._connections = service, connections
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task, WyomingClient] = {}

    async def start(self, host: str, port: int) -> None:
        """Open the port. Raises UserError if the port cannot be opened."""
        with system_errors(f"cannot listen on {host}, port {port}"):
            self._server = await asyncio.start_server(self._accept, host, port, backlog=BACKLOG)
        for opened in self._server.sockets:
            with socket.fromfd(opened.fileno(), opened.family, opened.type) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
                # asyncio made the queue only as long as the number of connections that it accepts together
                same.listen(QUEUE)

    @property
    def port(self) -> int:
        return self._server.sockets[0].getsockname()[1] if self._server else 0

    def stop(self) -> None:
        """Accept no more clients, and end the connections on which the server is not answering."""
        if self._server is not None:
            self._server.close()
        for task, client in self._clients.items():
            client.stopping = True
            if not client.answering:
                task.cancel()

    async def close(self, seconds: float) -> None:
        """Stop, and let the answers that are being sent take up to ``seconds``."""
        self.stop()
        if self._clients:
            await asyncio.wait(self._clients, timeout=seconds)
        await end_tasks(*self._clients)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limits = self.service.settings.limits
        task = asyncio.current_task()
        assert task is not None
        client = WyomingClient(
            self.service, LimitedReader(reader, limits.body, limits.idle, self.service.is_full), writer
        )
        self._clients[task] = client
        self._connections.add(task, writer.transport.abort)
        try:
            await client.serve(
                lambda: self._connections.answers(task), lambda: self._connections.waits(task, writer.transport.abort)
            )
        except (OSError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            del self._clients[task]
            self._connections.remove(task)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()


class WyomingClient:
    """A connection of the Wyoming protocol. It answers events in order.

    The connection ends after an error, because Home Assistant would otherwise wait for sound.

    Attributes:
        answering: Whether the server is answering an event.
        stopping: Whether no further event will be answered.
    """

    def __init__(self, service: Service, reader: LimitedReader, writer: asyncio.StreamWriter):
        self.service, self.reader, self.writer = service, reader, writer
        self.answering = self.stopping = False
        self._answers: Callable[[], None] = lambda: None
        self._waits: Callable[[], None] = lambda: None

    async def serve(self, answers: Callable[[], None], waits: Callable[[], None]) -> None:
        """Answer events until the client leaves. Call ``answers`` before every answer, and ``waits`` after it."""
        self._answers, self._waits = answers, waits
        while not self.stopping and (event := await self.read()) is not None:
            self._begin_answer()
            try:
                await self.answer(event)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                raise
            except Exception as error:
                status, content = error_content(error)
                self.service.count_refusal("wyoming", status)
                await self.write(Error(content["error"]["message"], content["error"]["code"]).event())
                return
            self._end_answer()

    def _begin_answer(self) -> None:
        self.answering = True
        self._answers()

    def _end_answer(self) -> None:
        self.answering = False
        self._waits()

    async def read(self) -> Event | None:
        """Return the next event, or ``None`` if the client has left or has sent something that is not an event."""
        try:
            return await async_read_event(self.reader)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    async def write(self, event: Event) -> None:
        await async_write_event(event, self.writer)
        async with asyncio.timeout(self.service.settings.limits.idle):
            await self.writer.drain()

    async def answer(self, event: Event) -> None:
        if Describe.is_type(event.type):
            await self.write(self.info().event())
        elif Ping.is_type(event.type):
            await self.write(Pong().event())
        elif Synthesize.is_type(event.type):
            with well_formed():
                wanted = Synthesize.from_event(event)
                text = checked_string(wanted.text)
            self.service.check_text(text)
            if not text.strip():
                raise RefusedError("no text was sent", 400, "input")
            await self.speak(self.request(wanted.voice, text))
        elif SynthesizeStart.is_type(event.type):
            with well_formed():
                voice = SynthesizeStart.from_event(event).voice
            await self.speak_arriving(self.request(voice, ""))

    def request(self, voice: SynthesizeVoice | None, text: str) -> ServedRequest:
        """Make a request for speech.

        Clients name a voice as MODEL/VOICE, or as VOICE for a voice of the first model.
        """
        catalogue, name = self.service.catalogue, voice.name if voice is not None and voice.name else None
        model = self.service.settings.models[0]
        if name and "/" in str(name):
            first, _, name = str(name).partition("/")
            model = catalogue.model(first)
        return ServedRequest(text, catalogue.voice(model, name and str(name)), model=model)

    def info(self) -> Info:
        voices = [
            TtsVoice(
                name=f"{model}/{voice}",
                attribution=ATTRIBUTION,
                installed=True,
                description=voice,
                version=version(),
                languages=["en"],
            )
            for model in self.service.catalogue.models
            for voice in self.service.catalogue.voices(model)
        ]
        return Info(
            tts=[
                TtsProgram(
                    name="ane",
                    attribution=ATTRIBUTION,
                    installed=True,
                    version=version(),
                    voices=voices,
                    description="tortoise-ane",
                    supports_synthesize_streaming=True,
                )
            ]
        )

    async def speak(self, request: ServedRequest) -> None:
        response = self.service.speak(request, "wyoming")
        try:
            await self.send(response)
        finally:
            response.close()

    async def speak_arriving(self, request: ServedRequest) -> None:
        """Speak chunks of text until the event synthesize-stop.

        Ignore the event ``synthesize`` between the chunks, which repeats the whole text for servers that do not know
        chunks.
        """
        limits = self.service.settings.limits
        # the client may wait between chunks, because the text is still being written
        self.reader.patience = limits.seconds
        self._end_answer()
        text = ArrivingText(self.service)
        first = await text.first(self.next_chunk)  # a client uses up no connection before it sends text
        self._begin_answer()
        response = self.service.speak(request, "wyoming")
        try:
            response.send_text(first)
            await while_watching(self.send(response), text.pass_on(response, self.next_chunk))
            await self.write(SynthesizeStopped().event())
        finally:
            self.reader.patience = limits.idle
            response.close()

    async def next_chunk(self) -> str | None:
        """Wait for the text of the next chunk. ``None`` means that the text is complete."""
        while (event := await self.read()) is not None:
            if SynthesizeStop.is_type(event.type):
                return None
            if SynthesizeChunk.is_type(event.type):
                with well_formed():
                    return checked_string(SynthesizeChunk.from_event(event).text)
        raise ConnectionResetError

    async def send(self, response: SpeechResponse) -> None:
        rate = 0
        async for piece in response:
            if not rate:
                rate = piece.rate
                await self.write(AudioStart(rate=rate, width=2, channels=1).event())
            for part in np.split(piece.audio, range(CHUNK, len(piece.audio), CHUNK)):
                await self.write(AudioChunk(rate=rate, width=2, channels=1, audio=pcm16(part).tobytes()).event())
        await self.write(AudioStop().event())


@contextmanager
def well_formed() -> Iterator[None]:
    """Turn the wyoming library's errors about an event's fields into errors that the client gets."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RefusedError("an event lacks fields that its type needs") from error


def checked_string(text: object) -> str:
    """Return the text of an event, and raise RefusedError if it is not a string.

    The package wyoming does not check it.
    """
    if not isinstance(text, str):
        raise RefusedError(f"text must be a string, got {type(text).__name__}", 400, "input")
    return text
