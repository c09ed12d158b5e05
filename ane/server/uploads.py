"""Decode the files that clients send, within limits, and add and delete voices."""

import asyncio
import json
import subprocess
import tempfile
import time
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, File, Form, Request, UploadFile

from ane.models.tortoise.voices import cloning_notes
from ane.server.errors import FaultError, RefusedError, no_such_voice
from ane.server.jobs import Job
from ane.server.schemas import DeletedVoice, NewVoice
from ane.server.settings import NEW_VOICES, Limits
from ane.server.speech_service import Service
from ane.server.waiting import while_connected
from ane.system.child_process import ChildProcess
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.voices import check_voice_name, consent_file, save_voice, stored_voice, voice_names

CLIP_SECONDS = 600.0  # maximum length of a clip for a voice, which uses 6 s of the clip
CLIP_RATE = 44100  # maximum Hz of a clip. The encoders take 24 kHz or less
MIN_CONSENT = 20  # minimum characters in a statement of consent
Recording = Annotated[UploadFile, File(description="a recording in any format that FFmpeg reads")]


def voice_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/audio", tags=["files"])
    # a new voice holds this semaphore from the beginning of decoding to the end, and a deletion holds it too
    adding = asyncio.Semaphore(NEW_VOICES)
    limits = service.settings.limits

    async def store_voice(file: UploadFile, model: str, name: str, consent: str) -> list[str]:
        async with adding:
            audio, rate = await decode_upload(file, limits, CLIP_SECONDS, CLIP_RATE, "audio_sample")
            return await service.run("voice", voice_work(service, model, name, audio, rate, consent))

    @router.post("/voices", status_code=201)
    async def add_voice(
        request: Request,
        name: Annotated[str, Form(max_length=100, description="name of the new voice")],
        audio_sample: Recording,
        consent: Annotated[str, Form(max_length=10_000, description="a sentence that says that the speaker agrees")],
        model: Annotated[
            str, Form(max_length=200, description="model for the voice (default: the first model that makes voices)")
        ] = "",
    ) -> NewVoice:
        """Make a voice from a clip. ``consent`` must be a sentence that says that the speaker agrees."""
        await check_form(request, "name", "audio_sample", "consent", "model")
        check_allowed(service)
        if len(consent.strip()) < MIN_CONSENT:
            raise RefusedError("consent must say, in a sentence, that the speaker agrees to this use", 400, "consent")
        check_voice_name(name)
        service.catalogue.check_new_name(name)
        wanted = service.catalogue.cloner(model)
        notes = await while_connected(store_voice(audio_sample, wanted, name, consent.strip()), request)
        return NewVoice(id=name, name=name, created_at=round(time.time()), notes=notes)

    @router.delete("/voices/{voice}")
    async def delete_voice(voice: str) -> DeletedVoice:
        """Delete a voice that a client made from a clip, and the consent of its speaker."""
        check_allowed(service)
        async with adding:
            await asyncio.to_thread(remove_voice, service, voice)
        service.catalogue.forget_voices()
        return DeletedVoice(id=voice)

    return router


def remove_voice(service: Service, name: str) -> None:
    """Delete a voice that a client made, and the consent of its speaker.

    The consent shows that a client made the voice. The function also deletes the consent of a voice that is gone.

    Raises:
        RefusedError: No client made the voice, or there is no such voice.
    """
    voice = stored_voice(name)
    try:
        check_voice_name(name)
        from_client = consent_file(voice).exists() and voice.exists()
    except UserError:
        from_client = False
    else:
        files = (voice, consent_file(voice)) if from_client else (consent_file(voice),)
        for file in files:  # the consent last, so that no voice exists without consent
            file.unlink(missing_ok=True)
    service.catalogue.forget_voices()  # the owner may have removed the voice
    service.models.forget_voice(name)
    if not from_client and service.catalogue.has_voice(name):
        raise RefusedError(f"no client made the voice {name}, so no client can delete it", 403, "voice")
    if not from_client:
        raise no_such_voice(name)


def check_allowed(service: Service) -> None:
    """Raise RefusedError if clients may not add and delete voices."""
    if not service.settings.add_voices:
        raise RefusedError(
            "this server takes no new voices and deletes none: start it with --add-voices to allow both", 403
        )


async def check_form(request: Request, *known: str) -> None:
    """Raise RefusedError if a form has a field that is not in ``known``, because the client may have misspelled it."""
    unknown = [name for name in await request.form() if name not in known]
    if unknown:
        raise RefusedError(f"{unknown[0]} is unknown: leave it out", 400, unknown[0], "unknown_parameter")


def voice_work(service: Service, model: str, name: str, audio: np.ndarray, rate: int, consent: str) -> Any:
    """Make the work that stores a clip as a new voice, and gives its job warnings. The work never replaces a voice."""

    def work(job: Job) -> None:
        with service.models.using(model) as served:
            job.wait()
            destination = stored_voice(name)
            if name in voice_names(served.model) or destination.exists():
                raise RefusedError(f"a voice {name} exists already: choose another name", 400, "name")
            try:  # unlike for a clip in a file, the latents are not cached, so that no copy stays of a deleted voice
                voice = served.speaker.voice_of_clips(audio, rate, name)
            except UserError as error:
                raise RefusedError(str(error).removeprefix("clip 1: "), 400, "audio_sample") from error
            if job.gone:
                return
            destination.parent.mkdir(parents=True, exist_ok=True)
            try:
                # the consent is written before the voice, so that no voice exists without consent
                with replacing(consent_file(destination), lasting=True) as file:
                    file.touch(0o600)
                    file.write_text(f"{consent}\n", encoding="utf-8")
                save_voice(destination, voice)
            except BaseException as error:
                consent_file(destination).unlink(missing_ok=True)
                if isinstance(error, UserError):
                    raise FaultError(f"the server cannot store the voice {name!r}", error) from error
                raise
            service.catalogue.forget_voices()  # here, because the client may have left
            job.put(cloning_notes(served.model, voice))

    return work


async def decode_upload(
    file: UploadFile, limits: Limits, seconds: float, rate: int, field: str = "file"
) -> tuple[np.ndarray, int]:
    """Decode an uploaded file in a separate process (``upload_decoder``).

    Args:
        file: The uploaded file.
        limits: Limits of the server.
        seconds: Maximum seconds of sound.
        rate: Maximum sample rate to return, in Hz.
        field: Name of the form's field that has the file, for errors.

    Returns:
        The sound, (S,) float32, and its sample rate in Hz.

    Raises:
        RefusedError: The file is not sound, is too long, or takes too much time or memory to decode.
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
            raise RefusedError(f"the file takes more than {limits.decoder_seconds:g} s to decode", 400, field) from None
        finally:
            process.kill()  # does nothing if the process has ended
            await reading
    line, _, samples = output.partition(b"\n")
    answer = json.loads(line) if process.returncode == 0 else {"error": "the file cannot be decoded within the limits"}
    if "error" in answer:
        raise RefusedError(answer["error"], 400, field)
    return np.frombuffer(samples, np.float32), answer["rate"]  # type: ignore[return-value]
