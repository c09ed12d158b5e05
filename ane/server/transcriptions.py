"""Transcribe and translate recordings. The routes answer with the whole text, or with events as the text grows."""

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
from ane.server.errors import error_content
from ane.server.jobs import Job
from ane.server.settings import TRANSCRIPTIONS
from ane.server.speech_service import Service, last_item
from ane.server.uploads import Recording, check_form, decode_upload
from ane.server.waiting import while_connected
from ane.system.errors import NoEffectError

SSE = "text/event-stream"
ModelName = Annotated[str, Form(max_length=200, description="name of a model in /v1/models, or OpenAI's whisper-1")]
Prompt = Annotated[
    str, Form(max_length=2000, description="text before the recording. The model follows its spelling and style")
]
TranscriptForm = Literal["json", "text", "srt", "verbose_json", "vtt"]
TextFormat = Annotated[TranscriptForm, Form(description="format of the text")]
Temperature = Annotated[
    float,
    Form(
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="temperature of sampling. 0 takes the most probable words, and a higher value if that fails",
    ),
]


def next_window(windows: Generator[Any, None, Transcript]) -> StopIteration | None:
    """Transcribe one window of a recording. After the last window, return StopIteration, which has the transcript."""
    try:
        next(windows)
    except StopIteration as end:
        return end
    return None


def transcription_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/audio", tags=["files"])
    # A recording holds this semaphore from its decoding to its end. The other recordings wait as files, whose number
    # the guard limits.
    transcribing = asyncio.Semaphore(TRANSCRIPTIONS)

    async def transcripts(
        file: UploadFile, name: str, options: TranscriptionOptions
    ) -> AsyncGenerator[TranscriptSegment | Transcript, None]:
        """Yield each segment of the transcript as soon as it is transcribed, then the whole transcript."""
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
        """Transcribe a recording, and answer in a format. A temperature of 0 means Whisper's default temperatures."""
        name = service.catalogue.transcriber(model)
        if temperature:
            options = replace(options, temperatures=(temperature,))
        if stream and form not in ("json", "text"):
            raise NoEffectError("stream", f"with response_format {form}", "leave one out")
        items = transcripts(file, name, options)
        if stream:
            # wait for the first item, because an error after it could no longer set the status
            first = await while_connected(anext(items), request)
            return StreamingResponse(send_events(first, items), media_type=SSE, headers={"Cache-Control": "no-store"})
        return transcript_response(await while_connected(last_item(items), request), options.task, form)

    @router.post("/transcriptions", response_class=Response, responses={200: {"content": {SSE: {}}}})
    async def transcriptions(
        request: Request,
        file: Recording,
        model: ModelName,
        language: Annotated[
            str, Form(max_length=40, description="language, such as en, English or en-US (default: recognise it)")
        ] = "",
        prompt: Prompt = "",
        response_format: TextFormat = "json",
        temperature: Temperature = 0.0,
        granularities: Annotated[
            list[Literal["word", "segment"]],
            Form(alias="timestamp_granularities[]", description="word: add the times of every word"),
        ] = [],  # noqa: B006 (FastAPI copies it)
        stream: Annotated[bool, Form(description="whether to send events while the text is made")] = False,
    ) -> Response:
        """Transcribe a recording."""
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
        """Translate a recording to English."""
        await check_form(request, "file", "model", "prompt", "response_format", "temperature")
        return await respond(
            request, file, model, response_format, temperature, TranscriptionOptions(None, "translate", prompt=prompt)
        )

    return router


async def send_events(
    first: TranscriptSegment | Transcript, items: AsyncGenerator[TranscriptSegment | Transcript, None]
) -> AsyncIterator[str]:
    """Yield server-sent events as OpenAI does: the text of every segment, then the whole text."""
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
    """Return the fields of OpenAI's format verbose_json, except the text."""
    fields: dict[str, Any] = {
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
        {**fields, "words": [{"word": word.word.strip(), "start": word.start, "end": word.end} for word in words]}
        if words
        else fields
    )
