"""Test that the engine runs jobs in turns: urgent jobs first, unwanted jobs not at all, and with limited memory."""

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from ane.server.engine import Engine, calls_at_a_time
from ane.server.errors import BusyError, ClientGoneError, DeadlineError, StoppingError
from ane.server.jobs import Job, Work
from ane.server.settings import Limits
from ane.speech.turns import Turns
from ane.system.errors import UserError
from tests.refusals import assert_refused
from tests.server.server_process import PATIENCE, wait_until


@contextmanager
def running(calls: int = 1, threads: int = 2, **limits: Any) -> Iterator[Engine]:
    engine = Engine(replace(Limits(), **limits), calls, threads)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with running(**getattr(request, "param", {})) as engine:
        yield engine


def engine_of(**options: Any) -> pytest.MarkDecorator:
    """The options of ``running`` for the fixture ``engine``."""
    return pytest.mark.parametrize("engine", [options], indirect=True, ids=[""])


def sends(job: Job, count: int, seconds: float = 1.0) -> None:
    for number in range(count):
        job.send(number, seconds)


async def received(job: Job) -> list[Any]:
    return [item async for item in job.items()]


def turns(order: list[str], name: str, count: int) -> Work:
    """Work that notes its name in every turn."""

    def work(job: Job) -> None:
        for _ in range(count):
            order.append(name)
            job.wait()

    return work


@asynccontextmanager
async def busy(engine: Engine) -> AsyncIterator[list[Job]]:
    """The engine, busy until the end of the block; then all jobs run that are added to the list."""
    gate, begun = threading.Event(), threading.Event()
    jobs = [engine.submit(lambda job: (begun.set(), gate.wait(5)))]
    begun.wait(5)
    yield jobs
    while len(engine.turns._waiting) < len(jobs) - 1:  # until all of them want a turn
        await asyncio.sleep(0.001)
    gate.set()
    await asyncio.gather(*map(received, jobs))


async def test_items_arrive_in_order_and_the_error_of_the_work_after_them(engine):
    def work(job: Job) -> None:
        sends(job, 5)
        raise UserError("no more")

    items = engine.submit(work).items()
    assert [await anext(items) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(UserError, match="no more"):
        await anext(items)
    assert engine.count == 0


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_work_that_fails_in_any_way_ends_alone(engine, kind):
    failing = MagicMock(side_effect=kind("no more"))
    with pytest.raises(RuntimeError, match=kind.__name__):
        await asyncio.wait_for(received(engine.submit(failing)), 10)
    assert await received(engine.submit(lambda job: job.put(1))) == [1]


@engine_of(sound_ahead=3.0)
async def test_work_that_is_ahead_of_its_client_pauses_while_others_run(engine):
    produced = {"slow": 0, "fast": 0}

    def work(name: str) -> Callable[[Job], None]:
        def produce(job: Job) -> None:
            for number in range(50):
                produced[name] += 1
                job.send(number, 1.0)

        return produce

    slow = engine.submit(work("slow")).items()
    assert await anext(slow) == 0
    assert await received(engine.submit(work("fast"))) == list(range(50))
    assert produced["slow"] <= 5, "three seconds ahead, the one taken and the one that waits to be handed over"
    assert [item async for item in slow] == list(range(1, 50))


@engine_of(sound_ahead=10.0)
async def test_work_that_is_ahead_wakes_seldom(engine, monkeypatch):
    """A thread that wakes for every second of sound would hold up the event loop."""
    rests, rest = [], engine.turns.rest
    monkeypatch.setattr(engine.turns, "rest", lambda urgency: (rests.append(1), rest(urgency))[1])

    found = []
    async for item in engine.submit(lambda job: sends(job, 100)).items():
        found.append(item)
        await asyncio.sleep(0.001)
    assert found == list(range(100))
    assert len(rests) <= 100 / 5 + 1


@pytest.mark.parametrize(("engine", "rests"), [({}, True), ({"calls": 2}, False)], indirect=["engine"])
@pytest.mark.parametrize("leaves", [True, False])
async def test_work_of_a_client_that_leaves_or_takes_too_long_is_ended_and_cleaned_up(engine, leaves, rests):
    """Work that does not rest ends when it reports its progress."""
    cleaned = threading.Event()

    def work(job: Job) -> None:
        try:
            while True:
                if rests:
                    job.send(0, 0.0)
                else:
                    job.check("diffuse", 1, 30, "")
        finally:
            cleaned.set()

    job = engine.submit(work, seconds=None if leaves else 0.1)
    if leaves:
        asyncio.get_running_loop().call_later(0.1, job.leave)
    with pytest.raises(ClientGoneError if leaves else DeadlineError):
        await asyncio.wait_for(received(job), 10)
    wait_until(cleaned.is_set)
    assert engine.count == 0


@engine_of(requests=3)
async def test_one_request_too_many_is_refused_until_another_ends(engine):
    opened = threading.Event()
    # the time of this job is the time for which a rejected job is told to wait
    await received(engine.submit(lambda job: None))
    jobs = [engine.submit(lambda job: job.wait(opened.is_set)) for _ in range(3)]
    with pytest.raises(BusyError) as found:
        engine.submit(lambda job: None)
    assert 1 <= found.value.retry_after < 60
    opened.set()
    for job in jobs:
        job.send_text("")  # wakes the job
    await asyncio.gather(*map(received, jobs))
    await received(engine.submit(lambda job: None))


@engine_of(sound_ahead=1000.0)
async def test_a_listener_who_would_hear_a_gap_goes_first_then_newcomers_then_those_with_sound_left(engine):
    order: list[str] = []

    def work(name: str, seconds: float) -> Work:
        def speak(job: Job) -> None:
            for number in range(2):
                order.append(f"{name} {number}")
                job.send(number, seconds)

        return speak

    async with busy(engine) as jobs:
        jobs += [
            engine.submit(work(name, seconds)) for name, seconds in {"ahead": 60.0, "short": 0.01, "late": 60.0}.items()
        ]
    assert order == ["ahead 0", "short 0", "short 1", "late 0", "ahead 1", "late 1"]


async def test_work_without_sound_takes_turns_and_lets_later_speech_go_first(engine):
    order: list[str] = []
    async with busy(engine) as jobs:
        jobs += [engine.submit(turns(order, name, 3), speaks=False) for name in ("first", "second")]
        jobs.append(engine.submit(turns(order, "speech", 2)))
    assert order == ["speech"] * 2 + ["first", "second"] * 3


@engine_of(calls=2, threads=4)
async def test_what_may_be_wide_has_all_threads_unless_another_job_computes(engine):
    seen: list[int] = []

    def work(job: Job) -> None:
        seen.extend([engine.turns.wide(torch.get_num_threads), torch.get_num_threads()])

    gate, begun = threading.Event(), threading.Event()
    await received(engine.submit(work))
    beside = engine.submit(lambda job: (begun.set(), gate.wait(PATIENCE)))
    begun.wait(PATIENCE)
    await received(engine.submit(work))
    gate.set()
    await received(beside)
    assert seen == [4, 2, 2, 2]


def test_turns_that_divide_no_cpu_threads_never_wait_for_a_wide_call():
    turns, took_turn = Turns(calls=2), threading.Event()

    def other() -> None:
        with turns.turn():
            took_turn.set()

    with turns.turn():
        thread = threading.Thread(target=other)
        assert turns.wide(lambda: (thread.start(), took_turn.wait(PATIENCE))[1])
        thread.join()


async def test_text_that_arrives_is_spoken_at_once_and_awaited_without_holding_the_others_up(engine):
    job = engine.submit(lambda job: [job.put(text) for text in job.texts()])
    items = job.items()
    for text in ("one", "two"):
        await asyncio.sleep(0.1)  # the engine has nothing to do
        job.send_text(text)
        assert await asyncio.wait_for(anext(items), 20) == text
        assert await received(engine.submit(lambda other: other.put(1))) == [1]
    job.send_text(None)
    assert [item async for item in items] == []


def test_unused_models_are_looked_for_every_few_seconds(monkeypatch):
    monkeypatch.setattr("ane.server.engine.IDLE_SECONDS", 0.01)
    monkeypatch.setattr("ane.server.engine.PERIOD", 0.2)
    looked = queue.SimpleQueue()
    engine = Engine(Limits())
    engine.start(lambda: looked.put(time.monotonic()))
    try:
        first, second = (looked.get(timeout=PATIENCE) for _ in range(2))
        assert second - first >= 0.2
    finally:
        engine.stop()


async def test_stopping_ends_the_thread_what_waits_and_what_has_not_begun(engine):
    begun, gate = threading.Event(), threading.Event()

    def work(job: Job) -> None:
        begun.set()
        gate.wait(10)

    waiting = engine.submit(lambda job: job.wait(lambda: False))
    engine.submit(work)
    assert begun.wait(10)
    queued = engine.submit(lambda job: job.put(1))
    stopping = threading.Thread(target=engine.stop)
    assert engine.alive
    stopping.start()
    await asyncio.sleep(0.05)
    gate.set()
    for job in (waiting, queued):
        with pytest.raises(StoppingError):
            await asyncio.wait_for(received(job), 10)
    stopping.join()
    assert not engine.alive


# Two jobs at once


@engine_of(calls=2)
async def test_two_jobs_run_at_a_time_and_a_third_waits(engine):
    both, third, order = threading.Barrier(2), threading.Event(), []

    def work(name: str, call: Callable[[], Any]) -> Job:
        def run(job: Job) -> None:
            call()
            order.append(name)

        return engine.submit(run)

    jobs = [work("a", lambda: (both.wait(10), third.wait(0.2))), work("b", lambda: both.wait(10)), work("c", third.set)]
    await asyncio.wait_for(asyncio.gather(*map(received, jobs)), 20)
    assert sorted(order) == ["a", "b", "c"]
    assert order[0] == "b"


@engine_of(calls=2)
async def test_a_job_that_is_left_while_it_runs_is_cleaned_up_when_it_rests(engine):
    gate, cleaned = threading.Event(), threading.Event()

    def work(job: Job) -> None:
        try:
            gate.wait(10)
            job.wait()
        finally:
            cleaned.set()

    job = engine.submit(work)
    await asyncio.sleep(0.1)
    job.leave()
    with pytest.raises(ClientGoneError):
        await asyncio.wait_for(received(job), 10)
    assert engine.count == 0  # although its thread still runs
    assert not cleaned.is_set()
    gate.set()
    wait_until(cleaned.is_set)
    await received(engine.submit(lambda job: None))


def test_jobs_on_the_cpu_have_at_most_the_threads_that_there_are():
    assert [calls_at_a_time(None, threads) for threads in (1, 2, 16)] == [1, 2, 2]
    assert_refused("calls must be at most the number of CPU threads, 2, got 3", calls_at_a_time, 3, 2)


async def test_no_thread_uses_a_processor_while_there_is_nothing_to_do(engine):
    await received(engine.submit(lambda job: job.put(1)))
    before = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - before < 0.1


@engine_of(threads=3)
async def test_the_thread_of_the_models_has_the_threads_that_it_was_given(engine):
    assert await received(engine.submit(lambda job: job.put(torch.get_num_threads()))) == [3]
