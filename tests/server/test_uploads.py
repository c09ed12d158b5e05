"""Test files from clients: recordings are transcribed, clips become voices, and malicious files do no harm."""

import io
import json
import os
import shutil
import subprocess
import threading
import time
import wave
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import soundfile
from starlette.testclient import TestClient

from tests.imported import imported
from tests.models.whisper.random_whisper import write_openai
from tests.server.server_process import HttpAnswer, ServerProcess, wait_until
from tests.server.speech_requests import service_of

pytest.importorskip("fastapi", reason="needs the extra server")
openai = pytest.importorskip("openai", reason="needs OpenAI's client")

from ane.bundles import demo_bundle  # noqa: E402
from ane.server import upload_decoder, uploads  # noqa: E402 (all need the extra)
from ane.server.app import make_app  # noqa: E402
from ane.server.errors import FaultError, RefusedError  # noqa: E402
from ane.server.speech_service import Service  # noqa: E402
from ane.system.errors import UserError  # noqa: E402
from ane.text import Lexicon, LexiconEntry  # noqa: E402

FORM = "multipart/form-data; boundary=x"  # the boundary of ``form_with``
VOICES = "/v1/audio/voices"
CONSENT = "I agree that this recording of mine is used to make speech."


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a Whisper bundle of random weights, a voice of the owner, and a folder of clips."""
    folder = tmp_path_factory.mktemp("home")
    imported(write_openai(tmp_path_factory.mktemp("whisper")), folder / "bundles" / "ear")
    (folder / "voices" / "clips").mkdir(parents=True)
    (folder / "voices" / "clips" / "a.wav").write_bytes(sound_file(6.0).read())
    shutil.copy(demo_bundle() / "voices" / "michael.safetensors", folder / "voices" / "owned.safetensors")
    return folder


@pytest.fixture(scope="module")
def server(home: Path, preloaded_server: Path) -> Iterator[ServerProcess]:
    flags = "--models heart,demo --transcriber ear --add-voices --clip-seconds 40 --upload 8"
    with ServerProcess(*flags.split(), home=home, preloaded=preloaded_server) as running:
        yield running.wait_until_ready()


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Any:
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)


def noise(seconds: float, rate: int = 16000) -> np.ndarray:
    return (0.2 * np.random.default_rng(1).standard_normal(round(seconds * rate))).clip(-1, 1).astype(np.float32)


def sound_file(seconds: float = 1.0, form: str = "WAV") -> io.BytesIO:
    file = io.BytesIO()
    soundfile.write(file, noise(seconds), 16000, format=form)
    file.seek(0)
    file.name = f"clip.{form.lower()}"
    return file


def test_a_recording_is_transcribed_as_by_the_command(client, home):
    from ane.audio.reader import read_audio
    from ane.backends import load_backend
    from ane.bundles.bundle import Bundle
    from ane.models.whisper.transcription import Transcriber, TranscriptionOptions

    model = Bundle(home / "bundles" / "ear")
    (home / "clip.wav").write_bytes(sound_file().read())
    options = TranscriptionOptions(temperatures=(1.0,))  # with random weights, lower temperatures end late
    expected = Transcriber(model, load_backend("auto", model)).transcribe(*read_audio(home / "clip.wav"), options)
    answer = client.audio.transcriptions.create(
        model="whisper-1", file=sound_file(), temperature=1, response_format="verbose_json"
    )
    assert answer.text == expected.text.strip()
    assert answer.duration == pytest.approx(1.0)
    assert [segment.tokens for segment in answer.segments] == [list(one.tokens) for one in expected.segments]
    subtitles = client.audio.transcriptions.create(
        model="ear", file=sound_file(form="FLAC"), temperature=1, response_format="srt"
    )
    assert subtitles.count("-->") == len(expected.segments)


def riff_of_lies() -> io.BytesIO:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 16000, 0, "NONE", ""))
        writer.writeframes(b"\0" * 1000)
    data = bytearray(file.getvalue())
    data[40:44] = b"\0\0\x10\0"
    return io.BytesIO(bytes(data))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (io.BytesIO(b""), "empty"),
        (io.BytesIO(b"no sound at all" * 100), "not sound"),
        (riff_of_lies(), "ends"),
        (io.BytesIO(b"RIFF" + bytes(range(256)) * 8), "."),
        (io.BytesIO(b"#EXTM3U\nfile:///etc/passwd\n" * 5), "not sound"),
        (io.BytesIO(b"ffconcat version 1.0\nfile '/etc/passwd'\n"), "not sound"),
    ],
)
def test_a_file_that_is_no_sound_is_refused(client, file, message):
    file.seek(0)
    file.name = "clip.wav"
    with pytest.raises(openai.BadRequestError, match=message) as found:
        client.audio.transcriptions.create(model="ear", file=file)
    assert "/tmp" not in str(found.value)


def test_recordings_that_are_too_long_or_too_large_are_refused(client):
    with pytest.raises(openai.BadRequestError, match="lasts 1 minutes"):
        client.audio.transcriptions.create(model="ear", file=sound_file(60.0))
    huge = io.BytesIO(b"\0" * (9 << 20))
    huge.name = "clip.wav"
    with pytest.raises((openai.APIStatusError, openai.APIConnectionError)) as found:
        client.audio.transcriptions.create(model="ear", file=huge)
    assert getattr(found.value, "status_code", 413) == 413


def form_with(file: io.BytesIO, field: str, **fields: str) -> bytes:
    """A form with a file in this field."""
    parts = [f'--x\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n' for key, value in fields.items()]
    head = f'--x\r\nContent-Disposition: form-data; name="{field}"; filename="a.wav"\r\n\r\n'
    return "".join([*parts, head]).encode() + file.read() + b"\r\n--x--\r\n"


def test_transcriptions_begin_two_at_a_time_and_end_when_their_clients_leave(server):
    body = form_with(sound_file(39.0), "file", model="ear")
    active = []
    with ExitStack() as stack:
        for _ in range(4):
            path, length = "/v1/audio/transcriptions", str(len(body))
            stack.enter_context(server.begin(path, body, Content_Type=FORM, Content_Length=length))
        wait_until(lambda: server.metric("ane_active_requests") == 2)
        for _ in range(10):
            active.append(server.metric("ane_active_requests"))
            time.sleep(0.05)
    assert max(active) == 2, "the sound of those that wait is not in memory"
    wait_until(lambda: server.metric("ane_active_requests") == 0)
    assert b'ane_requests_total{kind="transcribe",outcome="client gone"}' in server.ask("/metrics").data


@pytest.fixture
def decoded(capfdbinary) -> Callable[..., tuple[dict[str, Any], np.ndarray]]:
    """What the program that decodes uploads answers."""

    def decode(file: Path, rate: int = 44100) -> tuple[dict[str, Any], np.ndarray]:
        upload_decoder.main([str(file), "60", str(rate)])
        line, _, samples = capfdbinary.readouterr().out.partition(b"\n")
        return json.loads(line), np.frombuffer(samples, np.float32)

    return decode


@pytest.mark.parametrize(("rate", "expected"), [(96000, 44100), (8000, 8000)])
def test_uploads_are_decoded_at_a_limited_rate(decoded, tmp_path, rate, expected):
    soundfile.write(tmp_path / "clip.wav", noise(1.0, rate), rate)
    answer, audio = decoded(tmp_path / "clip.wav")
    assert answer == {"rate": expected}
    assert len(audio) == expected


def test_an_upload_that_names_another_file_of_its_folder_does_not_open_it(decoded, tmp_path):
    soundfile.write(tmp_path / "other.wav", noise(1.0), 16000)
    (tmp_path / "clip.wav").write_text("ffconcat version 1.0\nfile other.wav\n")
    answer, audio = decoded(tmp_path / "clip.wav")
    assert "not sound" in answer.get("error", "")
    assert not len(audio)


def write_tracks(path: Path, container: str, codec: str, *tracks: np.ndarray) -> None:
    """Write a container with tracks of a second."""
    av = pytest.importorskip("av", reason="needs the extra server")
    with av.open(str(path), "w", format=container) as writer:
        streams = [writer.add_stream(codec, rate=len(track), layout="mono") for track in tracks]
        for stream, track in zip(streams, tracks, strict=True):
            stream.bit_rate = 64000
            frame = av.AudioFrame.from_ndarray((20000 * track[None]).astype(np.int16), "s16", "mono")
            frame.rate = stream.rate
            writer.mux([*stream.encode(frame), *stream.encode(None)])


@pytest.mark.parametrize(
    ("container", "codec"), [("mp4", "aac"), ("webm", "libopus"), ("adts", "aac"), ("asf", "wmav2")]
)
def test_containers_that_libsndfile_does_not_read_are_decoded(decoded, tmp_path, container, codec):
    write_tracks(tmp_path / "clip", container, codec, noise(1.0, 48000))
    answer, audio = decoded(tmp_path / "clip", 48000)
    assert answer == {"rate": 48000}
    assert len(audio) == pytest.approx(48000, rel=0.1)


def test_of_several_tracks_the_first_is_decoded(tmp_path):
    write_tracks(tmp_path / "clip", "matroska", "pcm_s16le", noise(1.0, 8000), noise(1.0, 16000))
    audio, rate = upload_decoder.read_upload(tmp_path / "clip", 9.0)
    assert (len(audio), rate) == (8000, 8000)


def add_voice(
    server: ServerProcess, name: str, consent: str = CONSENT, seconds: float = 6.0, **more: str
) -> HttpAnswer:
    body = form_with(sound_file(seconds), "audio_sample", name=name, consent=consent, **more)
    return server.ask(VOICES, body, Content_Type=FORM)


def delete_voice(server: ServerProcess, name: str) -> HttpAnswer:
    return server.ask(f"{VOICES}/{name}", method="DELETE")


@pytest.mark.parametrize("fails", [False, True])
def test_consent_is_stored_before_its_voice_and_deleted_if_the_voice_cannot_be_stored(
    tmp_path, monkeypatch, caplog, fails
):
    def save(destination: Path, voice: Any) -> None:
        assert CONSENT in destination.with_suffix(".consent.txt").read_text()
        assert destination.with_suffix(".consent.txt").stat().st_mode & 0o777 == 0o600
        if fails:
            raise UserError("the disk is full")
        destination.write_text("voice")

    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    monkeypatch.setattr(uploads, "save_voice", save)
    said = r"^the server cannot store the voice 'ann': its log says why$"
    with pytest.raises(FaultError, match=said) if fails else nullcontext():
        uploads.voice_work(MagicMock(), "model", "ann", noise(1), 16000, CONSENT)(MagicMock(gone=False))
    stored = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert stored == (set() if fails else {"ann.safetensors", "ann.consent.txt"})
    assert ("the disk is full" in caplog.text) == fails


def test_a_new_voice_is_listed_although_its_client_has_left(voices):
    with service_of("demo", add_voices=True) as service:
        assert "ann" not in service.catalogue.voices("demo")
        uploads.voice_work(service, "demo", "ann", noise(1), 16000, CONSENT)(MagicMock(gone=False))
        assert "ann" in service.catalogue.voices("demo")


def test_a_server_answers_while_it_loads_a_model_and_deletes_a_voice(voices):
    shutil.copy(demo_bundle() / "voices" / "michael.safetensors", voices / "ann.safetensors")
    (voices / "ann.consent.txt").write_text(CONSENT)
    with (
        service_of("demo", add_voices=True, token="secret", hosts=("testserver",)) as service,
        TestClient(make_app(service), headers={"Authorization": "Bearer secret"}) as client,
        ExitStack() as loading,
    ):
        loading.enter_context(service.models._lock)  # which is held while a model loads
        deleting = threading.Thread(target=client.delete, args=("/v1/audio/voices/ann",), daemon=True)
        deleting.start()
        wait_until(lambda: not list(voices.iterdir()))
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(client.get("/health").status_code), daemon=True)
        asking.start()
        asking.join(10)
        loading.close()
        deleting.join()
    assert answers == [200]


def test_a_respelled_text_counts_as_long_as_it_is_spoken():
    service = SimpleNamespace(settings=SimpleNamespace(limits=SimpleNamespace(characters=4096)))
    lexicon = Lexicon([LexiconEntry("a", "b" * 100)])
    assert Service.check_text(service, "a " * 20, lexicon) == 20 * 101
    with pytest.raises(RefusedError, match="at most 4096 characters, got 206"):
        Service.check_text(service, "a " * 2048, lexicon)


def test_a_clip_becomes_a_voice_with_consent_only(server, client, home):
    refused = add_voice(server, "ann", " ")
    assert (refused.status, refused.error["param"]) == (400, "consent")
    for name in ("../ann", "heart", "random", "a&b", ""):
        assert add_voice(server, name).status == 400, name
    answer = add_voice(server, "ann", model="heart")
    assert answer.error["message"] == "heart makes no voices from clips: use the model demo"
    for file in (sound_file(0.01), io.BytesIO(b"no sound" * 100)):
        answer = server.ask(VOICES, form_with(file, "audio_sample", name="ann", consent=CONSENT), Content_Type=FORM)
        assert (answer.status, answer.error["param"]) == (400, "audio_sample")
    body = form_with(sound_file(0.1), "recording", name="ann", consent=CONSENT, audio_sample="a.wav")
    answer = server.ask(VOICES, body, Content_Type=FORM)
    assert answer.error["message"] == "audio_sample must be a file"
    answer = add_voice(server, "ann")
    assert (answer.status, answer.json["id"]) == (201, "ann")
    assert "voice ann is not a clone of its clips: demo has only the voices heart, michael" in answer.json["notes"][0]
    assert add_voice(server, "ann").status == 400
    assert CONSENT in next(home.rglob("ann.consent.txt")).read_text()
    sound = client.audio.speech.create(
        model="demo", voice="ann", input="Hello.", response_format="pcm", extra_body={"preset": "fastest", "seed": 1}
    )
    assert len(sound.content) > 10_000


def test_a_voice_that_a_client_made_is_deleted_with_all_that_is_left_of_it(server, client, home):
    def spoken() -> bytes:
        options = {"preset": "fastest", "seed": 1}
        sound = client.audio.speech.create(
            model="demo", voice="bob", input="Hello.", response_format="pcm", extra_body=options
        )
        return sound.content

    before = {path for path in home.rglob("*") if path.is_file()}
    assert add_voice(server, "bob").status == 201
    first, answer = spoken(), delete_voice(server, "bob")
    assert (answer.status, answer.json) == (200, {"id": "bob", "object": "audio.voice", "deleted": True})
    assert {path for path in home.rglob("*") if path.is_file()} <= before
    with pytest.raises(openai.BadRequestError, match="demo has no voice 'bob'"):
        spoken()
    assert add_voice(server, "bob", seconds=3.0).status == 201
    assert spoken() != first, "the new voice, and not the deleted one, which the server had loaded"
    assert delete_voice(server, "bob").status == 200


@pytest.fixture
def owner(home: Path, python: Path) -> Callable[..., str]:
    """What ``ane voices`` prints to the server's owner, with the server's data directory."""
    options: dict[str, Any] = {"env": {**os.environ, "ANE_HOME": str(home)}, "stderr": subprocess.STDOUT, "text": True}
    return lambda *arguments: subprocess.check_output([python, "-m", "ane", "voices", *arguments], **options)


def test_the_owner_makes_a_voice_of_a_client_their_own_by_replacing_it(server, home, owner):
    assert add_voice(server, "zed").status == 201
    printed = owner("mix", "heart", "--bundle", "demo", "-o", "zed", "--force")
    assert f"deleted {home / 'voices' / 'zed.consent.txt'}" in printed
    assert delete_voice(server, "zed").status == 403
    assert (home / "voices" / "zed.safetensors").is_file()


def test_a_voice_is_deleted_after_the_upload_that_makes_it_and_that_began_first(server, home):
    body = form_with(sound_file(), "audio_sample", name="dan", consent=CONSENT)
    before = server.status()["children"]
    with server.begin("/v1/audio/voices", body, Content_Type=FORM, Content_Length=str(len(body))) as upload:
        wait_until(lambda: server.status()["children"] > before)  # it decodes the clip in a process
        assert delete_voice(server, "dan").status == 200
        assert b" 201 " in upload.recv(100)
    assert not list(home.rglob("dan*"))


def test_the_consent_of_a_voice_that_is_gone_is_deleted_too(server, home):
    consent = home / "voices" / "eve.consent.txt"
    consent.write_text(CONSENT)
    assert delete_voice(server, "eve").status == 404
    assert not consent.exists()


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_voice_that_the_owner_removed_is_gone_at_once(server, owner, is_loaded):
    speech = {"model": "demo", "voice": "cat", "input": "Hello.", "preset": "fastest"}
    assert add_voice(server, "cat").status == 201
    assert not is_loaded or server.speak(**speech).status == 200
    assert "cat" in {voice["id"] for voice in server.ask("/v1/audio/voices").json["voices"]}
    owner("remove", "cat")
    answer = server.speak(**speech)
    assert (answer.status, answer.error["message"]) == (404, "there is no voice 'cat'")
    assert delete_voice(server, "cat").status == 404


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("nobody", 404, "there is no voice 'nobody'"),
        ("nova", 404, "there is no voice 'nova'"),
        ("..%2Fvoices%2Fowned", 404, "Not Found"),
        ("a%00b", 404, r"there is no voice 'a\x00b'"),
        *(
            (name, 403, f"no client made the voice {name}, so no client can delete it")
            for name in ("heart", "random", "default", "alloy", "owned", "clips")
        ),
    ],
)
def test_a_voice_that_no_client_made_is_not_deleted(server, home, name, status, message):
    answer = delete_voice(server, name)
    assert (answer.status, answer.error["message"]) == (status, message)
    assert (home / "voices" / "owned.safetensors").is_file()
    assert (home / "voices" / "clips" / "a.wav").is_file()
