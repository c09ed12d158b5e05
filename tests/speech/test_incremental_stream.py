"""Test text that arrives incrementally, and asynchronous streams."""

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from unittest.mock import MagicMock

import numpy as np
import pytest

from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from ane.speech.incremental_stream import IncrementalStream
from ane.speech.stream import SoundStream
from ane.system.errors import UserError
from ane.system.machine import usable_cores
from ane.system.timeline import Timeline
from ane.text import Lexicon, LexiconEntry, normalise_english, nothing_to_say_error, read_passages
from tests.random_model import random_model
from tests.refusals import assert_refused

RATE = 1000


class SpelledStream(SoundStream):
    """Ten samples for each letter, in two pieces, and the silence of pauses."""

    sample_rate = RATE

    def __init__(self, text: str, timeline: Timeline):
        timeline.mark_text_ready()
        self.timeline, self.closed = timeline, False
        passages = read_passages(text, ssml=False)
        letters = sum(character.isalnum() for passage in passages for character in passage.text)
        if not letters:
            raise nothing_to_say_error(text)
        rest = sum(round(passage.silence * RATE) for passage in passages)
        self.chunks, self.notes = [text], ["a note"]
        self.facts = {"seed": 7, "codes": letters}
        self._pieces = iter([np.ones(5 * letters, np.float32), np.ones(5 * letters + rest, np.float32)])

    def __next__(self) -> np.ndarray:
        return next(self._pieces)

    def __iter__(self) -> Iterator[np.ndarray]:
        return self

    def close(self) -> None:
        self.closed = True


class SpellingSpeaker:
    """Begins streams, and remembers what it spoke."""

    def __init__(self) -> None:
        self.spoken: list[SpelledStream] = []

    def feed(self, texts, lexicon: Lexicon | None = None) -> IncrementalStream:
        timeline = Timeline()

        def begin(text: str) -> SpelledStream:
            self.spoken.append(stream := SpelledStream(text, timeline))
            return stream

        return IncrementalStream(texts, begin, normalise_english, lexicon, RATE, timeline)

    @property
    def texts(self) -> list[str]:
        return [stream.chunks[0] for stream in self.spoken]


def arriving(log: list[str], *texts: str) -> Iterator[str]:
    for text in texts:
        log.append(text)
        yield text


def test_the_first_clause_is_spoken_before_the_rest_is_asked_for():
    speaker, log = SpellingSpeaker(), []
    stream = speaker.feed(arriving(log, "The turtle came ", "first, and then", " it slept. ", "It was late."))
    assert log == []
    next(stream)
    assert log == ["The turtle came ", "first, and then"]
    assert speaker.texts == ["The turtle came first,"]
    rest = list(stream)
    assert "".join(speaker.texts) == "The turtle came first, and then it slept. It was late."
    assert sum(map(len, rest)) + 5 * 18 == 10 * stream.facts["codes"]
    assert (stream.facts["seed"], stream.notes, stream.chunks) == (7, ["a note"], speaker.texts)
    assert stream.seconds == sum(10 * one.facts["codes"] for one in speaker.spoken) / RATE


def test_what_has_arrived_together_is_spoken_together():
    speaker = SpellingSpeaker()
    list(speaker.feed(["The turtle came first, and the rabbit. It was late, and so on. They slept. Good night, all."]))
    assert speaker.texts == [
        "The turtle came first,",
        " and the rabbit. It was late, and so on.",
        " They slept. Good night, all.",
    ]


def test_pauses_without_words_are_spoken_with_what_follows_or_at_the_end():
    speaker = SpellingSpeaker()
    stream = speaker.feed(
        ["[pause:1s] ", "It was late [pause:1s] here, and so they all ", "slept. \n", "[pause:2s]", "\n"]
    )
    audio = np.concatenate(list(stream))
    assert len(audio) == 10 * sum(one.facts["codes"] for one in speaker.spoken) + 4 * RATE


def test_many_pauses_and_marks_without_a_word_keep_their_length_and_their_voice():
    """However much of it comes: each arrival reads a limited number of characters."""
    speaker, read, begin = SpellingSpeaker(), [], SpelledStream.__init__
    texts = [*["... --- *** [pause:100ms]\n"] * 700, "[voice:Anna]!\n", *["~~~ \n"] * 700]

    def counted(self: SpelledStream, text: str, timeline: Timeline) -> None:
        read.append(len(text))
        begin(self, text, timeline)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpelledStream, "__init__", counted)
        audio = np.concatenate(list(speaker.feed([*texts, "It was late, and so they all slept."])))
    assert len(audio) == 10 * sum(one.facts["codes"] for one in speaker.spoken) + 70 * RATE
    assert "[voice:Anna]" in speaker.texts[0]
    assert max(read) < 7000
    assert_refused(
        r"line 1403: \[pause:x\] is not a pause", lambda: list(SpellingSpeaker().feed([*texts, "\n[pause:x] and so"]))
    )


def test_nothing_to_say_is_an_error():
    for texts in ([], [""], ["  \n"], ["... ", "!!"]):
        assert_refused("there is nothing to say", list, SpellingSpeaker().feed(texts))


def test_ssml_is_refused_and_faulty_markup_has_its_line():
    assert_refused("cannot be SSML", lambda: list(SpellingSpeaker().feed(["<speak>Hello there, ", "you.</speak>"])))
    text = "The first line is here.\n" * 3 + "Then a pause [pause:x] here.\n"
    assert_refused(
        r"line 4: \[pause:x\] is not a pause",
        lambda: list(SpellingSpeaker().feed(text[at : at + 5] for at in range(0, len(text), 5))),
    )


def test_a_phrase_of_the_lexicon_is_not_divided():
    lexicon = Lexicon([LexiconEntry("Stop the press, now", "extra")])
    for entries, spoken in ((None, "Then they stop the press,"), (lexicon, "Then they stop the press, now,")):
        speaker = SpellingSpeaker()
        list(speaker.feed(list("Then they stop the press, now, today. It is not so."), entries))
        assert speaker.texts[0] == spoken


def test_closing_stops_the_text_and_the_sound():
    speaker, closed = SpellingSpeaker(), []

    def texts():
        try:
            yield "The turtle came first, and the "
            yield "rabbit."
        finally:
            closed.append(True)

    stream = speaker.feed(texts())
    next(stream)
    stream.close()
    assert closed
    assert speaker.spoken[0].closed
    assert list(stream) == []


def test_times_are_counted_from_the_first_clause():
    stream = SpellingSpeaker().feed(["The turtle came first, and the ", "rabbit. It was ", "late."])
    next(stream)
    ready = stream.timeline.text_ready
    list(stream)
    assert stream.timeline.text_ready == ready
    assert stream.elapsed > 0


TEXTS = ["One.", "The wind blew over the hill.", "It rained in the valley. Then it stopped.", "Two?"]
SETTINGS = TortoiseSettings(1, None, split=(20, 40))
SETTINGS = replace(SETTINGS, sampling=replace(SETTINGS.sampling, max_codes=10))


@pytest.fixture(scope="module")
def synthesizer() -> TortoiseSpeaker:
    model = random_model()
    return TortoiseSpeaker(model, TorchBackend(model, "cpu", "fp32", threads=usable_cores()))


@pytest.fixture(scope="module")
def alone(synthesizer) -> list[np.ndarray]:
    return [synthesizer.speak(text, "random", seed=seed, settings=SETTINGS).audio for seed, text in enumerate(TEXTS)]


async def test_coroutines_share_a_synthesizer(synthesizer, alone):
    async def streamed(seed: int) -> np.ndarray:
        pieces = synthesizer.stream_async(TEXTS[seed], voice="random", seed=seed, settings=SETTINGS)
        return np.concatenate([piece async for piece in pieces])

    async def spoken(seed: int) -> np.ndarray:
        speech = await synthesizer.speak_async(TEXTS[seed], voice="random", seed=seed, settings=SETTINGS)
        return speech.audio

    everyone = await asyncio.gather(*(call(seed) for call in (spoken, streamed) for seed in range(len(TEXTS))))
    for audio, expected in zip(everyone, [*alone, *alone], strict=True):
        np.testing.assert_allclose(audio, expected, atol=1e-4)


async def test_the_event_loop_goes_on_and_errors_arrive(synthesizer):
    work = asyncio.ensure_future(synthesizer.speak_async(TEXTS[2], voice="random", seed=1, settings=SETTINGS))
    turns = 0
    while not work.done():
        await asyncio.sleep(0.001)
        turns += 1
    with pytest.raises(UserError, match="nothing to say"):
        await synthesizer.speak_async(" ")
    assert turns > 3


async def test_a_stream_that_is_left_stops_its_work(synthesizer, monkeypatch):
    run = MagicMock(side_effect=synthesizer.backend.run)
    monkeypatch.setattr(synthesizer.backend, "run", run)
    async with aclosing(synthesizer.stream_async(TEXTS[2], voice="random", seed=2, settings=SETTINGS)) as pieces:
        await anext(pieces)
    assert run.called
    run.reset_mock()
    await asyncio.sleep(0.1)
    assert not run.called
    assert synthesizer.turns.idle


def test_threads_share_a_synthesizer_on_the_cpu(synthesizer, alone):
    def speak(seed: int) -> np.ndarray:
        return synthesizer.speak(TEXTS[seed], "random", seed=seed, settings=SETTINGS).audio

    with ThreadPoolExecutor(4) as pool:
        for audio, expected in zip(pool.map(speak, [*range(4)] * 2), alone * 2, strict=True):
            np.testing.assert_array_equal(audio, expected)


@pytest.mark.parametrize("size", [1, 3, 17, 1000])
def test_a_listing_that_arrives_in_pieces_is_not_spoken(size):
    text = (
        "Here is the code that you asked for.\n\n```python\nx = 1\n\ny = 2\n```\n\nIt adds the two numbers. "
        "Then it ends as it should.\n"
    )
    speaker = SpellingSpeaker()
    list(speaker.feed(text[at : at + size] for at in range(0, len(text), size)))
    assert re.findall(r"\w+", " ".join(speaker.texts)) == re.findall(
        r"\w+", "Here is the code that you asked for. It adds the two numbers. Then it ends as it should."
    )
