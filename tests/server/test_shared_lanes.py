"""Streams that share the lanes of a decoder on the server's engine: each sounds as alone and fails alone."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise.settings import Settings
from ane.models.tortoise.synthesizer import Synthesizer
from ane.server.engine import Engine
from ane.server.jobs import Job, Waits, Work
from ane.speech.lanes import Lanes
from ane.speech.request import Run
from tests.random_model import RandomModel
from tests.server.test_engine import received, running

TEXTS = ["One.", "The wind blew over the hill.", "It rained in the valley. Then it stopped, and we went home.", "Two?",
         "Good morning to you.", "A door opened."]
SETTINGS = Settings(1, None, split=(20, 40), lanes=4)


class Sharing:
    """A synthesizer whose streams share lanes, on an engine; ``calls`` of them run at a time."""

    def __init__(self, lanes: int = 4):
        model = RandomModel()
        self.synthesizer = Synthesizer(model, TorchBackend(model, "cpu", "fp32", keep=True))
        self.synthesizer.backend.keeps_threads = True       # as of a server's models
        self.lanes = self.synthesizer.shared_lanes(lanes)

    def work(self, text: str, seed: int, settings: Settings = SETTINGS) -> Work:
        def work(job: Job) -> Iterator[Waits]:
            request = self.synthesizer.request(text, "random", seed=seed, settings=settings)
            run = Run(job.check, lanes=self.lanes, priority=lambda: job.priority)
            with closing(self.synthesizer.stream_of(request, run)) as stream:
                for item in stream.items():
                    yield item if isinstance(item, Lanes) else job.put(item)

        return work


@pytest.fixture(params=[1, 2])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with running(request.param) as engine:
        yield engine


def heard(engine: Engine, *works: Work) -> list[list[np.ndarray]]:
    async def client() -> list[list[np.ndarray]]:
        return list(await asyncio.gather(*(received(engine.submit(work)) for work in works)))

    return asyncio.run(client())


def small(settings: Settings, max_codes: int = 12) -> Settings:
    return replace(settings, sampling=replace(settings.sampling, max_codes=max_codes))


def test_streams_that_share_lanes_sound_as_alone(engine):
    """The pieces are divided alike, and their samples are equal."""
    shared, settings = Sharing(), small(SETTINGS)
    works = [shared.work(text, seed, settings) for seed, text in enumerate(TEXTS)]
    alone = [heard(engine, work)[0] for work in works]
    together = heard(engine, *works, *works)
    assert not shared.lanes.active
    assert len(shared.lanes.free_prefixes) == 4
    for pieces, expected in zip(together, [*alone, *alone], strict=True):
        assert [len(piece) for piece in pieces] == [len(piece) for piece in expected]
        np.testing.assert_array_equal(np.concatenate(pieces), np.concatenate(expected))


def test_streams_share_the_steps_of_the_decoder(engine):
    shared, counted = Sharing(), []
    step = shared.lanes.decoder.step
    shared.lanes.decoder.step = lambda columns, *rest: (counted.append(len(columns)), step(columns, *rest))[1]
    work = shared.work("One.", 1, small(SETTINGS))
    heard(engine, work)
    alone = len(counted)
    counted.clear()
    heard(engine, *[work] * 4)
    assert len(counted) < 3 * alone         # not 4: those that begin a few steps later end as much later
    assert max(counted) > 2


def test_a_stream_that_is_left_frees_its_lanes_for_others(engine):
    async def client() -> None:
        leaving = engine.submit(shared.work(TEXTS[2], 1))
        async for _ in leaving.items():
            leaving.leave()
            break
        await received(engine.submit(shared.work("One.", 2, small(SETTINGS))))

    shared = Sharing(1)
    asyncio.run(client())
    assert not shared.lanes.active
    assert not shared.lanes.jobs
    assert shared.lanes.free_prefixes == [0]


def test_a_step_that_fails_ends_its_streams_and_no_others(engine):
    async def client() -> None:
        step, shared.lanes.decoder.step = shared.lanes.decoder.step, broken
        with pytest.raises(RuntimeError, match="out of order"):
            await received(engine.submit(work))
        shared.lanes.decoder.step = step
        assert await received(engine.submit(work))

    def broken(*arguments: Any) -> Awaitable[None]:
        raise RuntimeError("out of order")

    shared = Sharing()
    work = shared.work("One.", 1, small(SETTINGS))
    asyncio.run(client())
