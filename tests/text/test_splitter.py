"""Where long text is cut, and where it never is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.system.errors import UserError
from ane.text import split, split_sentences, split_upstream

FOX = "The quick brown fox jumps over the lazy dog."     # 44 characters


@pytest.mark.parametrize("sentences", [
    ["Dr. Smith went to Washington, D.C. on Jan. 5th.", "He met Mr. J. R. Jones at 5 p.m. on Elm St. by car."],
    ["Pi is 3.14 and e is 2.72, e.g. in maths, i.e. always.", "That is approx. right, No. 5 vs. No. 6."],
    ["I live in the U.S. of A. and like the U.S. Army.", "They moved to the U.K. in 1999 with the Acme Co. people."],
    ["He lived in the U.S.", "He moved at 5 p.m.", "Then he ate bread, etc.", "But why?"],
    ["He paused... and went on.", "Then nothing...", "“Wait!” she cried.", "“Why?” he asked."],
    ["She said, “It works.”", "He nodded (slowly).", "What?!", "Yes!!!", "'Fine.'", "[Done.]"],
    ["See fig. 5 and p. 12.", "No.", "The end, Max.", "It was I.", "She left."],
    ["I never . . . oh well, so be it.", "Fine."],
])
def test_sentences_end_where_people_end_them(sentences):
    """With a desired length of 1, every sentence end is taken, and nothing else while the sentence fits."""
    assert split_sentences(" ".join(sentences), desired=1, maximum=80) == sentences


def test_short_text_is_one_chunk():
    assert split_sentences("Hello there. How are you?\nFine.") == ["Hello there. How are you? Fine."]


def test_sentences_are_packed_towards_the_desired_length():
    chunks = split_sentences(" ".join([FOX] * 20), desired=100, maximum=140)
    assert chunks == [f"{FOX} {FOX}"] * 10


def test_paragraphs_are_preferred_to_sentences():
    first, second = f"{FOX} {FOX} {FOX}", f"{FOX} {FOX} {FOX} {FOX}"
    assert split_sentences(f"{first}\n\n{second}", desired=150, maximum=190) == [first, second]


def test_a_sentence_that_fits_is_never_cut():
    text = "One two three, four five six; seven eight nine. " * 12
    assert all(chunk.endswith("nine.") for chunk in split_sentences(text, desired=60, maximum=100))


def test_a_long_sentence_is_cut_at_its_clauses():
    clause = "and then the wolf went on through the wood and sang"      # 51
    text = f"{clause}; {clause}, {clause}, {clause}; {clause}, {clause}."
    chunks = split_sentences(text, desired=100, maximum=160)
    assert all(chunk[-1] in ";,." for chunk in chunks)
    assert all(50 < len(chunk) <= 160 for chunk in chunks)


def test_a_long_sentence_without_marks_is_cut_evenly_between_words():
    chunks = split_sentences("word " * 100, desired=200, maximum=300)
    assert len(chunks) == 2
    assert abs(len(chunks[0]) - len(chunks[1])) <= 5


def test_text_in_lower_case_is_cut_at_its_sentences():
    chunks = split_sentences("hello there my friend. how are you today? i am fine. " * 20)
    assert all(chunk[-1] in ".?" for chunk in chunks)


def test_a_quotation_is_kept_together_if_it_can_be():
    text = f'{FOX} {FOX} She said, "{FOX} {FOX}" {FOX} {FOX}'
    assert [chunk.count('"') % 2 for chunk in split_sentences(text, desired=90, maximum=150)] == [0, 0, 0]


@pytest.mark.parametrize("long", [280, 290, 297])
def test_no_tiny_chunk_is_left_where_a_clause_can_be_moved(long):
    sentence = ("a few more words, " * 20)[:long - 2].rstrip(", ") + "."
    chunks = split_sentences(f"{sentence.capitalize()} No. {sentence.capitalize()} Yes.")
    assert min(map(len, chunks)) >= 40


def test_a_word_above_the_maximum_stays_whole():
    word = "x" * 500
    assert split_sentences(f"Short. {word} short.", desired=20, maximum=40) == ["Short.", word, "short."]


TEXT = st.lists(st.one_of(
    st.sampled_from(["word", "Word", "Dr.", "U.S.", "3.14", "end.", "End!", "so;", "well,", "(yes)", '"No."', "“Oh”",
                     "...", "—", "x" * 30, "1."]),
    st.text(max_size=8)), max_size=60)
GAP = st.sampled_from([" ", "  ", "\n", "\n\n", "\t", "\u00a0", "\r\n\r\n"])


@st.composite
def texts(draw):
    return "".join(word + draw(GAP) for word in draw(TEXT))


@settings(deadline=None, max_examples=300)
@given(texts(), st.integers(1, 60), st.integers(0, 60))
def test_nothing_is_lost_and_no_chunk_is_too_long(text, desired, more):
    chunks = split_sentences(text, desired, desired + more)
    assert " ".join(chunks) == " ".join(text.split())
    assert all(len(chunk) <= desired + more or len(chunk.split()) == 1 for chunk in chunks)


@settings(deadline=None, max_examples=300)
@given(texts(), st.integers(1, 60), st.integers(0, 60))
def test_upstreams_splitter_takes_any_text_and_lengths(text, desired, more):
    maximum = desired + more
    assert all(chunk == chunk.strip() and len(chunk) <= maximum for chunk in split_upstream(text, desired, maximum))


# --- split: the function the synthesizer calls -----------------------------------------------------------------------


def test_a_bar_is_a_break_that_the_writer_wants():
    assert split("One. Two.|Three. | Four.") == ["One. Two.", "Three.", "Four."]


def test_parts_between_bars_are_split_if_they_are_long():
    two = f"{FOX} {FOX}"
    assert split(f"Hi there.|{two} {two}", desired=90, maximum=100) == ["Hi there.", two, two]


def test_upstream_splits_no_further_than_bars():
    text = " ".join([FOX] * 4)
    assert split(f"{text} | Bye. ", desired=20, maximum=50, splitter="upstream") == [text, "Bye."]


def test_the_splitter_is_chosen_by_name():
    text = "He met Dr. Smith at the door of it. Then he left."
    assert split(text, 30, 40) == ["He met Dr. Smith at the door of it.", "Then he left."]
    assert split(text, 8, 40, "upstream") == ["He met Dr.", "Smith at the door of it.", "Then he left."]


def test_chunks_without_a_letter_are_dropped():
    assert split(f"{FOX}\n\n* * *\n\n{FOX}", 44, 45) == [FOX, FOX]


@pytest.mark.parametrize("text", ["", "...", "😀 !"])
def test_text_with_nothing_to_say_comes_back_whole(text):
    assert split(text) == [text]


@pytest.mark.parametrize(("desired", "maximum"), [(0, 10), (-1, 10), (20, 10)])
def test_lengths_that_make_no_sense_are_refused(desired, maximum):
    with pytest.raises(UserError, match=f"chunks of {desired} to {maximum} characters"):
        split("Hello.", desired, maximum)


def test_an_unknown_splitter_is_refused_with_the_names_that_exist():
    with pytest.raises(UserError, match=r"'pysbd'.*sentences, upstream"):
        split("Hello.", splitter="pysbd")
