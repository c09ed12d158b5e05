"""Start the speech for the routes of all protocols. The routes share one engine, its models, settings and metrics."""

import logging
import math
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ane.server.engine import Engine, calls_at_a_time
from ane.server.errors import BusyError, FaultError, RefusedError, error_content, outcome_of
from ane.server.jobs import Job, Work
from ane.server.served_models import ServedModels
from ane.server.settings import ServerSettings
from ane.server.speech import Catalogue, ServedRequest, SoundPiece, SpokenFacts, speak
from ane.text import Lexicon

LOGGER = logging.getLogger("ane.server")
GONE = "client gone"
MAX_HEADER = 2000  # maximum characters of warnings in a header, because a warning may quote a text
BUCKETS = (0.025, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)  # bounds for the histogram of times to the first sound


class Metrics:
    """The counts and durations that a server reports to Prometheus. Only the event loop changes them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "ane_requests", "Requests, by kind and outcome", ["kind", "outcome"], registry=self.registry
        )
        self.refused = Counter(
            "ane_refused_requests",
            "Requests that were answered with an error, by status",
            ["kind", "status"],
            registry=self.registry,
        )
        self.active = Gauge("ane_active_requests", "Requests that wait or are in work", registry=self.registry)
        self.models = Gauge("ane_loaded_models", "Models in memory", registry=self.registry)
        self.first_sound = Histogram(
            "ane_first_sound_seconds",
            "Seconds from a request to its first sound",
            ["model"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.sound = Counter("ane_sound_seconds", "Seconds of sound", ["model"], registry=self.registry)
        self.characters = Counter("ane_characters", "Characters in the texts", ["model"], registry=self.registry)


class Service:
    """The engine, models, settings and metrics of a server. Call its methods in the event loop."""

    def __init__(self, settings: ServerSettings):
        self.settings, self.catalogue, self.metrics = settings, Catalogue(settings), Metrics()
        cpu_threads = settings.threads or torch.get_num_threads()
        self.engine = Engine(settings.limits, calls_at_a_time(settings.calls, cpu_threads), cpu_threads)
        self.models = ServedModels(settings, self.engine.turns)
        self.engine.start(self.models.release_unused)
        self.ready = False
        self.metrics.active.set_function(lambda: self.engine.count)
        self.metrics.models.set_function(lambda: len(self.models.loaded))

    async def preload(self) -> None:
        """Load the models that the settings name. Raises UserError if a model cannot be loaded."""

        def work(job: Job) -> None:
            for name in self.settings.preload:
                with self.models.using(name):
                    job.put(name)

        try:
            # without a time limit, because no client waits
            async for _ in self.engine.submit(work, seconds=math.inf).items():
                pass
        except FaultError as fault:
            raise fault.__cause__  # noqa: B904 (keeps the cause of this error)
        self.ready = True

    def check_text(self, text: str, lexicon: Lexicon | None = None) -> int:
        """Count a text's characters after the lexicon respelled it.

        Raises RefusedError if it is too long or invalid Unicode.
        """
        most, length = self.settings.limits.characters, len(text)
        if lexicon is not None and length <= most:
            length = len(lexicon(text))
        if length > most:
            raise RefusedError(
                f"input must have at most {most} characters, got {length}", 400, "input", "string_above_max_length"
            )
        if any("\ud800" <= sign <= "\udfff" for sign in text):
            raise RefusedError("input contains unpaired surrogates", 400, "input")
        return length

    def check_stream(self, characters: int) -> None:
        """Raise RefusedError if a text that arrives in several messages has become too long."""
        most = self.settings.limits.stream_characters
        if characters > most:
            raise RefusedError(
                f"the text of a stream must have at most {most} characters", 400, "text", "string_above_max_length"
            )

    def speak(self, request: ServedRequest, kind: str = "speech") -> "SpeechResponse":
        """Start to speak a request. Raises BusyError if the server has too many requests."""
        return SpeechResponse(self, request, kind, self._submit(kind, speak(self.models, request, self.catalogue)))

    def _submit(self, kind: str, work: Work, speaks: bool = True) -> Job:
        try:
            return self.engine.submit(work, speaks=speaks)
        except BusyError:
            self.metrics.requests.labels(kind, "busy").inc()
            raise

    def is_full(self) -> bool:
        """Return whether the server rejects further requests because it has too many."""
        return self.engine.count >= self.settings.limits.requests

    def count_refusal(self, kind: str, status: int, **fields: Any) -> None:
        """Count and log a request that gets an error as its answer.

        The log leaves out most lines of a frequent kind.
        """
        self.metrics.refused.labels(kind, str(status)).inc()
        LOGGER.warning("request refused", extra={"fields": {"kind": kind, "status": status, **fields}})

    async def run(self, kind: str, work: Work) -> Any:
        """Run a job that is not speech, and return its last item. Raises the errors of ``items``."""
        return await last_item(self.items(kind, work))

    async def items(self, kind: str, work: Work) -> AsyncGenerator[Any, None]:
        """Run a job that is not speech, and yield its items. Raises the errors of the job, and BusyError."""
        job, outcome = self._submit(kind, work, speaks=False), GONE
        try:
            async for item in job.items():
                yield item
            outcome = "ok"
        except Exception as error:
            outcome = outcome_of(error)
            raise
        finally:
            job.leave()
            self.metrics.requests.labels(kind, outcome).inc()


async def last_item(items: AsyncGenerator[Any, None]) -> Any:
    """Return the last item, or ``None`` if there is none."""
    item = None
    async with aclosing(items):
        async for next_item in items:
            item = next_item
    return item


class SpeechResponse:
    """The speech for one client. Iterate over it with ``async for`` to get ``SoundPiece`` items. Always close it.

    Attributes:
        request: The request that is spoken.
        id: Number of the request in the log and in the answer's headers.
        facts: Facts about the speech. ``None`` until the speech ends.
        notes: Warnings that are known so far.
    """

    def __init__(self, service: Service, request: ServedRequest, kind: str, job: Job):
        self._service, self.request, self._kind, self._job = service, request, kind, job
        self.id = uuid.uuid4().hex[:16]
        self.facts: SpokenFacts | None = None
        self.notes: Sequence[str] = ()
        self._began, self._first = time.monotonic(), 0.0
        self._outcome = GONE
        self._texts = [request.text]
        self._pieces = self._receive()
        self._closed = False

    def __aiter__(self) -> AsyncIterator[SoundPiece]:
        return self

    async def __anext__(self) -> SoundPiece:
        return await anext(self._pieces)

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of the answer.

        Server-Timing has the milliseconds from the request to its text, and from its text to the first sound. X-Notes
        has the warnings that are known when the sound starts.
        """
        wait = max(0.0, (self._job.text_at or 0.0) - self._began)
        timing = (
            f'wait;desc="before the text";dur={1000 * wait:.1f}, '
            f'first;desc="to the first sound";dur={1000 * (self._first - wait):.1f}'
        )
        notes = "".join(sign if " " <= sign <= "~" else "?" for sign in "; ".join(self.notes))[:MAX_HEADER]
        return {
            "X-Request-Id": self.id,
            "Server-Timing": timing,
            "Cache-Control": "no-store",
            **({"X-Notes": notes} if notes else {}),
        }

    def send_text(self, text: str | None) -> None:
        self._texts.append(text or "")
        self._job.send_text(text)

    async def _receive(self) -> AsyncIterator[SoundPiece]:
        try:
            async for item in self._job.items():
                self.notes = item.notes
                if isinstance(item, SpokenFacts):
                    self.facts = item
                    continue
                if not self._first:
                    self._first = time.monotonic() - self._began
                    self._service.metrics.first_sound.labels(self.request.model).observe(self._first)
                yield item
            self._outcome = "ok"
        except Exception as error:
            self._outcome = outcome_of(error)
            raise

    def close(self) -> None:
        """End, count and log the job, because the client has all of the sound or wants no more sound."""
        if self._closed:
            return
        self._closed = True
        if self._outcome == GONE and self._service.engine.ending:
            self._outcome = "stopped"  # the client took the sound too slowly
        self._job.leave()
        del self._pieces  # the iterator refers back to this object, which would keep the sound in memory longer
        metrics, request, text = self._service.metrics, self.request, "".join(self._texts)
        metrics.requests.labels(self._kind, self._outcome).inc()
        fields = {
            "request": self.id,
            "kind": self._kind,
            "model": request.model,
            "voice": request.voice,
            "characters": len(text),
            "outcome": self._outcome,
            "first_sound": round(self._first, 4),
            "elapsed": round(time.monotonic() - self._began, 4),
        }
        if self.facts is not None:
            fields["seconds"] = round(self.facts.seconds, 3)
            metrics.sound.labels(request.model).inc(self.facts.seconds)
            metrics.characters.labels(request.model).inc(len(text))
        if self._service.settings.log_texts:
            fields["text"] = text
        LOGGER.info("request", extra={"fields": fields})

    def ending(self, characters: int) -> dict[str, Any]:
        """Return the usage to report to the client, and the warnings if there are any.

        Input tokens are the characters of the text. Output tokens are the codes, frames or tokens that the model made.
        """
        output = self.facts.units if self.facts else 0
        usage = {"input_tokens": characters, "output_tokens": output, "total_tokens": characters + output}
        return {"usage": usage, "notes": list(self.notes)} if self.notes else {"usage": usage}

    def error(self, error: BaseException) -> dict[str, Any]:
        """Return the event that reports an error to a client that already has some of the sound."""
        return {"type": "error", **error_content(error)[1]}


# waits for the client's next message, and returns its text. None means that the text is complete
ReadText = Callable[[], Awaitable[str | None]]


class ArrivingText:
    """A text that a client sends in several messages.

    Args:
        service: The service, which has the limits.
        lexicon: Respellings, which may make the text longer.

    Attributes:
        length: Number of characters of the text so far. An empty message counts as one character.
    """

    def __init__(self, service: Service, lexicon: Lexicon | None = None):
        self._service, self._lexicon = service, lexicon
        self.length = 0

    async def first(self, read: ReadText) -> str:
        """Wait until the text has a word, and return the text. Raises RefusedError if there is no text, or too much."""
        text = ""
        while not text.strip():
            if (more := await self._next(read)) is None:
                raise RefusedError("no text was sent", 400, "text")
            text += more
        return text

    async def pass_on(self, response: SpeechResponse, read: ReadText) -> None:
        """Pass messages on until the text is complete. Raises RefusedError if the text is too long."""
        while (more := await self._next(read)) is not None:
            response.send_text(more)
        response.send_text(None)

    async def _next(self, read: ReadText) -> str | None:
        if (text := await read()) is not None:
            self.length += self._service.check_text(text, self._lexicon) or 1
            self._service.check_stream(self.length)
        return text
