"""Test that each decoder and each stream has its own caches, on the stand-in and on Core ML itself.

If two decoders or two streams call a function, it is loaded once, but each keeps its own data between calls.
"""

import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest

from ane.backends import load_backend
from ane.backends.base import Backend
from ane.backends.decoding import DecoderShape
from ane.bundles.bundle import Bundle
from ane.models.tortoise.settings import Sampling, TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from converters.coreml.coreml_package import CoreMLOptions
from tests.backends.coreml.mac_fixtures import mac, unguarded_mac  # noqa: F401
from tests.conversions import converted
from tests.imported import imported
from tests.models.whisper.random_whisper import write_hugging_face
from tests.small_bundle import write_small_bundle

PREFIX, CODES = 9, 6
CACHES = pytest.mark.parametrize("cache", ["io", "state"])


@pytest.fixture(scope="module")
def tortoise(tmp_path_factory) -> Bundle:
    return Bundle(write_small_bundle(tmp_path_factory.mktemp("bundles"), ["autoregressive", "rlg_auto", "hifigan"]))


@pytest.fixture(scope="module")
def bundles(tortoise, shared, tmp_path_factory) -> dict[str, Bundle]:
    """The one above, and random weights of Whisper with packages of the decoder."""
    source: Path = write_hugging_face(tmp_path_factory.mktemp("whisper"))
    options = CoreMLOptions(lanes=(2,), caches=("io", "state"), buckets={"prefill": (16,), "step": (128,)})
    return {"tortoise": tortoise, "whisper": converted(shared, imported(source), [options], ["decoder"])}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A cache of compiled models for all tests here, so that each function has one first load."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def core_ml(request, home, monkeypatch) -> None:
    if sys.platform != "darwin":
        request.getfixturevalue("mac")
    monkeypatch.setenv("ANE_HOME", str(home))


def steps(backend: Backend, shape: DecoderShape, seed: int) -> Iterator[np.ndarray]:
    """The logits of each call of a decoder of two lanes. Inputs, and the states that Whisper attends to, are drawn."""
    decoder, rng = backend.decoder(2, CODES, 1, PREFIX), np.random.default_rng(seed)
    if shape.memory_length:
        decoder.set_memory(rng.standard_normal((shape.memory_length, shape.width), dtype=np.float32))
    yield decoder.prefill(rng.standard_normal((PREFIX, shape.width), dtype=np.float32))[1]
    for length in range(CODES):
        yield decoder.step(rng.standard_normal((2, 1, shape.width), dtype=np.float32), np.full(2, length))[1]


def assert_equal_in_turn(alone: list[list[np.ndarray]], *together: Iterator[np.ndarray]) -> None:
    """What iterators that are advanced in turn yield is what each yields alone."""
    in_turn = zip(*zip_longest(*together, fillvalue=np.zeros(0, np.float32)), strict=True)
    for expected, found in zip(alone, in_turn, strict=True):
        np.testing.assert_array_equal(*(np.concatenate([one.ravel() for one in each]) for each in (expected, found)))


@CACHES
@pytest.mark.parametrize("model", ["tortoise", "whisper"])
def test_two_decoders_stepped_in_turn_equal_each_alone(core_ml, bundles, cache, model):
    backend, bundle = load_backend("coreml", bundles[model], cache=cache), bundles[model]
    shape = bundle.config(bundle.family.stages.decoder.network).decoder_shape
    alone = [list(steps(backend, shape, seed)) for seed in (0, 1)]
    assert_equal_in_turn(alone, *(steps(backend, shape, seed) for seed in (0, 1)))


@CACHES
def test_two_streams_of_speech_at_once_sound_as_each_alone(core_ml, tortoise, cache):
    synthesizer = TortoiseSpeaker(tortoise, load_backend("coreml", tortoise, cache=cache))
    settings = TortoiseSettings.of("fastest", candidates=1, lanes=2, sampling=Sampling(max_codes=CODES))

    def stream(text: str) -> Iterator[np.ndarray]:
        return synthesizer.stream(text, "noise", seed=0, settings=settings)

    texts = "Hi.", "You."
    assert_equal_in_turn([list(stream(text)) for text in texts], *map(stream, texts))
