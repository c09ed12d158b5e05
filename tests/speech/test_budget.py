"""A request has a budget: a short text cannot ask for hours of silence, nor a lexicon for megabytes of text."""

import numpy as np
import pytest

import ane
from ane.speech.delivery import BLOCK_SECONDS
from ane.speech.request import Budget, Run, Spending
from ane.system.errors import UserError
from ane.text import Lexicon, LexiconEntry, read_passages

RATE = 24000


@pytest.fixture(scope="module")
def speaker() -> "ane.Speaker":
    return ane.load("demo-fast", threads=1)


def spent(*texts: str, lexicon: Lexicon | None = None, **budget: float) -> Spending:
    spending = Spending(Budget(**budget))
    for text in texts:
        spending.add(text, read_passages(text, lexicon))
    return spending


@pytest.mark.parametrize("texts", [["a" + " [pause:60s]" * 10], ["a [pause:60s]"] * 10,
                                   ["<speak>a" + "<break time='60s'/>" * 10 + "</speak>"]])
def test_pauses_are_bounded_together(texts):
    assert spent(*texts).silence == 600
    with pytest.raises(UserError, match="asks for 601 s of silence, at most 600 s can be made at a time"):
        spent(*texts, "b [pause:1s]")


def test_a_lexicon_may_not_make_a_text_many_times_as_long():
    lexicon = Lexicon([LexiconEntry("a", "boat " * 40)])
    assert spent("a " * 20, lexicon=lexicon).spelled > 4000
    with pytest.raises(UserError, match="the lexicon makes 410000 characters of 4000, at most 4 times as many"):
        spent("a " * 2000, lexicon=Lexicon([LexiconEntry("a", "boat " * 40 + "home")]))


def test_a_request_of_every_form_has_the_budget(speaker):
    pauses = "A boat." + " [pause:60s]" * 10
    for text, speak in ((pauses + "[pause:1s]", speaker.speak), (pauses + "[pause:1s]", speaker.stream),
                        ([pauses, "[pause:1s] Home."], lambda texts: list(speaker.feed(texts)))):
        with pytest.raises(UserError, match="601 s of silence"):
            speak(text)
    assert len(list(speaker.speak_all(["A boat." + "[pause:60s]" * 6] * 2))) == 2


def test_words_that_are_awaited_do_not_count_pauses_twice(speaker):
    run = Run(spending=Spending(Budget(silence=5)))
    texts = ["[pause:2s]. ", "\n[pause:2s]. ", "\nA boat is here. "]
    sound = np.concatenate(list(speaker.feed_of(texts, speaker.request("", ssml=False), run)))
    assert 4 * RATE < len(sound) < 7 * RATE
    assert run.spending.silence == 4


def test_silence_comes_in_blocks_that_join_to_the_whole(speaker):
    text = "[pause:2.5s] A boat. [pause:3.5s] Home. [pause:4s]"
    pieces = list(speaker.stream(text))
    assert max(map(len, pieces)) < 4 * RATE
    assert sum(not piece.any() and len(piece) == BLOCK_SECONDS * RATE for piece in pieces) >= 7
    whole = speaker.speak(text)
    assert whole.seconds == pytest.approx(sum(map(len, pieces)) / RATE, abs=0.02)
    assert whole.words[0].start > 2.5
