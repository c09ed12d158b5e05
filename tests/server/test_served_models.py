"""Test how a server loads and releases models, and the decoder lanes that its clients share."""

import asyncio
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import ane
from ane.backends.torch.backend import TorchBackend
from ane.bundles.opening import find_bundle
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from ane.server import served_models
from ane.server.engine import Engine
from ane.server.errors import FaultError, RefusedError, error_content, outcome_of
from ane.server.jobs import Job, Work
from ane.server.schemas import CastFields
from ane.server.served_models import ServedModel, ServedModels
from ane.server.settings import Limits, ServerSettings
from ane.server.speech import Catalogue, ServedRequest, with_loaded_voice
from ane.server.speech_service import Service
from ane.speech.request import SpeechContext
from ane.system.decibels import snr_db
from ane.system.errors import NoEffectError, UserError
from tests.fastspeech_files import write_fastspeech
from tests.imported import imported
from tests.random_model import random_model
from tests.refusals import assert_refused
from tests.server.speech_requests import service_of
from tests.server.test_engine import received, running

TEXT = "The wind blew over the hill. It rained."
SIZES = {"heart": 7_000_000, "demo": 16_000_000}  # approximate bytes of the bundles


def serve(*names: str, **settings: Any) -> ServedModels:
    return ServedModels(replace(ServerSettings(names or tuple(SIZES)), **settings))


def use(models: ServedModels, *names: str) -> None:
    for name in names:
        with models.using(name):
            pass


def test_a_model_is_loaded_once_when_it_is_first_used():
    models = serve()
    assert models.loaded == []
    with models.using("heart") as first, models.using("heart") as second:
        assert first is second
        assert first.users == 2
    assert first.users == 0
    assert models.loaded == ["heart"]


@pytest.mark.parametrize(("used", "kept"), [(["heart", "demo"], "demo"), (["demo", "heart"], "heart")])
def test_the_least_recently_used_model_is_released_for_another_that_does_not_fit_beside_it(used: Sequence[str], kept):
    models = serve(memory=20_000_000)
    use(models, *used)
    assert models.loaded == [kept]
    roomy = serve(
        memory=sum(file.stat().st_size for name in SIZES for file in find_bundle(name).rglob("*") if file.is_file())
    )
    use(roomy, *used)
    assert sorted(roomy.loaded) == sorted(used)


def test_a_model_that_is_used_is_not_released():
    models = serve(memory=20_000_000, idle_release=1e-9)
    with models.using("heart"):
        use(models, "demo")
        models.release_unused()
        assert models.loaded == ["heart"]


def test_a_model_that_nobody_has_used_for_long_is_released_and_its_memory_returned_once(monkeypatch):
    returned: list[Any] = []
    monkeypatch.setattr(served_models, "return_freed_memory", returned.append)
    now, passed = served_models.time.monotonic(), [0]
    monkeypatch.setattr(served_models.time, "monotonic", lambda: now + passed[0])
    models = serve(idle_release=100.0)
    for seconds, used, returns in ((0, True, 0), (101, True, 0), (202, False, 1), (303, True, 1)):
        passed[0] = seconds
        if used:
            use(models, "heart")  # the model can be used again after its release
        models.release_unused()
        models.release_unused()
        assert (models.loaded, len(returned)) == (["heart"] if used else [], returns), seconds
    kept = serve()
    use(kept, "heart")
    passed[0] += 10
    for _ in range(2):
        kept.release_unused()
    assert len(returned) == 2, "once after its last use"


def test_loading_at_the_start_may_take_longer_than_a_request():
    with service_of("heart", preload=("heart",), threads=1, limits=Limits(seconds=0.001)) as service:
        asyncio.run(service.preload())
        assert (service.models.loaded, service.ready) == (["heart"], True)


@pytest.mark.parametrize(("calls", "backend", "db"), [(1, "auto", math.inf), (2, "auto", math.inf), (1, "mlx", 60)])
async def test_sound_beside_others_is_that_alone(calls, backend, db):
    """Bit for bit, of a model with shared lanes and of one without: a step does not depend on the other lanes. On MLX
    it does by rounding, which in float32 changes no code, so that sounds have the same length and nearly the same
    samples."""
    models, precision = (("demo",), "fp32") if backend == "mlx" else (("heart", "demo"), "auto")

    async def sound(service: Service, model: str, text: str, seed: int | None = None) -> np.ndarray:
        preset = "fastest" if model == "demo" else None
        response = service.speak(ServedRequest(text, "default", preset, seed, model=model))
        try:
            return np.concatenate([piece.audio async for piece in response])
        finally:
            response.close()

    requests = [
        request
        for request in (
            ("heart", TEXT),
            ("heart", "Good morning to you.", 1),
            ("demo", TEXT, 3),
            ("demo", "One.", 0),
            ("demo", "One.", 2),
        )
        if request[0] in models
    ]
    with service_of(*models, threads=calls, calls=calls, backend=backend, precision=precision) as service:
        alone = [await sound(service, *request) for request in requests]
        together = await asyncio.gather(*(sound(service, *request) for request in requests))
    for found, expected in zip(together, alone, strict=True):
        assert found.shape == expected.shape
        assert np.array_equal(found, expected) or snr_db(expected, found) >= db


def test_a_voice_that_is_deleted_while_it_is_read_is_not_kept(voices, monkeypatch):
    stored, own = voices / "ann.safetensors", ane.bundles.demo_bundle() / "voices"
    served = ServedModel("demo", ane.load("demo", "torch"), 0)
    prepare = served.speaker.prepare

    def prepare_until_deleted(**options: Any) -> Any:
        voice = prepare(**options)
        stored.unlink()
        return voice

    shutil.copy(own / "michael.safetensors", stored)
    monkeypatch.setattr(served.speaker, "prepare", prepare_until_deleted)
    first = served.voice("ann")
    monkeypatch.setattr(served.speaker, "prepare", prepare)
    assert served.voices == {}
    with pytest.raises(RefusedError, match=r"^there is no voice 'ann'$") as found:
        served.voice("ann")
    assert found.value.status == 404
    shutil.copy(own / "heart.safetensors", stored)
    assert not np.array_equal(served.voice("ann").ar, first.ar)
    assert served.voice("ann") is served.voice("ann")


def test_a_damaged_voice_is_a_fault_of_the_server_and_its_path_stays_in_the_log(voices, caplog):
    (voices / "ann.safetensors").write_bytes(b"x")
    served = ServedModel("demo", ane.load("demo", "torch"), 0)
    with pytest.raises(FaultError, match=r"^the server cannot read the voice 'ann': its log says why$") as found:
        served.voice("ann")
    assert error_content(found.value)[0] == 500
    assert "ann.safetensors: cannot be read as a safetensors voice" in caplog.text
    with pytest.raises(UserError, match="line 1, voice 'ann'") as found:
        served.speaker.stream_of(ServedRequest("[voice:ann]Hi.", model="demo"), SpeechContext(named_voice=served.voice))
    assert (error_content(found.value)[0], outcome_of(found.value)) == (500, "error")


def test_a_model_that_cannot_be_loaded_is_a_fault_of_the_server(tmp_path, caplog):
    bundle = shutil.copytree(find_bundle("demo"), tmp_path / "mine")
    with service_of(str(bundle), preload=(str(bundle),)) as service:
        (bundle / "weights" / "autoregressive.safetensors").unlink()
        with pytest.raises(FaultError, match=r"mine: its log says why$"):
            use(service.models, str(bundle))
        assert "autoregressive.safetensors is missing" in caplog.text
        with pytest.raises(UserError, match=r"autoregressive\.safetensors is missing"):  # for whoever starts the server
            asyncio.run(service.preload())


def test_damaged_voices_of_a_bundle_are_a_fault_of_the_server(tmp_path, caplog):
    bundle = shutil.copytree(find_bundle("demo"), tmp_path / "mine")
    catalogue = Catalogue(ServerSettings((str(bundle),)))
    (bundle / "voices" / "heart.safetensors").write_bytes(b"x")
    with pytest.raises(FaultError, match=r"mine: its log says why$"):
        catalogue.voice(str(bundle), "michael")
    assert "heart.safetensors has 1 bytes" in caplog.text


def test_a_voice_with_only_the_decoders_latent_speaks_with_the_preset_that_needs_no_other(voices):
    latent = ane.voices.load_voice(ane.bundles.demo_bundle() / "voices" / "michael.safetensors").ar
    torch.save(torch.from_numpy(latent.copy()), voices / "hifigan_cond_latents_12345678.pth")
    served = ServedModel("demo", ane.load("demo", "torch"), 0)
    request = ServedRequest("Hi.", "hifigan_cond_latents_12345678", model="demo")
    assert_refused(
        "none for the diffusion: use preset=fastest", with_loaded_voice, served, replace(request, preset="1x10")
    )
    voice = with_loaded_voice(served, replace(request, preset="fastest")).voice
    assert np.array_equal(voice.ar, latent)


def test_a_list_of_voices_that_is_made_while_a_voice_is_stored_is_not_kept(monkeypatch):
    catalogue = Catalogue(ServerSettings(("demo",)))

    def listed_before(model: Any) -> list[str]:
        catalogue.forget_voices()  # another thread stores a voice at this moment
        return ["old"]

    monkeypatch.setattr("ane.server.speech.voice_names", listed_before)
    assert catalogue.voices("demo") == ["old"]
    monkeypatch.setattr("ane.server.speech.voice_names", lambda model: ["old", "new"])
    assert catalogue.voices("demo") == ["old", "new"]


def test_the_names_of_openais_examples_mean_the_default_model_and_voice():
    catalogue = Catalogue(ServerSettings(("heart", "demo")))
    assert (catalogue.model("tts-1"), catalogue.voice("heart", "alloy")) == ("heart", "default")
    assert catalogue.model("demo-fast") == "heart", "its former name"
    with pytest.raises(RefusedError, match=r"--map-voice nova=VOICE.*the voices are default, heart$"):
        catalogue.voice("heart", "nova")
    assert catalogue.voice("heart", "heart") == "default", "the name of its only voice"
    with pytest.raises(RefusedError, match="heart has no voice 'nobody'"):
        catalogue.voice("heart", "nobody")
    with pytest.raises(NoEffectError, match="cast has no effect on heart"):
        catalogue.cast("heart", CastFields())
    assert catalogue.cast("demo", CastFields()) is not None


def test_the_names_of_openais_transcribers_mean_the_one_that_there_is():
    catalogue = Catalogue(ServerSettings(("heart", "demo")))
    with pytest.raises(RefusedError, match="this server has no model that transcribes"):
        catalogue.transcriber("whisper-1")
    catalogue.settings = replace(catalogue.settings, transcriber="tiny")
    assert catalogue.transcriber("whisper-1") == catalogue.transcriber("tiny") == "tiny"
    with pytest.raises(RefusedError, match="no model that transcribes is named 'large' here: use tiny"):
        catalogue.transcriber("large")


def test_a_seed_and_a_preset_are_refused_where_they_have_no_effect(tmp_path):
    model = imported(write_fastspeech(tmp_path / "fastspeech.pt"))
    served = ServedModel("fast", ane.load(model.path, "torch"), 0)
    assert not model.uses_seed
    with pytest.raises(NoEffectError, match="seed has no effect on fast"):
        with_loaded_voice(served, ServedRequest(TEXT, "default", seed=1, model="fast"))
    with pytest.raises(NoEffectError, match="preset has no effect on FastSpeech"):
        with_loaded_voice(served, ServedRequest(TEXT, "default", "fastest", model="fast"))
    assert with_loaded_voice(served, ServedRequest(TEXT, "default", model="fast")).seed is None


TEXTS = [
    "One.",
    "The wind blew over the hill.",
    "It rained in the valley. Then it stopped, and we went home.",
    "Two?",
    "Good morning to you.",
    "A door opened.",
]
SETTINGS = TortoiseSettings(1, None, split=(20, 40), lanes=4)


class Sharing:
    """A synthesizer whose streams share lanes, on an engine."""

    def __init__(self, engine: Engine, lanes: int = 4):
        model = random_model()
        self.synthesizer = TortoiseSpeaker(
            model, TorchBackend(model, "cpu", "fp32", keep=True, fixed_thread_count=True)
        )  # with the settings of a server's models
        self.lanes = self.synthesizer.shared_lanes(lanes, engine.turns)

    def work(self, text: str, seed: int, settings: TortoiseSettings = SETTINGS) -> Work:
        def work(job: Job) -> None:
            request = self.synthesizer.request(text, "random", seed=seed, settings=settings)
            context = SpeechContext(job.check, lanes=self.lanes, priority=job.priority, check=job.check)
            with closing(self.synthesizer.stream_of(request, context)) as stream:
                for piece in stream:
                    job.send(piece)

        return work


@pytest.fixture(params=[1, 2])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with running(request.param) as engine:
        yield engine


async def heard(engine: Engine, *works: Work) -> list[list[np.ndarray]]:
    return list(await asyncio.gather(*(received(engine.submit(work)) for work in works)))


def small(settings: TortoiseSettings, max_codes: int = 12) -> TortoiseSettings:
    return replace(settings, sampling=replace(settings.sampling, max_codes=max_codes))


async def test_streams_that_share_lanes_sound_as_alone(engine):
    """The pieces are divided alike, and their samples are equal."""
    shared, settings = Sharing(engine), small(SETTINGS)
    works = [shared.work(text, seed, settings) for seed, text in enumerate(TEXTS)]
    alone = [(await heard(engine, work))[0] for work in works]
    together = await heard(engine, *works, *works)
    assert not shared.lanes.active
    assert len(shared.lanes.free_prefixes) == 4
    for pieces, expected in zip(together, [*alone, *alone], strict=True):
        assert [len(piece) for piece in pieces] == [len(piece) for piece in expected]
        np.testing.assert_array_equal(np.concatenate(pieces), np.concatenate(expected))


async def test_streams_share_the_steps_of_the_decoder(engine):
    shared, counted = Sharing(engine), []
    step = shared.lanes.decoder.step
    shared.lanes.decoder.step = lambda columns, *rest: (counted.append(len(columns)), step(columns, *rest))[1]
    work = shared.work("One.", 1, small(SETTINGS))
    await heard(engine, work)
    alone = len(counted)
    counted.clear()
    await heard(engine, *[work] * 4)
    # fewer than 3 and not 1, because requests that begin some steps later also end later
    assert len(counted) < 3 * alone
    assert max(counted) > 2


async def test_a_stream_that_is_left_frees_its_lanes_for_others(engine):
    shared = Sharing(engine, 1)
    leaving = engine.submit(shared.work(TEXTS[2], 1))
    async for _ in leaving.items():
        leaving.leave()
        break
    await received(engine.submit(shared.work("One.", 2, small(SETTINGS))))
    assert (shared.lanes.active, shared.lanes.prompts, shared.lanes.free_prefixes) == ({}, [], [0])


async def test_a_step_that_fails_ends_its_streams_and_no_others(engine, caplog):
    def broken(*arguments: Any) -> None:
        raise RuntimeError("out of order")

    shared = Sharing(engine)
    work = shared.work("One.", 1, small(SETTINGS))
    shared.lanes.decoder.step = broken
    jobs = [engine.submit(work) for _ in range(2)]
    for job in jobs:
        with pytest.raises(RuntimeError, match=r"out of order|a decoder step"):
            await received(job)
    assert "a step of the decoder failed" in caplog.text
    assert await received(engine.submit(Sharing(engine).work("One.", 1, small(SETTINGS))))
