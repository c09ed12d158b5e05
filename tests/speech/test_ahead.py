"""Test parallel chunks of the default voice: the same sound in order, not far ahead, and no work once reading ends."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import ane
from ane.models.hibari.synthesizer import HibariSynthesizer
from ane.speech.request import SpeechContext
from ane.system.errors import UserError

TEXT = " ".join(
    (
        "The wind blew over the hill all night, and it rained in the valley until the road was under water.",
        "She counted eleven boats in the harbour before breakfast, and only three of them came back at noon.",
        "Our train leaves at a quarter past nine from the other platform, if nobody has told the driver otherwise.",
        "He wrote the letter twice and burned it once, because the first of them had been much too friendly.",
        "Nobody had told the gardener about the frost, so the oranges stayed outside, and we lost all of them.",
    )
)


@pytest.fixture(scope="module")
def one() -> HibariSynthesizer:
    return ane.load(threads=1)


@pytest.fixture
def two(monkeypatch) -> Iterator[HibariSynthesizer]:
    """A speaker with two threads, which leaves no thread behind."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    yield ane.load(threads=2)
    assert not chunk_threads()


def chunk_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("chunk")]


def begun(speaker: HibariSynthesizer, monkeypatch, fails: np.ndarray | None = None) -> list[bytes]:
    """The list to which the phonemes of each chunk are added as its work begins. Work on those of ``fails`` fails."""
    run, found = speaker.backend.run, []

    def noted(stage: str, **inputs: np.ndarray) -> np.ndarray:
        if stage == "text":
            found.append(inputs["ids"].tobytes())
            if fails is not None and np.array_equal(inputs["ids"][0, : len(fails)], fails):
                raise UserError("no memory")
        return run(stage, **inputs)

    monkeypatch.setattr(speaker.backend, "run", noted)
    return found


@pytest.mark.parametrize("way", ["speak", "stream", "speak_in_chunks"])
def test_two_threads_change_no_sound_no_fact_and_no_order(one, two, way):
    def spoken(speaker: HibariSynthesizer):
        made = getattr(speaker, way)(TEXT, seed=4)
        return made if way == "speak" else made.collect()

    first, second = spoken(one), spoken(two)
    assert len(first.chunks) >= 4
    np.testing.assert_array_equal(first.audio, second.audio)
    assert (first.words, first.facts, first.chunks) == (second.words, second.facts, second.chunks)
    assert all(map(np.array_equal, first.pitch, second.pitch))
    assert set(first.seconds_by_phase) == set(second.seconds_by_phase)


def test_texts_that_are_spoken_together_keep_their_order(one, two):
    texts = ["Yes.", TEXT, "No, never."]
    for text, speech in zip(texts, two.speak_all(texts, seed=1), strict=True):
        np.testing.assert_array_equal(speech.audio, one.speak(text, seed=1).audio)


def test_both_threads_work_and_progress_is_told_in_order(two, monkeypatch):
    run, threads, told = two.backend.run, set(), []

    def noted(stage: str, **inputs: np.ndarray) -> np.ndarray:
        threads.add(threading.current_thread().name)
        return run(stage, **inputs)

    monkeypatch.setattr(two.backend, "run", noted)
    speech = two.speak(TEXT, progress=lambda phase, done, total, note: told.append((done, total)))
    assert len(threads) == 2
    assert told == [(done, len(speech.chunks)) for done in range(1, len(speech.chunks) + 1)]


def test_a_slow_reader_finds_one_chunk_made_ahead_and_no_more(two, monkeypatch):
    found = begun(two, monkeypatch)
    stream = two.stream(TEXT)
    assert not found, "nothing is made before somebody reads"
    next(stream)
    deadline = time.monotonic() + 20
    while len(found) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)  # time for a third chunk to begin, if one wrongly did
    stream.close()
    assert len(found) == 2


def test_leaving_early_ends_the_work(two, monkeypatch):
    found = begun(two, monkeypatch)
    stream = two.speak_in_chunks(TEXT)
    next(stream)
    stream.close()
    made = len(found)
    assert made <= 3
    assert not chunk_threads()
    time.sleep(0.2)
    assert len(found) == made


def test_an_error_comes_after_the_sound_before_it(one, two, monkeypatch):
    chunks = two.chunks(two.request(TEXT), SpeechContext())
    begun(two, monkeypatch, fails=chunks[2].ids)
    heard = []
    with pytest.raises(UserError, match="no memory"):
        heard.extend(two.stream(TEXT, seed=2))  # the chunks of audio before the error stay in the list
    heard, before = np.concatenate(heard), np.concatenate(list(one.stream(TEXT, seed=2)))
    np.testing.assert_array_equal(heard, before[: len(heard)])
    assert len(heard) >= one.speak(chunks[0].text, seed=2).audio.size
