"""Test that programs which people use speak through the server unmodified."""

import base64
import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.node_packages import node_modules
from tests.server.server_process import PATIENCE, ServerProcess
from tests.server.speech_requests import AUTHORIZED, END, LONG, TEXT, TOKEN, events, post, send, sound_of, web_socket

pytest.importorskip("fastapi", reason="needs the extra server")

from wyoming import tts
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.info import Describe, Info

av = pytest.importorskip("av", reason="needs the extra server")


def openai_client(server: ServerProcess) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key=TOKEN, max_retries=0)


@pytest.mark.parametrize("fields", [{}, {"model": "demo", "preset": "fastest", "seed": 1}])
def test_events_state_when_each_word_is_heard(server, fields):
    *found, done = events(server, word_times=True, **fields)
    words = [word for event in found if event["type"] == "speech.audio.words" for word in event["words"]]
    assert [word["word"] for word in words] == TEXT.split()
    assert all(word["start"] < word["end"] for word in words)
    assert done["type"] == "speech.audio.done"
    assert {event["type"] for event in events(server, **fields)} == {"speech.audio.delta", "speech.audio.done"}


@pytest.mark.parametrize(("form", "rate"), [("wav", 24000), ("flac", 24000), ("mp3", 24000), ("opus", 48000)])
def test_the_openai_client_streams_a_file_that_can_be_read(server, form, rate):
    client = openai_client(server)
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="default", input=TEXT, response_format=form
    ) as response:
        pieces = list(response.iter_bytes())
    with av.open(io.BytesIO(b"".join(pieces))) as container:
        assert container.streams.audio[0].rate == rate
        audio = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    assert 3 < len(audio) / rate < 7
    assert np.ptp(audio) > (0.2 if audio.dtype == np.float32 else 6000)


def test_the_openai_client_receives_events_with_the_same_sound_and_the_usage(server):
    client = openai_client(server)
    whole = client.audio.speech.create(model="heart", voice="default", input=TEXT, response_format="pcm").content
    with client.audio.speech.with_streaming_response.create(
        model="heart", voice="default", input=TEXT, response_format="pcm", stream_format="sse"
    ) as response:
        *deltas, done = (json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line)
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == whole
    assert done["type"] == "speech.audio.done"
    assert done["usage"]["input_tokens"] == len(TEXT)
    assert done["usage"]["output_tokens"] > 100


def test_a_client_is_told_of_letters_that_the_voice_does_not_have(server):
    note = "Cyrillic letters are read as the English ones nearest to them: the voice speaks English"
    with openai_client(server).audio.speech.with_streaming_response.create(
        model="heart", voice="default", input="Да.", response_format="pcm", stream_format="sse"
    ) as response:
        done = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line][-1]
    assert (response.headers["X-Notes"], done["notes"]) == (note, [note])
    assert float(response.headers["Server-Timing"].partition("dur=")[2].partition(",")[0]) >= 0
    assert heard(server, "Да.")[1][-1]["notes"] == [note]


def test_the_openai_client_gets_its_own_errors(server):
    openai = pytest.importorskip("openai")
    client = openai_client(server)
    with pytest.raises(openai.NotFoundError, match="no model is named 'other' here"):
        client.audio.speech.create(model="other", voice="default", input=TEXT)
    with pytest.raises(openai.BadRequestError, match="no voice is set for OpenAI's name 'nova'"):
        client.audio.speech.create(model="demo", voice="nova", input=TEXT)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server.address}/v1", api_key="wrong", max_retries=0).models.list()
    assert [model.id for model in client.models.list()] == ["heart", "demo"]


NODE_CLIENT = "openai@7"  # from npm, under the Apache-2.0 licence
NODE_PROGRAM = Path(__file__).with_name("openai_client.js")


@pytest.fixture(scope="module")
def node_path(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    """NODE_PATH with OpenAI's client for Node."""
    return str(node_modules(pytestconfig, tmp_path_factory, NODE_CLIENT))


def test_the_node_client_streams(server, node_path):
    found = subprocess.run(
        ["node", "-e", NODE_PROGRAM.read_text(), server.address, TOKEN, TEXT],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | {"NODE_PATH": node_path},
    )
    answer = json.loads(found.stdout)
    assert answer["status"] == 200
    assert answer["pieces"] > 1
    assert answer["bytes"] == answer["events_bytes"] == len(post(server)[1])
    assert answer["models"] == ["heart", "demo"]
    assert answer["error"] == ["NotFoundError", 404]


def test_curl_receives_sound_while_it_is_made(server):
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    headers = ("-H", f"Authorization: {AUTHORIZED}", "-H", "Content-Type: application/json")
    shown = ("-sN", "-o", os.devnull, "-w", "%{time_starttransfer} %{time_total} %{http_code}")
    body = json.dumps({"model": "heart", "input": LONG, "response_format": "pcm"})
    command = ["curl", *shown, *headers, "-d", body, f"{server.address}/v1/audio/speech"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    first, total, status = map(float, found.stdout.split())
    assert status == 200
    assert first < 0.8 * total  # the first sound comes well before the end


async def test_a_wyoming_client_hears_a_text_and_a_text_in_chunks(server):
    async def sound(client: AsyncTcpClient) -> tuple[int, bytes]:
        data, rate = b"", 0
        while not AudioStop.is_type((event := await client.read_event()).type):
            if AudioStart.is_type(event.type):
                rate = AudioStart.from_event(event).rate
            elif AudioChunk.is_type(event.type):
                data += AudioChunk.from_event(event).audio
        return rate, data

    async with AsyncTcpClient("127.0.0.1", server.wyoming_port) as client:
        await client.write_event(Describe().event())
        [program] = Info.from_event(await client.read_event()).tts
        assert program.supports_synthesize_streaming
        assert "demo/heart" in [voice.name for voice in program.voices]
        await client.write_event(tts.Synthesize(TEXT).event())
        rate, data = await sound(client)
        assert (rate, data) == (24000, sound_of(post(server)[1]).tobytes())
        await client.write_event(tts.SynthesizeStart().event())
        for piece in (TEXT[:10], TEXT[10:33], TEXT[33:]):
            await client.write_event(tts.SynthesizeChunk(piece).event())
        await client.write_event(tts.Synthesize(TEXT).event())  # Home Assistant sends this event too
        await client.write_event(tts.SynthesizeStop().event())
        rate, data = await sound(client)
        assert len(data) > 2 * rate
        assert tts.SynthesizeStopped.is_type((await client.read_event()).type)
        await client.write_event(tts.Synthesize(TEXT, voice=tts.SynthesizeVoice("demo/nobody")).event())
        error = await client.read_event()
        assert error.type == "error"
        assert "no voice 'nobody'" in error.data["text"]


def test_a_websocket_hears_the_first_clause_before_the_last_is_written(server):
    with web_socket(server, "The wind blew over the hill. And then ") as socket_:
        sound = socket_.recv(timeout=PATIENCE)
        assert isinstance(sound, bytes)
        send(socket_, "it rained.", END)
        *pieces, done = list(socket_)
    assert json.loads(done)["type"] == "done"
    assert json.loads(done)["usage"]["input_tokens"] == 48
    assert len(sound) + sum(map(len, pieces)) > 2 * 24000 * 2
    with pytest.raises(Exception, match="401"), web_socket(server, token="wrong"):
        pass


def heard(server: ServerProcess, *texts: str, **start: Any) -> tuple[bytes, list[dict[str, Any]]]:
    """The sound and the events of a WebSocket that is sent these texts."""
    with web_socket(server, *texts, **start) as socket_:
        send(socket_, END)
        messages = list(socket_)
    return (
        b"".join(message for message in messages if isinstance(message, bytes)),
        [json.loads(message) for message in messages if isinstance(message, str)],
    )


def test_a_websocket_states_when_the_words_of_all_texts_are_heard(server):
    sound, [*found, done] = heard(server, "The wind blew over the hill. ", "It rained.", word_times=True)
    assert done["type"] == "done"
    assert {event["type"] for event in found} == {"speech.audio.words"}
    words = [word for event in found for word in event["words"]]
    assert " ".join(word["word"] for word in words) == "The wind blew over the hill. It rained."
    starts, seconds = [word["start"] for word in words], len(sound) / 2 / 24000
    assert starts == sorted(starts)
    assert seconds - 2 < starts[-1] < seconds  # times count from the start of the whole sound, not of the last text


def test_the_sound_that_a_websocket_sends_in_a_format_with_frames_has_its_end(server):
    samples, frames = (heard(server, TEXT, response_format=form)[0] for form in ("pcm", "flac"))
    with av.open(io.BytesIO(frames)) as file:
        assert len(samples) // 2 == sum(frame.samples for frame in file.decode(audio=0)) > 24000


def test_a_text_in_pieces_has_a_limit_of_its_own(server):
    with web_socket(server, *["…" * 4000] * 26) as socket_:
        error = json.loads(socket_.recv(timeout=PATIENCE))
    assert error["error"]["message"] == "the text of a stream must have at most 100000 characters"


def test_a_message_of_text_without_its_text_is_refused(server):
    with web_socket(server, {"type": "text", "txt": "Hello."}) as socket_:
        error = json.loads(socket_.recv(timeout=PATIENCE))["error"]
    assert error["message"] == "txt is unknown: leave it out"
    with web_socket(server, {"type": "text"}) as socket_:
        error = json.loads(socket_.recv(timeout=PATIENCE))["error"]
    assert error["message"] == 'a message of the type "text" must have the field text'
