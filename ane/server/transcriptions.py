"""Routes for transcriptions and translations of recordings, at once or as events while they are made."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Request, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from ane.models.whisper.features import RATE
from ane.models.whisper.languages import LANGUAGES
from ane.models.whisper.transcript import Transcript, TranscriptSegment, as_srt, as_vtt
from ane.models.whisper.transcription import TranscriptionOptions
from ane.server.errors import RefusedError, error_content
from ane.server.jobs import Job
from ane.server.settings import TRANSCRIPTIONS
from ane.server.speech_service import Service
from ane.server.uploads import Recording, check_form, decode_upload
from ane.server.waiting import while_connected

SSE = "text/event-stream"
ModelName = Annotated[str, Form(max_length=200, description="a name of /v1/models, or OpenAI's whisper-1")]
Prompt = Annotated[str, Form(max_length=2000, description="text that comes before, in its spelling and style")]
TranscriptForm = Literal["json", "text", "srt", "verbose_json", "vtt"]
TextFormat = Annotated[TranscriptForm, Form(description="of the text")]
Temperature = Annotated[
    float, Form(ge=0, le=1, allow_inf_nan=False, description="0: the most probable words, and more where that fails")
]


def next_window(windows: Generator[Any, None, Transcript]) -> StopIteration | None:
    """Write a window down. Returns the exception with the transcript after the last one."""
    try:
        next(windows)
    except StopIteration as end:
        return end
    return None


def transcription_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/audio", tags=["files"])
    # from decoding to the end: others wait, as files, not as decoded sound; the guard limits their number
    transcribing = asyncio.Semaphore(TRANSCRIPTIONS)

    async def transcripts(
        file: UploadFile, name: str, options: TranscriptionOptions
    ) -> AsyncGenerator[TranscriptSegment | Transcript, None]:
        """Yield the segments as they are written down, then the transcript."""
        limits = service.settings.limits
        async with transcribing:
            audio, rate = await decode_upload(file, limits, limits.clip_seconds, RATE)

            def work(job: Job) -> None:
                with service.models.using(name) as served:
                    windows, ended = served.speaker.transcribing(audio, rate, options, job.put), None
                    while ended is None:
                        with served.alone(job):  # recordings share the decoder of a window
                            ended = service.engine.turns.wide(lambda: next_window(windows))
                    job.put(ended.value)

            async with aclosing(service.items(options.task, work)) as items:
                async for item in items:
                    yield item

    async def respond(
        request: Request,
        file: UploadFile,
        model: str,
        form: TranscriptForm,
        temperature: float,
        options: TranscriptionOptions,
        stream: bool = False,
    ) -> Response:
        """A temperature of 0 means those of Whisper, as OpenAI's API does."""
        name = service.catalogue.transcriber(model)
        if temperature:
            options = replace(options, temperatures=(temperature,))
        if stream and form not in ("json", "text"):
            raise RefusedError(
                f"stream has no effect with response_format {form}: leave one of them out", 400, "stream"
            )
        items = transcripts(file, name, options)
        if stream:
            # what is wrong with the request is told with its status
            first = await while_connected(anext(items), request)
            return StreamingResponse(send_events(first, items), media_type=SSE, headers={"Cache-Control": "no-store"})
        return transcript_response(await while_connected(last_item(items), request), options.task, form)

    @router.post("/transcriptions", response_class=Response, responses={200: {"content": {SSE: {}}}})
    async def transcriptions(
        request: Request,
        file: Recording,
        model: ModelName,
        language: Annotated[
            str, Form(max_length=40, description="as en, English or en-US; none: it is recognised")
        ] = "",
        prompt: Prompt = "",
        response_format: TextFormat = "json",
        temperature: Temperature = 0.0,
        granularities: Annotated[
            list[Literal["word", "segment"]],
            Form(alias="timestamp_granularities[]", description="word: state when each word is heard"),
        ] = [],  # noqa: B006 (FastAPI copies it)
        stream: Annotated[bool, Form(description="events with the text while it is written down")] = False,
    ) -> Response:
        """Write down what is said in a recording."""
        await check_form(
            request,
            "file",
            "model",
            "language",
            "prompt",
            "response_format",
            "temperature",
            "timestamp_granularities[]",
            "stream",
        )
        return await respond(
            request,
            file,
            model,
            response_format,
            temperature,
            TranscriptionOptions(language or None, "transcribe", prompt=prompt, word_times="word" in granularities),
            stream,
        )

    @router.post("/translations", response_class=Response)
    async def translations(
        request: Request,
        file: Recording,
        model: ModelName,
        prompt: Prompt = "",
        response_format: TextFormat = "json",
        temperature: Temperature = 0.0,
    ) -> Response:
        """Translate what is said in a recording to English."""
        await check_form(request, "file", "model", "prompt", "response_format", "temperature")
        return await respond(
            request, file, model, response_format, temperature, TranscriptionOptions(None, "translate", prompt=prompt)
        )

    return router


async def last_item(items: AsyncGenerator[Any, None]) -> Any:
    item = None
    async with aclosing(items):
        async for each in items:
            item = each
    return item


async def send_events(
    first: TranscriptSegment | Transcript, items: AsyncGenerator[TranscriptSegment | Transcript, None]
) -> AsyncIterator[str]:
    """Server-sent events as OpenAI sends them: the text of each segment, then all of it."""
    async with aclosing(items):
        try:
            begun, item = False, first
            while not isinstance(item, Transcript):
                text = item.text if begun else item.text.lstrip()
                begun = begun or bool(text)
                yield event({"type": "transcript.text.delta", "delta": text})
                item = await anext(items)
            yield event({"type": "transcript.text.done", "text": item.text.strip()})
        except Exception as error:
            yield event({"type": "error", **error_content(error)[1]})


def event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def transcript_response(transcript: Transcript, task: str, form: TranscriptForm) -> Response:
    if form in ("srt", "vtt"):
        return PlainTextResponse(as_srt(transcript) if form == "srt" else as_vtt(transcript))
    text = transcript.text.strip()
    if form == "text":
        return PlainTextResponse(text + "\n")
    return JSONResponse({"text": text} if form == "json" else {"text": text, **verbose(transcript, task)})


def verbose(transcript: Transcript, task: str) -> dict[str, Any]:
    """The rest of OpenAI's verbose_json."""
    found: dict[str, Any] = {
        "task": task,
        "language": LANGUAGES.get(transcript.language, transcript.language),
        "duration": transcript.duration,
        "segments": [
            {
                "id": number,
                "seek": segment.seek,
                "start": segment.start,
                "end": segment.end,
                "text": segment.text,
                "tokens": segment.tokens,
                "temperature": segment.temperature,
                "avg_logprob": segment.average_log_probability,
                "compression_ratio": segment.compression_ratio,
                "no_speech_prob": segment.no_speech_probability,
            }
            for number, segment in enumerate(transcript.segments)
        ],
    }
    words = [word for segment in transcript.segments for word in segment.words or ()]
    return (
        {**found, "words": [{"word": word.word.strip(), "start": word.start, "end": word.end} for word in words]}
        if words
        else found
    )
