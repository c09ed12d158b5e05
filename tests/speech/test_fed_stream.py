"""Speech of a text that arrives while it is spoken, with streams that stand in for a model's."""

from collections.abc import Iterator

import numpy as np
import pytest

from ane.speech.fed_stream import FedStream
from ane.speech.stream import SoundStream
from ane.system.errors import UserError
from ane.system.timeline import Timeline
from ane.text import Lexicon, LexiconEntry, normalise_english, nothing_to_say_error, read_passages

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

    def items(self) -> Iterator[np.ndarray]:
        return self

    def close(self) -> None:
        self.closed = True


class SpellingSpeaker:
    """Begins streams, and remembers what it spoke."""

    def __init__(self) -> None:
        self.spoken: list[SpelledStream] = []

    def feed(self, texts, lexicon: Lexicon | None = None) -> FedStream:
        timeline = Timeline()

        def begin(text: str) -> SpelledStream:
            self.spoken.append(stream := SpelledStream(text, timeline))
            return stream

        return FedStream(texts, begin, normalise_english, lexicon, RATE, timeline)

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
    assert speaker.texts == ["The turtle came first,", " and the rabbit. It was late, and so on.",
                             " They slept. Good night, all."]


def test_pauses_without_words_are_spoken_with_what_follows_or_at_the_end():
    speaker = SpellingSpeaker()
    stream = speaker.feed(["[pause:1s] ", "It was late [pause:1s] here, and so they all ", "slept. \n",
                           "[pause:2s]", "\n"])
    audio = np.concatenate(list(stream))
    letters = sum(one.facts["codes"] for one in speaker.spoken)
    assert len(audio) == 10 * letters + 4 * RATE


def test_nothing_to_say_is_an_error():
    for texts in ([], [""], ["  \n"], ["... ", "!!"]):
        with pytest.raises(UserError, match="there is nothing to say"):
            list(SpellingSpeaker().feed(texts))


def test_ssml_is_refused_and_faulty_markup_has_its_line():
    with pytest.raises(UserError, match="cannot be SSML"):
        list(SpellingSpeaker().feed(["<speak>Hello there, ", "you.</speak>"]))
    text = "The first line is here.\n" * 3 + "Then a pause [pause:x] here.\n"
    with pytest.raises(UserError, match=r"line 4: \[pause:x\] is not a pause"):
        list(SpellingSpeaker().feed(text[at:at + 5] for at in range(0, len(text), 5)))


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


def test_nothing_comes_while_there_is_no_text_yet():
    stream = SpellingSpeaker().feed([None, "The turtle came first, and the ", None, "rabbit."])
    items = [item is None for item in stream.items()]
    assert (items[0], sum(items)) == (True, 2)
    assert stream.facts["codes"] == 30
