"""Test where text may be split, and where it must never be split."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ane.system.errors import UserError
from ane.text import split
from ane.text.splitter import WORD_TEXT, TextPiece, pack, split_sentences
from tests.work import lines_run

FOX = "The quick brown fox jumps over the lazy dog."  # 44 characters


@pytest.mark.parametrize(
    "sentences",
    [
        ["Dr. Smith went to Washington, D.C. on Jan. 5th.", "He met Mr. J. R. Jones at 5 p.m. on Elm St. by car."],
        ["Pi is 3.14 and e is 2.72, e.g. in maths, i.e. always.", "That is approx. right, No. 5 vs. No. 6."],
        [
            "I live in the U.S. of A. and like the U.S. Army.",
            "They moved to the U.K. in 1999 with the Acme Co. people.",
        ],
        ["He lived in the U.S.", "He moved at 5 p.m.", "Then he ate bread, etc.", "But why?"],
        ["He paused... and went on.", "Then nothing...", "“Wait!” she cried.", "“Why?” he asked."],
        ["She said, “It works.”", "He nodded (slowly).", "What?!", "Yes!!!", "'Fine.'", "[Done.]"],
        ["See fig. 5 and p. 12.", "No.", "The end, Max.", "It was I.", "She left."],
        ["I never . . . oh well, so be it.", "Fine."],
        ["He was in Class D.", "4 went, and he took vitamin C.", "10 days passed, see p. 5."],
    ],
)
def test_abbreviations_and_quotations_do_not_end_sentences_by_mistake(sentences):
    """With a desired length of 1, the text is split at every sentence end, and nowhere else while a sentence fits."""
    assert split_sentences(" ".join(sentences), desired=1, maximum=80) == sentences


def test_sentences_are_packed_towards_the_desired_length():
    assert split_sentences("Hello there. How are you?\nFine.") == ["Hello there. How are you? Fine."]
    chunks = split_sentences(" ".join([FOX] * 20), desired=100, maximum=140)
    assert chunks == [f"{FOX} {FOX}"] * 10


def test_paragraphs_are_preferred_to_sentences():
    first, second = f"{FOX} {FOX} {FOX}", f"{FOX} {FOX} {FOX} {FOX}"
    assert split_sentences(f"{first}\n\n{second}", desired=150, maximum=190) == [first, second]


@pytest.mark.parametrize(
    ("text", "chunk"),
    [
        ("Chapter 12\n\nIn the spring.", "Chapter 12\n\nIn the spring."),
        ("The “End”\n \n\nIt was.", "The “End”\n\nIt was."),
        ("Hi all,\n\nWe met.\n\nThanks,\nJo", "Hi all, We met. Thanks, Jo"),
        ("one line\nand another", "one line and another"),
        ("Bring:\n• tent\n• 1 x bag", "Bring:\n• tent\n• 1 x bag"),
        ("We need\n\n1. Eggs\n2) Milk\n  3. Tea", "We need\n1. Eggs\n2) Milk\n3. Tea"),
        ("It was on page\n12. The end came.", "It was on page 12. The end came."),
    ],
)
def test_line_breaks_that_make_a_pause_stay_in_a_chunk(text, chunk):
    assert split_sentences(text) == [chunk]


def test_a_sentence_that_fits_is_never_cut():
    text = "One two three, four five six; seven eight nine. " * 12
    assert all(chunk.endswith("nine.") for chunk in split_sentences(text, desired=60, maximum=100))


def test_a_long_sentence_is_cut_at_its_clauses():
    clause = "and then the wolf went on through the wood and sang"  # 51
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
def test_a_clause_moves_to_a_neighbour_that_would_be_very_short(long):
    sentence = ("a few more words, " * 20)[: long - 2].rstrip(", ") + "."
    chunks = split_sentences(f"{sentence.capitalize()} No. {sentence.capitalize()} Yes.")
    assert min(map(len, chunks)) >= 40


def test_a_word_above_the_maximum_stays_whole():
    word = "x" * 500
    assert split_sentences(f"Short. {word} short.", desired=20, maximum=40) == ["Short.", word, "short."]


TEXT = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "word",
                "Word",
                "Dr.",
                "U.S.",
                "3.14",
                "end.",
                "End!",
                "so;",
                "well,",
                "(yes)",
                '"No."',
                "“Oh”",
                "...",
                "—",
                "x" * 30,
                "1.",
            ]
        ),
        st.text(max_size=8),
    ),
    max_size=60,
)
GAP = st.sampled_from([" ", "  ", "\n", "\n\n", "\t", "\u00a0", "\r\n\r\n"])


@st.composite
def texts(draw):
    return "".join(word + draw(GAP) for word in draw(TEXT))


@given(texts(), st.integers(1, 60), st.integers(0, 60))
@example("word {  }", 1, 0)  # phonemes in braces count as one word
def test_no_word_is_lost_and_no_chunk_of_several_words_exceeds_the_maximum(text, desired, more):
    chunks = split_sentences(text, desired, desired + more)
    assert " ".join(chunks).split() == text.split()
    assert all(len(chunk) <= desired + more or len(WORD_TEXT.findall(chunk)) == 1 for chunk in chunks)


# The costs of breaks


def text_of(length: int) -> str:
    """Words in lower case, ``length`` characters in all."""
    return ("word " * length)[: length - 3] + "end"


def shortest_halves_that_are_split(end: str, gap: str, start: str, desired: int, maximum: int) -> int:
    """The smallest length at which two pieces of text of that length become two chunks."""
    for length in range(5, maximum):
        first = start + text_of(length - len(start) - len(end)) + end
        second = start + text_of(length - len(start) - 1) + "."
        if len(split_sentences(f"{first}{gap}{second}", desired, maximum)) == 2:
            return length
    raise AssertionError("never split")


@pytest.mark.parametrize(
    ("end", "gap", "start", "length"), [(".", "\n\n", "X", 73), (".", " ", "X", 74), (".", " ", "x", 88)]
)
def test_a_break_is_taken_if_it_costs_less_than_an_uneven_length(end, gap, start, length):
    """With desired 100, halves of n cost 0.05 + 2 (n/100 - 1)² and the break; one chunk costs ((2n + 1)/100 - 1)²."""
    assert shortest_halves_that_are_split(end, gap, start, 100, 190) == length


def test_a_break_within_a_quotation_costs_more_than_one_between_sentences():
    def chunks(length):
        return split_sentences(f'"X{text_of(length - 3)}. X{text_of(length - 3)}."', 100, 190)

    assert [len(chunks(81)), len(chunks(82))] == [1, 2]


@pytest.mark.parametrize(("start", "length"), [("X", 8), ("x", 50)])
def test_where_lengths_vary_much_uncertain_sentence_ends_cost_more_and_certain_ones_do_not(start, length):
    """The length of a chunk can cost (110/10 - 1)² = 100 here, and so many times more does an uncertain break."""
    assert shortest_halves_that_are_split(".", " ", start, 10, 110) == length


@pytest.mark.parametrize(("cheaper", "costlier"), [("\n", "; "), ("; ", ", "), (", ", " ")])
@pytest.mark.parametrize("cheaper_first", [True, False])
def test_a_long_sentence_is_split_at_the_cheapest_of_two_breaks(cheaper, costlier, cheaper_first):
    outer, middle = text_of(90).replace(" ", "o"), text_of(60).replace(" ", "o")
    one, two = (cheaper, costlier) if cheaper_first else (costlier, cheaper)
    first, second = split_sentences(f"{outer}{one}{middle}{two}{outer}.", 100, 200)
    assert (len(first) < len(second)) == cheaper_first


@pytest.mark.parametrize("mark", ["; ", ": ", ") ", "] ", " — ", " - ", "— "])
def test_clauses_end_at_these_marks(mark):
    outer, middle = text_of(90).replace(" ", "o"), text_of(60).replace(" ", "o")
    first, _ = split_sentences(f"{outer}, {middle}{mark}{outer}.", 100, 200)
    assert len(first) > 150


@pytest.mark.parametrize(("rest", "at_the_comma"), [(40, True), (39, False)])
def test_a_chunk_below_a_fifth_of_the_desired_length_is_worse_than_a_break_between_words(rest, at_the_comma):
    text = f"{text_of(280)}, {text_of(rest - 1)}."
    assert split_sentences(text)[0].endswith(",") == at_the_comma


def test_a_very_short_chunk_is_worse_than_any_break_at_any_lengths():
    sentence = "X" + text_of(148) + ", " + text_of(146) + "."
    assert len(sentence) == 298
    assert len(split_sentences(f"{sentence} No.", 20, 300)[-1]) > 100


def test_the_default_lengths_are_upstreams():
    fits, too_long = "X" + text_of(298) + ".", "X" + text_of(299) + "."
    assert split(fits) == [fits]
    assert len(split(too_long)) == 2
    # each has two sentences. A desired length of 199 would split the first pair, and 201 would join the second
    assert len(split(f"X{text_of(125)}. X{text_of(169)}.")) == 1
    assert len(split(f"X{text_of(130)}. X{text_of(164)}.")) == 2


# Splitting


def test_a_bar_is_a_break_and_parts_between_bars_are_split_if_they_are_long():
    assert split("One. Two.|Three. | Four.") == ["One. Two.", "Three.", "Four."]
    two = f"{FOX} {FOX}"
    assert split(f"Hi there.|{two} {two}", desired=90, maximum=100) == ["Hi there.", two, two]


def test_chunks_without_a_letter_or_a_spoken_sign_are_dropped_unless_there_is_no_other():
    assert split(f"{FOX}\n\n* * *\n\n{FOX}", 44, 45) == [FOX, FOX]
    assert split("% % % %", 3, 3) == ["% %", "% %"]
    for text in ("", "...", "😀 !"):
        assert split(text) == [text]


@pytest.mark.parametrize(("desired", "maximum"), [(0, 10), (-1, 10), (20, 10), (11, 10)])
def test_impossible_lengths_are_refused(desired, maximum):
    with pytest.raises(UserError, match=f"chunks of about {desired} and at most {maximum} characters"):
        split("Hello.", desired, maximum)


@given(texts(), st.integers(1, 60), st.integers(0, 60))
def test_no_letter_is_lost_at_bars(text, desired, more):
    def letters(text):
        return [character for character in text if character.isalnum()]

    chunks = split(text.replace("x", "|"), desired, desired + more)
    assert letters("".join(chunks)) == letters(text.replace("x", "|"))
    assert chunks


def test_text_without_marks_takes_work_by_its_length_and_not_by_the_length_of_chunks():
    words = [TextPiece("a", 40.0)] * 400
    short = lines_run(pack, words, 20, 40)
    assert lines_run(pack, words, 200, 400) < 2 * short
    assert lines_run(pack, words * 2, 20, 40) < 2.2 * short


@pytest.mark.parametrize(
    "together",
    [
        "5 km",
        "$3 million",
        "20 kilometers",
        "Dr. Rao",
        "J. R. R. Tolkien",
        "No. 7",
        "e.g. Rome",
        "3 °C",
        "(555) 123-4567",
        "+44 20 7946 0958",
    ],
)
def test_a_sentence_that_is_too_long_is_not_broken_within_a_quantity_or_after_an_abbreviation(together):
    for before in range(8, 40):
        chunks = split(f"{'word ' * before}{together} {'word ' * 30}end.", 60, 80)
        assert any(together in chunk for chunk in chunks), (before, chunks)
        assert max(map(len, chunks)) <= 80


def test_many_initials_in_a_row_are_still_divided():
    assert max(map(len, split("J. " * 200, 60, 80))) <= 80
