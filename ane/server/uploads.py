"""Routes for files: transcriptions and translations of recordings, and voices made of clips."""

import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import soundfile
from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from ane.models.tortoise.voices import cloning_notes
from ane.models.whisper.features import RATE
from ane.models.whisper.transcript import Transcript, as_srt, as_vtt
from ane.models.whisper.transcription import TranscriptionOptions
from ane.server.errors import RefusedError
from ane.server.jobs import Job, Waits
from ane.server.schemas import NewVoice
from ane.server.settings import NEW_VOICES, TRANSCRIPTIONS, Limits
from ane.server.speech_service import Service
from ane.server.waiting import while_connected
from ane.system import paths
from ane.system.child_process import ChildProcess
from ane.system.files import replacing
from ane.voices import check_voice_name, save_voice

CLIP_SECONDS = 600.0    # of a clip of a voice, which uses 6 s of it
CLIP_RATE = 44100       # Hz at most; the encoders take 24 kHz or less
MIN_CONSENT = 20        # characters of a statement of consent
# Parameters of uploads, with what they mean
Recording = Annotated[UploadFile, File(description="a recording in any format that FFmpeg reads")]
ModelName = Annotated[str, Form(max_length=200, description="a name of /v1/models, or OpenAI's whisper-1")]
Prompt = Annotated[str, Form(max_length=2000, description="text that comes before, in its spelling and style")]
TranscriptForm = Literal["json", "text", "srt", "verbose_json", "vtt"]
TextFormat = Annotated[TranscriptForm, Form(description="of the text")]
Temperature = Annotated[float, Form(ge=0, le=1, allow_inf_nan=False,
                                    description="0: the most probable words, and more where that fails")]


def upload_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/audio", tags=["files"])
    # from decoding to the end: others wait, as files, not as decoded sound; the guard limits their number
    transcribing, adding = asyncio.Semaphore(TRANSCRIPTIONS), asyncio.Semaphore(NEW_VOICES)
    limits = service.settings.limits

    async def transcribe(request: Request, file: UploadFile, model: str, form: TranscriptForm, temperature: float,
                         options: TranscriptionOptions) -> Response:
        """A temperature of 0 means those of Whisper, as OpenAI's API does."""
        name = service.catalogue.transcriber(model)
        if temperature:
            options = replace(options, temperatures=(temperature,))

        async def transcript() -> Transcript:
            async with transcribing:
                audio, rate = await decode_upload(file, limits, limits.clip_seconds, RATE)

                def work(job: Job) -> Iterator[Waits]:
                    with service.models.using(name) as served:
                        job.serial = True           # recordings share the decoder of a window
                        yield None
                        windows = served.speaker.transcribing(audio, rate, options)
                        while True:
                            try:
                                next(windows)
                            except StopIteration as end:
                                job.put(end.value)
                                return
                            yield None

                return await service.run(options.task, work)

        return transcript_response(await while_connected(transcript(), request), options.task, form)

    async def store_voice(file: UploadFile, model: str, name: str, consent: str) -> list[str]:
        async with adding:
            audio, rate = await decode_upload(file, limits, CLIP_SECONDS, CLIP_RATE)
            return await service.run("voice", voice_work(service, model, name, audio, rate, consent))

    @router.post("/transcriptions", response_class=Response)
    async def transcriptions(
            request: Request, file: Recording, model: ModelName,
            language: Annotated[str, Form(max_length=10, description="as en; none: it is recognised")] = "",
            prompt: Prompt = "", response_format: TextFormat = "json", temperature: Temperature = 0.0,
            granularities: Annotated[list[Literal["word", "segment"]], Form(
                alias="timestamp_granularities[]", description="word: state when each word is heard")] = [],  # noqa: B006 (FastAPI copies it)
    ) -> Response:
        """Write down what is said in a recording."""
        return await transcribe(request, file, model, response_format, temperature, TranscriptionOptions(
            language or None, "transcribe", prompt=prompt, word_times="word" in granularities))

    @router.post("/translations", response_class=Response)
    async def translations(
            request: Request, file: Recording, model: ModelName, prompt: Prompt = "",
            response_format: TextFormat = "json", temperature: Temperature = 0.0) -> Response:
        """Translate what is said in a recording to English."""
        return await transcribe(request, file, model, response_format, temperature, TranscriptionOptions(
            None, "translate", prompt=prompt))

    @router.post("/voices", status_code=201)
    async def add_voice(request: Request, name: Annotated[str, Form(max_length=100, description="of the new voice")],
                        audio_sample: Recording,
                        consent: Annotated[str, Form(max_length=10_000,
                                                     description="a sentence which says that the speaker agrees")],
                        model: Annotated[str, Form(max_length=200, description="whose voice it is; none: the server's "
                                                                               "first")] = "") -> NewVoice:
        """Make a voice of a clip. ``consent`` states that the speaker agrees, in words."""
        if not service.settings.add_voices:
            raise RefusedError("this server takes no voices: it was started without --add-voices", 403)
        if len(consent.strip()) < MIN_CONSENT:
            raise RefusedError("consent must state, in a sentence, that the speaker agrees to this use", 400, "consent")
        check_voice_name(name)
        wanted = service.catalogue.model(model) if model else service.settings.models[0]
        notes = await while_connected(store_voice(audio_sample, wanted, name, consent.strip()), request)
        service.catalogue.forget_voices()
        return NewVoice(id=name, name=name, created_at=round(time.time()), notes=notes)

    return router


def voice_work(service: Service, model: str, name: str, audio: np.ndarray, rate: int, consent: str) -> Any:
    """Work that encodes a clip and stores the voice, and puts warnings about it. It does not replace one."""
    def work(job: Job) -> Iterator[Waits]:
        with service.models.using(model) as served:
            job.serial = served.serial
            yield None
            if not served.model.has_latents:
                raise served.model.lacks("voices made of clips")
            if name in service.catalogue.voices(model) or (paths.voices_dir() / f"{name}.safetensors").exists():
                raise RefusedError(f"there is a voice {name} already", 400, "name")
            with tempfile.TemporaryDirectory() as folder:
                clip = Path(folder) / f"{name}.wav"
                soundfile.write(clip, audio, rate, "FLOAT")
                voice = served.speaker.prepare(voice=str(clip))
            if job.gone:
                return
            destination = paths.voices_dir() / f"{name}.safetensors"
            destination.parent.mkdir(parents=True, exist_ok=True)
            with replacing(destination.with_suffix(".consent.txt"), lasting=True) as file:     # no voice without it
                file.touch(0o600)
                file.write_text(f"{consent}\n", encoding="utf-8")
            save_voice(destination, voice)
            job.put(cloning_notes(served.model, voice))

    return work


async def decode_upload(file: UploadFile, limits: Limits, seconds: float, rate: int) -> tuple[np.ndarray, int]:
    """Audio (S,) float32 of an upload and its rate, at most ``rate`` Hz, decoded in a process (``upload_decoder``).

    Raises:
        RefusedError: what it holds is not sound, is too long, or takes too much time or memory.
    """
    with tempfile.NamedTemporaryFile() as stored:
        while data := await file.read(1 << 20):
            stored.write(data)
        stored.flush()
        process = ChildProcess(
            "ane.server.upload_decoder", (stored.name, str(seconds), str(rate)), stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            memory=limits.decoder_memory, cpu_seconds=round(limits.decoder_seconds), file_bytes=0)
        reading = asyncio.ensure_future(asyncio.to_thread(process.communicate))
        try:
            async with asyncio.timeout(limits.decoder_seconds):
                output, _ = await asyncio.shield(reading)
        except TimeoutError:
            raise RefusedError(f"the file takes more than {limits.decoder_seconds:g} s to decode", 400,
                               "file") from None
        finally:
            process.kill()          # has no effect when it has ended
            await reading
    line, _, samples = output.partition(b"\n")
    answer = json.loads(line) if process.returncode == 0 else {"error": "the file cannot be decoded within the limits"}
    if "error" in answer:
        raise RefusedError(answer["error"], 400, "file")
    return np.frombuffer(samples, np.float32), answer["rate"]


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
        "task": task, "language": transcript.language, "duration": transcript.duration,
        "segments": [{"id": number, "start": segment.start, "end": segment.end, "text": segment.text,
                      "tokens": segment.tokens, "temperature": segment.temperature,
                      "avg_logprob": segment.average_log_probability,
                      "compression_ratio": segment.compression_ratio, "no_speech_prob": segment.no_speech_probability}
                     for number, segment in enumerate(transcript.segments)]}
    words = [word for segment in transcript.segments for word in segment.words or ()]
    return {**found, "words": [{"word": word.word.strip(), "start": word.start, "end": word.end}
                               for word in words]} if words else found
