"""A synthesizer in asyncio, and in several threads: everyone gets what they would get alone."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest

from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise.settings import Settings
from ane.models.tortoise.synthesizer import Synthesizer
from ane.system.errors import UserError
from ane.system.machine import usable_cores
from tests.random_model import RandomModel

TEXTS = ["One.", "The wind blew over the hill.", "It rained in the valley. Then it stopped.", "Two?"]
SETTINGS = Settings(1, None, split=(20, 40))
SETTINGS = replace(SETTINGS, sampling=replace(SETTINGS.sampling, max_codes=10))


@pytest.fixture(scope="module")
def synthesizer() -> Synthesizer:
    model = RandomModel()
    return Synthesizer(model, TorchBackend(model, "cpu", "fp32", threads=usable_cores()))


@pytest.fixture(scope="module")
def alone(synthesizer) -> list[np.ndarray]:
    return [synthesizer.speak(text, "random", seed=seed, settings=SETTINGS).audio for seed, text in enumerate(TEXTS)]


def test_coroutines_share_a_synthesizer(synthesizer, alone):
    async def streamed(seed: int) -> np.ndarray:
        pieces = synthesizer.stream_async(TEXTS[seed], voice="random", seed=seed, settings=SETTINGS)
        return np.concatenate([piece async for piece in pieces])

    async def spoken(seed: int) -> np.ndarray:
        speech = await synthesizer.speak_async(TEXTS[seed], voice="random", seed=seed, settings=SETTINGS)
        return speech.audio

    async def everyone() -> list[np.ndarray]:
        return await asyncio.gather(*(call(seed) for call in (spoken, streamed) for seed in range(len(TEXTS))))

    for audio, expected in zip(asyncio.run(everyone()), [*alone, *alone], strict=True):
        np.testing.assert_allclose(audio, expected, atol=1e-4)


def test_the_event_loop_goes_on_and_errors_arrive(synthesizer):
    async def count_turns() -> int:
        work = asyncio.ensure_future(synthesizer.speak_async(TEXTS[2], voice="random", seed=1, settings=SETTINGS))
        turns = 0
        while not work.done():
            await asyncio.sleep(0.001)
            turns += 1
        with pytest.raises(UserError, match="nothing to say"):
            await synthesizer.speak_async(" ")
        return turns

    assert asyncio.run(count_turns()) > 3


def test_a_stream_that_is_left_stops_its_work(synthesizer, monkeypatch):
    async def hear_one_piece() -> None:
        async with aclosing(synthesizer.stream_async(TEXTS[2], voice="random", seed=2, settings=SETTINGS)) as pieces:
            await anext(pieces)
        calls.clear()
        await asyncio.sleep(0.1)
        assert not calls
        assert not synthesizer._lock.locked()

    calls: list[float] = []
    run = synthesizer.backend.run
    monkeypatch.setattr(synthesizer.backend, "run", lambda *stage, **inputs: (calls.append(time.monotonic()),
                                                                             run(*stage, **inputs))[1])
    asyncio.run(hear_one_piece())


def test_threads_share_a_synthesizer_on_the_cpu(synthesizer, alone):
    def speak(seed: int) -> np.ndarray:
        return synthesizer.speak(TEXTS[seed], "random", seed=seed, settings=SETTINGS).audio

    with ThreadPoolExecutor(4) as pool:
        for audio, expected in zip(pool.map(speak, [*range(4)] * 3), alone * 3, strict=True):
            np.testing.assert_array_equal(audio, expected)
