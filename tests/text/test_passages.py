"""Pauses in plain text, and how silences are given to chunks."""

import pytest

from ane.system.errors import UserError
from ane.text import read_passages
from ane.text.passages import Delivery, Passage, with_deliveries
from ane.text.tokenizer import NothingToSayError
from ane.text.user_lexicon import Lexicon, LexiconEntry

PAUSES = [
    ("Hello there.", [Passage("Hello there.")]),
    ("Wait [pause:1.5s] go", [Passage("Wait ", 1.5), Passage(" go")]),
    ("Wait [[slnc 500]] go", [Passage("Wait ", 0.5), Passage(" go")]),
    ("[pause:500ms][pause: 1 s]go", [Passage("", 0.5), Passage("", 1.0), Passage("go")]),
    ("go [pause:.25s]\n", [Passage("go ", 0.25)]),
    ("[1] a[b] [[Wiki page]] [paused] [x](http://y.z)", [Passage("[1] a[b] [[Wiki page]] [paused] [x](http://y.z)")]),
    ("", [Passage("")]),
]


@pytest.mark.parametrize(("text", "passages"), PAUSES)
def test_pauses_divide_a_text(text, passages):
    assert read_passages(text) == passages


FAULTS = [
    ("a\n[pause]", r"line 2: \[pause\] is not a pause: write \[pause:1.5s\]"),
    ("[pause:long]", r"\[pause:long\] is not a pause"), ("[pause:-1s]", "is not a pause"),
    ("[pause:1.5s and on", "is not a pause"), ("[pause:1]", "is not a pause"),
    ("[pause:61s]", "longer than 60 s"), ("[[slnc 99999999]]", "longer than 60 s"),
    ("a\nb [[slnc x]]", r"line 2: \[\[slnc x\]\] is not a pause"),
    ("[[slnc 5]", "is not a pause"), ("\n\n[[rate 200]] fast", r"line 3: \[\[rate 200\]\] is a command of macOS"),
]


@pytest.mark.parametrize(("text", "fault"), FAULTS)
def test_markup_that_cannot_be_done_is_refused_with_its_line(text, fault):
    with pytest.raises(UserError, match=fault):
        read_passages(text)


def test_the_lexicon_is_applied_between_pauses():
    lexicon = Lexicon([LexiconEntry("pause", "paws")])
    assert read_passages("A pause [pause:1s] pause", lexicon) == [Passage("A paws ", 1.0), Passage(" paws")]


def test_every_silence_belongs_to_a_chunk():
    passages = [Passage("", 1), Passage("a b", 2, speed=1.5), Passage("--", 3), Passage("c", 0), Passage("", 4)]
    chunks = with_deliveries(passages, lambda text: [word for word in text.split() if word.isalpha()])
    assert chunks == [("a", Delivery(1.5, before=1)), ("b", Delivery(1.5, after=5)), ("c", Delivery(after=4))]


def test_silence_alone_is_nothing_to_say():
    with pytest.raises(NothingToSayError):
        with_deliveries([Passage("", 1)], str.split)
