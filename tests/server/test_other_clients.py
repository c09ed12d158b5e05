"""Test requests as the clients of other projects send them, and answers as these clients read them."""

import asyncio
import gc
import io
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.server import test_uploads
from tests.server.server_process import PATIENCE, ServerProcess
from tests.server.speech_requests import TEXT, sound_of
from tests.server.test_uploads import CONSENT, FORM, form_with, home, sound_file  # noqa: F401  a fixture

pytest.importorskip("fastapi", reason="needs the extra server: pip install '.[server]'")
openai = pytest.importorskip("openai", reason="needs OpenAI's client: pip install openai")

from ane.server import app  # noqa: E402 (all need the extra)
from ane.server.app import encoded  # noqa: E402
from ane.server.encoders import FileEncoder  # noqa: E402
from ane.server.speech import SoundPiece  # noqa: E402
from ane.system.errors import UserError  # noqa: E402

add_voice = partial(test_uploads.add_voice, model="demo")
FLAGS = "--models heart,demo --preload heart --transcriber ear --add-voices --map-voice nova=michael"


@pytest.fixture(scope="module")
def server(home: Path, preloaded_server: Path) -> Iterator[ServerProcess]:  # noqa: F811
    with ServerProcess(*FLAGS.split(), home=home, preloaded=preloaded_server) as running:
        yield running.wait_until_ready()


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Any:
    """OpenAI's client, which refuses an answer that has not the types of its API."""
    return openai.OpenAI(
        base_url=f"{server.address}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    )


# OpenAI's client, with its types


def test_a_transcription_has_the_types_of_openais_client(client):
    answer = client.audio.transcriptions.create(
        model="whisper-1",
        file=sound_file(),
        temperature=1,
        language="en-US",
        response_format="verbose_json",
        timestamp_granularities=["word"],
    )
    assert answer.language == "english"
    seeks = [segment.seek for segment in answer.segments]
    assert seeks[0] == 0
    assert seeks == sorted(seeks)


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_transcription_is_streamed_while_it_is_made(client, form):
    fields = {"model": "whisper-1", "temperature": 1, "language": "English", "prompt": "Kubrick"}
    *deltas, done = client.audio.transcriptions.create(
        file=sound_file(35.0), stream=True, response_format=form, **fields
    )
    whole = client.audio.transcriptions.create(file=sound_file(35.0), **fields)
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert "".join(event.delta for event in deltas).strip() == done.text == whole.text
    assert len(deltas) > 1


def test_what_is_wrong_with_a_streamed_transcription_is_told_with_its_status(client):
    with pytest.raises(openai.BadRequestError, match="not sound"):
        client.audio.transcriptions.create(model="ear", file=io.BytesIO(b"no sound at all" * 100), stream=True)
    with pytest.raises(openai.BadRequestError, match="stream has no effect with response_format srt"):
        client.audio.transcriptions.create(model="ear", file=sound_file(), stream=True, response_format="srt")
    with pytest.raises(openai.BadRequestError, match="language must be one of"):
        client.audio.transcriptions.create(model="ear", file=sound_file(), stream=True, language="Klingon")


@pytest.mark.parametrize("path", ["transcriptions", "translations", "voices"])
def test_a_field_of_a_form_that_has_no_effect_is_refused(server, path):
    field = "audio_sample" if path == "voices" else "file"
    fields = {"model": "ear", "name": "ann", "consent": CONSENT, "chunking_strategy": "auto"}
    refused = server.ask(f"/v1/audio/{path}", form_with(sound_file(), field, **fields), Content_Type=FORM)
    assert (refused.status, refused.error["code"]) == (400, "unknown_parameter")
    assert refused.error["param"] in ("name", "chunking_strategy")


def test_openais_names_can_be_looked_up(client):
    assert client.models.retrieve("tts-1").id == "heart"
    assert client.models.retrieve("whisper-1").id == client.models.retrieve("ear").id == "ear"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


# Open WebUI: get_available_voices and get_available_models of backend/open_webui/routers/audio.py


def test_open_webui_lists_the_voices_and_the_models(server):
    data = server.ask("/v1/audio/voices").json
    assert {voice["id"]: voice["name"] for voice in data.get("voices", [])} == {
        voice["id"]: voice["id"] for voice in data["data"]
    }
    assert {"default", "heart", "michael"} <= {voice["id"] for voice in data["voices"]}
    assert [model["id"] for model in server.ask("/v1/audio/models").json.get("models", [])] == ["heart", "demo"]


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "tts-1", "input": TEXT, "voice": "alloy"},  # Open WebUI
        {"model": "tts-1", "input": TEXT, "voice": "alloy", "response_format": "mp3", "speed": 1},  # SillyTavern
        {"model": "tts-1", "input": TEXT},
    ],
    ids=["open-webui", "silly-tavern", "libre-chat"],
)  # LibreChat without voices
def test_chat_programs_are_spoken_to_as_they_ask(server, fields):
    """As of routers/audio.py, tts/openai-compatible.js and TTSService.js of these projects."""
    spoken = server.speak(**fields)
    assert spoken.headers["Content-Type"] == "audio/mpeg"
    assert soundfile.info(io.BytesIO(spoken.data)).duration > 3


# Kokoro-FastAPI's clients


def test_the_fields_of_kokoro_fastapis_clients_are_taken(server):
    plain = server.speak(model="heart", input=TEXT, response_format="wav")
    more = {"voice": "alloy", "response_format": "WAV", "speed": None, "stream": True, "lang_code": "a"}
    assert server.speak(model="tts-1", input=TEXT, **more).data == plain.data
    assert plain.status == 200
    assert server.speak(model="tts-1", input=TEXT, lang_code="ja").status == 400


@pytest.mark.parametrize("form", ["wav", "flac", "mp3", "opus", "aac", "pcm"])
def test_a_finished_file_states_its_length(server, form):
    _, finished, headers = server.speak(model="heart", input=TEXT, response_format=form, stream=False)
    assert int(headers["Content-Length"]) == len(finished)
    if form == "wav":  # the lengths after RIFF and after data
        assert struct.unpack_from("<4xI32xI", finished) == (len(finished) - 8, len(finished) - 44)
    samples = sound_of(server.speak(model="heart", input=TEXT, response_format="wav").data)
    if form == "pcm":
        assert finished == server.speak(model="heart", input=TEXT, response_format="pcm").data
    if form in ("wav", "flac"):
        with soundfile.SoundFile(io.BytesIO(finished)) as file:
            assert file.frames == len(samples)
            np.testing.assert_array_equal(file.read(dtype="int16"), samples)
    if form in ("mp3", "opus"):
        rate = soundfile.info(io.BytesIO(finished)).samplerate
        assert soundfile.info(io.BytesIO(finished)).frames / rate == pytest.approx(len(samples) / 24000, abs=0.1)


def test_ffmpeg_is_freed_if_the_speech_of_a_finished_file_fails(monkeypatch):
    encoders = []

    async def speech() -> AsyncIterator[SoundPiece]:
        raise UserError("the text is wrong")
        yield

    def encoder(*arguments: Any) -> FileEncoder:
        encoders.append(FileEncoder(*arguments))
        return encoders[0]

    monkeypatch.setattr(app, "FileEncoder", encoder)
    first = SoundPiece(np.zeros(24000, np.float32), 24000)
    with pytest.raises(UserError, match="the text is wrong"):
        asyncio.run(app.finished_sound(speech(), first, "mp3"))
    assert encoders[0].file.closed
    assert encoders[0]._encoder._encoder is None


# The actions of one client do not affect others


@pytest.mark.parametrize("name", ["alloy", "Alloy", "default", "nova", "marin"])
def test_a_new_voice_cannot_take_a_name_that_others_use(server, name):
    """With --add-voices, whoever adds "alloy" would change what all others hear under it."""
    assert add_voice(server, name).error["param"] == "name"


def test_the_name_of_a_new_voice_fits_a_file_system(server, tmp_path):
    error = add_voice(server, "语" * 90).error
    assert (error["type"], "270 bytes" in error["message"]) == ("invalid_request_error", True)
    assert add_voice(server, "语" * 60).json["id"] == "语" * 60


def test_the_error_of_a_clip_names_no_path_of_the_server(server):
    error = add_voice(server, "ann", seconds=0.3).error
    assert (error["param"], error["message"][:12]) == ("audio_sample", "lasts 0.300 ")


class SpokenPieces:
    """Ten seconds of sound, and whether it was closed."""

    closed = False

    def __init__(self) -> None:
        self._left = 100

    def __aiter__(self) -> "SpokenPieces":
        return self

    async def __anext__(self) -> SoundPiece:
        self._left -= 1
        if not self._left:
            raise StopAsyncIteration
        return SoundPiece(np.full(2400, 0.1, np.float32), 24000)

    def close(self) -> None:
        self.closed = True


def threads_of_encoders() -> int:
    """Threads of this process that Python does not know."""
    return len(list(Path("/proc/self/task").iterdir())) - threading.active_count()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads on Linux: run it there")
@pytest.mark.parametrize("pieces", [3, 1000])
async def test_the_threads_of_an_encoder_end_with_its_request(pieces: int) -> None:
    """Of one that is answered, and of one whose client leaves in the middle; not when memory is collected at last."""
    gc.collect()
    gc.disable()
    try:
        before, responses = threads_of_encoders(), [SpokenPieces() for _ in range(12)]
        for response in responses:
            async with aclosing(encoded(response, await anext(response), "flac")) as parts:
                for _ in range(pieces):
                    if await anext(parts, None) is None:
                        break
        async with asyncio.timeout(PATIENCE):
            while threads_of_encoders() > before:
                await asyncio.sleep(0.05)
        assert all(response.closed for response in responses)
    finally:
        gc.enable()
