"""Models are loaded when they are needed and released when others need their memory or nobody uses them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ane
from ane.bundles import open_model
from ane.bundles.opening import find_bundle
from ane.server import served_models
from ane.server.errors import RefusedError
from ane.server.schemas import CastFields
from ane.server.served_models import ServedModel, ServedModels
from ane.server.settings import Limits, ServerSettings
from ane.server.speech import Catalogue, ServedRequest, arguments
from ane.server.speech_service import Service
from tests.fastspeech_files import write_fastspeech

TEXT = "The wind blew over the hill. It rained."
SIZES = {"demo-fast": 7_000_000, "demo": 16_000_000}        # bytes of the bundles, about


def serve(*names: str, **settings: Any) -> ServedModels:
    return ServedModels(replace(ServerSettings(names or tuple(SIZES)), **settings))


def use(models: ServedModels, *names: str) -> None:
    for name in names:
        with models.using(name):
            pass


def test_a_model_is_loaded_once_when_it_is_first_used():
    models = serve()
    assert models.loaded == []
    with models.using("demo-fast") as first, models.using("demo-fast") as second:
        assert first is second
        assert first.users == 2
    assert first.users == 0
    assert models.loaded == ["demo-fast"]


@pytest.mark.parametrize(("used", "kept"), [(["demo-fast", "demo"], "demo"), (["demo", "demo-fast"], "demo-fast")])
def test_the_least_recently_used_model_is_released_for_another_that_does_not_fit_beside_it(used: Sequence[str], kept):
    models = serve(memory=20_000_000)
    use(models, *used)
    assert models.loaded == [kept]
    roomy = serve(memory=sum(file.stat().st_size for name in SIZES for file in find_bundle(name).rglob("*")
                             if file.is_file()))
    use(roomy, *used)
    assert sorted(roomy.loaded) == sorted(used)


def test_a_model_that_is_used_is_not_released():
    models = serve(memory=20_000_000, idle_release=1e-9)
    with models.using("demo-fast"):
        use(models, "demo")
        models.release_unused()
        assert models.loaded == ["demo-fast"]


def test_a_model_that_nobody_has_used_for_long_is_released(monkeypatch):
    models = serve(idle_release=100.0)
    use(models, "demo-fast")
    models.release_unused()
    assert models.loaded == ["demo-fast"]
    now = served_models.time.monotonic()
    monkeypatch.setattr(served_models.time, "monotonic", lambda: now + 101)
    use(models, "demo-fast")
    models.release_unused()
    assert models.loaded == ["demo-fast"]
    monkeypatch.setattr(served_models.time, "monotonic", lambda: now + 202)
    models.release_unused()
    assert models.loaded == []
    use(models, "demo-fast")        # it can be loaded again
    assert models.loaded == ["demo-fast"]


def test_memory_of_a_released_model_is_returned_to_the_system(monkeypatch):
    returned: list[Any] = []
    monkeypatch.setattr(served_models, "return_freed_memory", returned.append)
    models = serve(idle_release=1e-9)
    use(models, "demo-fast")
    models.release_unused()
    assert models.loaded == []
    assert len(returned) == 1
    models.release_unused()
    assert len(returned) == 1, "once"


def test_loading_at_the_start_may_take_longer_than_a_request():
    service = Service(ServerSettings(("demo-fast",), preload=("demo-fast",), threads=1, limits=Limits(seconds=0.001)))
    try:
        asyncio.run(service.preload())
        assert service.models.loaded == ["demo-fast"]
        assert service.ready
    finally:
        service.engine.stop()


def test_sound_beside_others_is_that_alone():
    """Bit for bit, with two calls at a time, of a model with shared lanes and of one without."""
    service = Service(ServerSettings(("demo-fast", "demo"), threads=2, calls=2))

    async def sound(model: str, text: str) -> np.ndarray:
        preset, seed = ("fastest", 3) if model == "demo" else (None, None)
        utterance = service.speak(ServedRequest(model, "default", text, preset=preset, seed=seed))
        try:
            return np.concatenate([piece.audio async for piece in utterance])
        finally:
            utterance.close()

    async def client() -> None:
        for model in ("demo-fast", "demo"):
            alone = await sound(model, TEXT)
            together = await asyncio.gather(*(sound(name, text) for name, text in (
                (model, TEXT), ("demo-fast", "Another one."), (model, "It rained in the valley."), (model, TEXT))))
            for found in (together[0], together[3]):
                assert np.array_equal(found, alone)

    try:
        asyncio.run(client())
    finally:
        service.engine.stop()


def test_the_names_of_openais_examples_mean_the_default_model_and_voice():
    catalogue = Catalogue(ServerSettings(("demo-fast", "demo")))
    assert (catalogue.model("tts-1"), catalogue.voice("demo-fast", "alloy")) == ("demo-fast", "default")
    with pytest.raises(RefusedError, match=r"--map-voice nova=VOICE.*the voices are default$"):
        catalogue.voice("demo-fast", "nova")
    with pytest.raises(RefusedError, match="demo-fast has no voice 'nobody'"):
        catalogue.voice("demo-fast", "nobody")
    with pytest.raises(RefusedError, match="cast has no effect on demo-fast"):
        catalogue.cast("demo-fast", CastFields())
    assert catalogue.cast("demo", CastFields()) is not None


def test_the_names_of_openais_transcribers_mean_the_one_that_there_is():
    catalogue = Catalogue(ServerSettings(("demo-fast", "demo")))
    with pytest.raises(RefusedError, match="this server has no model that transcribes"):
        catalogue.transcriber("whisper-1")
    catalogue.settings = replace(catalogue.settings, transcriber="tiny")
    assert catalogue.transcriber("whisper-1") == catalogue.transcriber("tiny") == "tiny"
    with pytest.raises(RefusedError, match="no model that transcribes is named 'large' here; it is tiny"):
        catalogue.transcriber("large")


def test_a_seed_and_a_preset_are_refused_where_they_have_no_effect(tmp_path):
    write_fastspeech(tmp_path / "fastspeech.pt")
    model = open_model(checkpoints=tmp_path / "fastspeech.pt")
    served = ServedModel("fast", ane.load(tmp_path / "fastspeech.pt", "torch"), 0)
    assert not model.is_random
    with pytest.raises(RefusedError, match="seed has no effect on fast"):
        arguments(served, ServedRequest("fast", "default", TEXT, seed=1))
    with pytest.raises(RefusedError, match="preset has no effect on FastSpeech"):
        arguments(served, ServedRequest("fast", "default", TEXT, preset="fastest"))
    assert arguments(served, ServedRequest("fast", "default", TEXT))["seed"] is None
