"""Test text that arrives incrementally: when a clause ends, and that no cut changes a word or holds much text back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.text import Lexicon, LexiconEntry, normalise_english, read_passages
from ane.text.clauses import MOST_HELD, ClauseReader
from tests.tables import rows
from tests.work import grows_linearly

FRAGMENTS = [text for (text,) in rows(__file__, "clauses.tsv", "fragments")]


def arrivals(text: str, sizes: list[int]) -> list[str]:
    """``text`` in pieces of these sizes, over and over."""
    found, start = [], 0
    while start < len(text):
        size = sizes[len(found) % len(sizes)]
        found.append(text[start : start + size])
        start += size
    return found


def pieces_of(text: str, sizes: list[int], reader: ClauseReader) -> list[str]:
    return [piece for part in arrivals(text, sizes) for piece in reader.feed(part)] + reader.finish()


def words(text: str) -> list[str]:
    return re.findall("[a-z']+", normalise_english(text))


paragraphs = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=12).map(" ".join)
sizes = st.lists(st.integers(1, 30), min_size=1, max_size=6)


@given(paragraphs, sizes)
def test_the_words_of_the_pieces_are_those_of_the_whole_text(text, sizes):
    pieces = pieces_of(text, sizes, ClauseReader())
    assert "".join(pieces) == text
    assert [word for piece in pieces for word in words(piece)] == words(text)


@given(paragraphs, sizes)
def test_the_pieces_do_not_depend_on_how_the_text_arrives_once_it_is_complete(text, sizes):
    assert pieces_of(text, sizes, ClauseReader()) == pieces_of(text, [1], ClauseReader())


FIRST = rows(__file__, "clauses.tsv", "first pieces")


@pytest.mark.parametrize(("text", "piece"), FIRST)
def test_the_first_clause_is_released_when_the_plain_word_after_it_is_complete(text, piece):
    reader = ClauseReader()
    for character in text[:-1]:
        assert reader.feed(character) == []
    assert reader.feed(text[-1]) == [piece]


def test_a_quotation_is_held_back_until_it_ends():
    reader = ClauseReader()
    assert reader.feed('He said "Go away. Do it now, please. Then come ') == []
    assert reader.feed('back." And she ') == ['He said "Go away. Do it now, please. Then come back."']
    late = "and on " * 30 + '"Come here now. ' + "And so it goes, my friend. " * 6
    first, *_ = ClauseReader().feed(late)
    assert (len(first), first[-10:]) == (306, "my friend.")  # after 300 characters, a quotation may be divided


@pytest.mark.parametrize(
    "text",
    [
        *(
            f"It is {opening}never closed, " + "and it goes on, as it did. " * 80
            for opening in ('"', "(", "“", "<b ", "[", "<!-- ")
        ),
        "word after word " * 300,
    ],
)
def test_what_never_closes_or_has_no_mark_is_spoken_at_last(text):
    pieces = pieces_of(text, [40], ClauseReader())
    assert len(pieces) > 2
    assert "".join(pieces) == text


@pytest.mark.parametrize(
    "text",
    [
        "It is the one that is called KIA. CIA AND NOW they all go.",  # in capitals with the words that follow
        "We met there in this year on the 5. May 2024 was warm and so on.",
    ],
)
def test_a_cut_that_would_change_a_word_is_not_made(text):
    pieces = pieces_of(text, [1], ClauseReader())
    assert [word for piece in pieces for word in words(piece)] == words(text)


def test_a_date_is_not_divided():
    assert pieces_of("We met there on 5 May, 2024, and on May 6, 2025. It rained.", [1], ClauseReader())[:2] == [
        "We met there on 5 May, 2024,",
        " and on May 6, 2025.",
    ]


def test_after_the_first_piece_short_sentences_are_not_divided():
    text = "The first clause ends here, and it goes on. The second sentence has a comma, here. The third "
    reader = ClauseReader()
    assert reader.feed(text) == [
        "The first clause ends here,",
        " and it goes on. The second sentence has a comma, here.",
    ]


def test_phrases_of_the_lexicon_are_not_divided():
    lexicon = Lexicon([LexiconEntry("Stop the press, now", "extra")])
    reader = ClauseReader(lambda text: normalise_english(lexicon(text)))
    assert reader.feed("And then he shouted aloud: Stop ") == ["And then he shouted aloud:"]
    assert reader.feed("the press, now ") == []
    assert reader.feed("to all. They ") == [" Stop the press, now to all."]
    assert reader.finish() == [" They "]
    assert ClauseReader().finish() == []


def test_markup_is_whole_in_a_piece():
    text = "It was late, [pause:1.5s] and dark. Then, [[slnc 500]] nothing, for a long time, happened. " * 5
    pieces = pieces_of(text, [3], ClauseReader())
    assert len(pieces) > 4
    assert sum(passage.silence for piece in pieces for passage in read_passages(piece)) == 10


# repeated, they keep something open, or cannot be divided anywhere, for as long as they continue
HELD_BACK = [text for (text,) in rows(__file__, "clauses.tsv", "held back")]


@pytest.mark.parametrize("repeated", HELD_BACK)
def test_no_more_than_a_limit_is_held_whatever_is_open_and_however_it_arrives(repeated):
    text = repeated * (9_000 // len(repeated))
    whole = pieces_of(text, [len(text)], ClauseReader())
    for size in (4, 500):
        reader, pieces, held = ClauseReader(), [], 0
        for part in arrivals(text, [size]):
            pieces += (found := reader.feed(part))
            held += len(part) - len("".join(found))
            assert held <= MOST_HELD + size
        assert pieces + reader.finish() == whole
    assert "".join(whole) == text


@pytest.mark.parametrize("repeated", HELD_BACK)
def test_twice_the_text_takes_twice_the_time(repeated):
    def read(characters: int) -> None:
        pieces_of(repeated * (characters // len(repeated)), [4], ClauseReader())

    assert grows_linearly(read, 4_000)
