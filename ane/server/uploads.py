"""Files that clients send: their limits, and the route that makes a voice of a clip."""

import asyncio
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import soundfile
from fastapi import APIRouter, File, Form, Request, UploadFile

from ane.models.tortoise.voices import cloning_notes
from ane.server.errors import RefusedError
from ane.server.jobs import Job
from ane.server.schemas import NewVoice
from ane.server.settings import NEW_VOICES, Limits
from ane.server.speech_service import Service
from ane.server.waiting import while_connected
from ane.system import paths
from ane.system.child_process import ChildProcess
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.voices import check_voice_name, save_voice

CLIP_SECONDS = 600.0  # of a clip of a voice, which uses 6 s of it
CLIP_RATE = 44100  # Hz at most; the encoders take 24 kHz or less
MIN_CONSENT = 20  # characters of a statement of consent
Recording = Annotated[UploadFile, File(description="a recording in any format that FFmpeg reads")]


def voice_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/audio", tags=["files"])
    adding = asyncio.Semaphore(NEW_VOICES)  # from decoding to the end
    limits = service.settings.limits

    async def store_voice(file: UploadFile, model: str, name: str, consent: str) -> list[str]:
        async with adding:
            audio, rate = await decode_upload(file, limits, CLIP_SECONDS, CLIP_RATE)
            return await service.run("voice", voice_work(service, model, name, audio, rate, consent))

    @router.post("/voices", status_code=201)
    async def add_voice(
        request: Request,
        name: Annotated[str, Form(max_length=100, description="of the new voice")],
        audio_sample: Recording,
        consent: Annotated[str, Form(max_length=10_000, description="a sentence which says that the speaker agrees")],
        model: Annotated[str, Form(max_length=200, description="whose voice it is; none: the server's first")] = "",
    ) -> NewVoice:
        """Make a voice of a clip. ``consent`` states that the speaker agrees, in words."""
        await check_form(request, "name", "audio_sample", "consent", "model")
        if not service.settings.add_voices:
            raise RefusedError("this server takes no voices: it was started without --add-voices", 403)
        if len(consent.strip()) < MIN_CONSENT:
            raise RefusedError("consent must state, in a sentence, that the speaker agrees to this use", 400, "consent")
        check_voice_name(name)
        service.catalogue.check_new_name(name)
        wanted = service.catalogue.model(model) if model else service.settings.models[0]
        notes = await while_connected(store_voice(audio_sample, wanted, name, consent.strip()), request)
        service.catalogue.forget_voices()
        return NewVoice(id=name, name=name, created_at=round(time.time()), notes=notes)

    return router


async def check_form(request: Request, *known: str) -> None:
    """Raise RefusedError for a field of a form that is none of ``known``: it would have no effect."""
    unknown = [name for name in await request.form() if name not in known]
    if unknown:
        raise RefusedError(f"{unknown[0]} is unknown: leave it out", 400, unknown[0], "unknown_parameter")


def voice_work(service: Service, model: str, name: str, audio: np.ndarray, rate: int, consent: str) -> Any:
    """Work that encodes a clip and stores the voice, and puts warnings about it. It does not replace one."""

    def work(job: Job) -> None:
        with service.models.using(model) as served:
            job.wait()
            if not served.model.has_latents:
                raise served.model.lacks("voices made of clips")
            if name in service.catalogue.voices(model) or (paths.voices_dir() / f"{name}.safetensors").exists():
                raise RefusedError(f"there is a voice {name} already", 400, "name")
            with tempfile.TemporaryDirectory() as folder:
                clip = Path(folder) / f"{name}.wav"
                soundfile.write(clip, audio, rate, "FLOAT")
                try:
                    voice = served.speaker.prepare(voice=str(clip))
                except UserError as error:  # without the path of this machine
                    raise RefusedError(str(error).replace(f"{clip}: ", ""), 400, "audio_sample") from error
            if job.gone:
                return
            destination = paths.voices_dir() / f"{name}.safetensors"
            destination.parent.mkdir(parents=True, exist_ok=True)
            with replacing(destination.with_suffix(".consent.txt"), lasting=True) as file:  # no voice without it
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
            "ane.server.upload_decoder",
            (stored.name, str(seconds), str(rate)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            memory=limits.decoder_memory,
            cpu_seconds=round(limits.decoder_seconds),
            file_bytes=0,
        )
        reading = asyncio.ensure_future(asyncio.to_thread(process.communicate))
        try:
            async with asyncio.timeout(limits.decoder_seconds):
                output, _ = await asyncio.shield(reading)
        except TimeoutError:
            raise RefusedError(
                f"the file takes more than {limits.decoder_seconds:g} s to decode", 400, "file"
            ) from None
        finally:
            process.kill()  # has no effect when it has ended
            await reading
    line, _, samples = output.partition(b"\n")
    answer = json.loads(line) if process.returncode == 0 else {"error": "the file cannot be decoded within the limits"}
    if "error" in answer:
        raise RefusedError(answer["error"], 400, "file")
    return np.frombuffer(samples, np.float32), answer["rate"]  # type: ignore[return-value]
