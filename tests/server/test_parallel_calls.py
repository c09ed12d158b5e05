"""Network calls of several jobs run at a time, each with the bits that it has alone; a left job keeps nothing."""

import asyncio
import threading

import numpy as np
import pytest

pytest.importorskip("greenlet", reason="needs the extra server")

from ane.server.engine import Engine
from ane.server.jobs import ClientGoneError, Job
from ane.server.parallel_calls import calls_at_a_time
from ane.server.settings import Limits, ServerSettings
from ane.server.speech import ServedRequest
from ane.server.speech_service import Service
from ane.system.errors import UserError
from tests.server.server_process import wait_until
from tests.server.test_engine import received

TEXT = "The wind blew over the hill. It rained."


@pytest.fixture
def engine():
    engine = Engine(Limits(), calls=2, cpu_threads=2)
    engine.start()
    yield engine
    engine.stop()


def test_calls_of_two_jobs_run_at_a_time_and_a_third_waits(engine):
    both, third, order = threading.Barrier(2), threading.Event(), []

    def work(name: str, call) -> None:
        def run(job: Job) -> None:
            engine.run_call(call)
            order.append(name)

        return engine.submit(run)

    async def client() -> None:
        jobs = [work("a", lambda: (both.wait(10), third.wait(0.2))), work("b", lambda: both.wait(10)),
                work("c", third.set)]
        await asyncio.wait_for(asyncio.gather(*map(received, jobs)), 20)

    asyncio.run(client())
    assert sorted(order) == ["a", "b", "c"]
    assert order[0] == "b"


def test_a_call_whose_job_is_left_ends_and_frees_its_thread(engine):
    gate, abandoned = threading.Event(), threading.Event()

    async def client() -> None:
        job = engine.submit(lambda job: engine.run_call(lambda: gate.wait(10), abandoned.set))
        await asyncio.sleep(0.1)
        job.leave()
        with pytest.raises(ClientGoneError):
            await asyncio.wait_for(received(job), 10)
        assert engine.count == 0            # while the call still runs
        assert not abandoned.is_set()
        gate.set()
        wait_until(abandoned.is_set)

    asyncio.run(client())
    assert engine._calls.has_room()


def test_the_error_of_a_call_is_the_job_s(engine):
    async def client() -> None:
        with pytest.raises(ZeroDivisionError):
            await received(engine.submit(lambda job: engine.run_call(lambda: 1 // 0)))

    asyncio.run(client())


def test_calls_have_at_most_the_threads_that_there_are():
    assert [calls_at_a_time(None, threads) for threads in (1, 2, 16)] == [1, 2, 2]
    with pytest.raises(UserError, match="calls must be at most the number of CPU threads, 2, got 3"):
        calls_at_a_time(3, 2)


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
