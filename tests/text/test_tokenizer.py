"""Test the normalisers (also upstream's), the explanation of what they do, and the tokenizer."""

import json
import re
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.system.errors import UserError
from ane.text import (
    NORMALISERS,
    Lexicon,
    LexiconEntry,
    Tokenizer,
    normalise_basic,
    normalise_english,
    normalise_upstream,
    shorten,
)
from ane.text.explanation import ReadingStep, explain_english, respelled
from ane.text.upstream import transliterate
from tests.tables import differences, rows
from tests.text.test_english import READINGS
from tests.work import grows_linearly

OFFICIAL = (files("ane.models.tortoise") / "data" / "tokenizer.json").read_text(encoding="utf-8")
SPACE, UNKNOWN = 2, 1


def characters(alphabet: str, **special: int) -> str:
    """A tokenizer.json whose tokens are plain characters."""
    vocabulary = {**special, **{character: len(special) + i for i, character in enumerate(alphabet)}}
    added = [
        {
            "id": i,
            "content": token,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for token, i in special.items()
    ]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": "[UNK]",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "vocab": vocabulary,
        "merges": [],
    }
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": None,
            "model": model,
        }
    )


def test_ids_decode_to_the_normalised_text_without_stop_and_unknown_tokens():
    tokenizer = Tokenizer(OFFICIAL)
    ids = tokenizer.encode("Mr. Smith paid $5!")
    assert tokenizer.decode(np.array([*ids, UNKNOWN, 0, 0])) == "mister smith paid five dollars!"


@pytest.mark.parametrize(
    ("normaliser", "expected"),
    {"english": "it cost three pounds.", "upstream": "it cost psthree.", "basic": "it cost £3."}.items(),
)
def test_the_normaliser_is_chosen_by_name(normaliser, expected):
    assert Tokenizer(OFFICIAL, normaliser).normalise("It cost £3.") == expected


def test_an_unknown_normaliser_is_refused_with_the_names_that_exist():
    with pytest.raises(UserError, match=r"'german'.*english, upstream, basic, de, es"):
        Tokenizer(OFFICIAL, "german")


@pytest.mark.parametrize("content", ["", "not json", "{}", "[1]", '{"model": {}}', "\x00", OFFICIAL[:2000]])
def test_a_file_that_is_no_tokenizer_is_refused_by_its_path(content):
    with pytest.raises(UserError, match=r"^models/tokenizer\.json is not a tokenizer"):
        Tokenizer(content, source="models/tokenizer.json")


@pytest.mark.parametrize(
    ("normaliser", "text", "fault"),
    [
        *(("english", text, "nothing to say: the text is empty") for text in ("", " ", "\n\t\u2003")),
        *((normaliser, "!?! 😀 ...", "nothing to say in '!?! 😀 ...'") for normaliser in NORMALISERS),
        ("basic", "1234", "nothing to say in '1234'"),
    ],
)  # the tokenizer does not know digits
def test_text_without_a_letter_is_refused_and_quoted(normaliser, text, fault):
    with pytest.raises(UserError, match=re.escape(fault)):
        Tokenizer(OFFICIAL, normaliser).encode(text)


def test_a_tokenizer_of_plain_characters_has_a_space_token_or_gets_plain_spaces():
    tokenizer = Tokenizer(characters("abc", **{"[STOP]": 0, "[UNK]": 1, "[SPACE]": 2}), "basic")
    assert tokenizer.encode("Ab c?") == [3, 4, 2, 5, 1]
    assert tokenizer.decode([3, 4, 2, 5, 1]) == "ab c"
    assert Tokenizer(characters("ab ", **{"[UNK]": 0}), "basic").encode("a b") == [1, 3, 2]


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz!'(),-.:;? ", max_size=60))
def test_known_characters_survive_the_round_trip(text):
    tokenizer = Tokenizer(OFFICIAL)
    ids = tokenizer.encode_normalised(text)
    assert UNKNOWN not in ids
    assert tokenizer.decode(ids) == text
    assert ids.count(SPACE) == text.count(" ")


@given(st.text(max_size=60), st.sampled_from(list(NORMALISERS)))
def test_no_text_stops_any_normaliser_or_the_tokenizer(text, normaliser):
    tokenizer = Tokenizer(OFFICIAL, normaliser)
    ids = tokenizer.speakable_ids(text)
    assert all(0 <= i < tokenizer.size for i in ids)
    assert tokenizer.decode(ids).isascii()


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("text", ["hello \ud800", "hello \udfff\ud800", "hello \u03a2", "hello \x00"])
def test_code_points_that_are_no_characters_are_left_out(normaliser, text):
    tokenizer = Tokenizer(OFFICIAL, normaliser)
    assert tokenizer.decode(tokenizer.encode(text)).strip() == "hello"


@pytest.mark.parametrize(("length", "shown"), [(60, "x" * 60), (61, "x" * 59 + "…")])
def test_text_in_messages_has_at_most_60_characters(length, shown):
    assert shorten("x" * length) == shown


@given(st.text(max_size=60))
def test_any_text_becomes_ascii_without_digits_or_capitals(text):
    normalised = normalise_upstream(text)
    assert normalised.isascii()
    assert not re.search(r'[A-Z0-9"]', normalised)


@pytest.mark.parametrize("text", ["$,5", "$1,.5", "1" * 5000, "1" * 50 + "th", "$" + "9" * 5000, "0." + "3" * 5000])
def test_numbers_that_upstream_cannot_read_are_read(text):
    assert re.search("[a-z]", normalise_upstream(text))


@pytest.mark.parametrize("section", ["signs", "greek", "cyrillic"])
def test_text_is_transliterated_as_upstream_does(section):
    assert not differences(normalise_upstream, rows(__file__, "normalisers.tsv", section))


def test_basic_normalisation_only_lowers_and_collapses_whitespace():
    assert normalise_basic("  Ça\n\tVA 5%  ") == " ça va 5% "


def test_every_code_point_becomes_ascii():
    """Beyond plane 2 they are CJK, unassigned or private."""
    assert all(transliterate(chr(code_point)).isascii() for code_point in (*range(0x30000), *range(0x10FF00, 0x110000)))


def test_a_fraction_in_one_character_is_apart_from_the_number_before_it():
    assert [transliterate(fraction) for fraction in "½¾⅐⅟"] == [" 1/2", " 3/4", " 1/7 ", " 1/"]


@pytest.mark.parametrize("unit", ["9", "1,", "$", ".", "a", "mr", " "])
def test_a_very_long_word_is_normalised_in_linear_time(unit):
    assert grows_linearly(lambda length: normalise_upstream(unit * (length // len(unit))), 16_000)


def test_numbers_are_spelt_out():
    assert not differences(
        lambda language, text: NORMALISERS[language](text), rows(__file__, "normalisers.tsv", "other languages")
    )


@pytest.mark.parametrize("language", ["de", "es", "fr", "it", "nl", "pl", "pt"])
def test_no_digit_is_left_however_long_the_number(language):
    spoken = NORMALISERS[language]("1 22 333 4444 1.234.567,89 " + "9" * 15 + " " + "9" * 40)
    assert not any(character.isdigit() for character in spoken)


SHOWN = [
    ("Dr. Smith paid $5 today.", [("$5", "five dollars", "$5"), ("Dr.", "doctor", "Dr. who")]),
    (
        "on 3 May 2024, at 5 km",
        [("3 May 2024", "the third of may, twenty twenty-four", "1 May 2024"), ("5 km", "five kilometers", "5 km")],
    ),
    ("a <b>bold</b> café", [("é", "e", "ASCII"), ("<b>", "", "HTML tag"), ("</b>", "", "HTML tag")]),
    ("The FBI", [("FBI", "f b i", "FBI, DVDs")]),
    ("wow 😀 ok", [("😀", "", "ASCII")]),
]


def test_the_marks_that_divide_initials_are_not_shown():
    read, steps = explain_english("q.i.d. p.r.n. idk tbh", cased=True)
    assert read == "Q.I.D P.R.N. I.D.K T.B.H"
    assert all((step.text + step.spoken).isprintable() and step.text for step in steps)


@pytest.mark.parametrize(("text", "steps"), SHOWN)
def test_each_change_is_named_by_its_rule(text, steps):
    assert explain_english(text)[1] == [ReadingStep(*step) for step in steps]


def test_a_reading_is_that_of_the_normaliser():
    read = [(text, normalise_english(text)) for text in READINGS]
    assert not differences(lambda text: explain_english(text)[0], read)


@given(st.text(alphabet=st.sampled_from("aAbIXVm.,:;!? \n\t0159$€%#@&<>/[]()'\"-–—*_|é½α²\u0301\r™😀"), max_size=60))
def test_any_text_is_explained_as_it_is_normalised(text):
    assert explain_english(text)[0] == normalise_english(text)


def test_an_entry_of_the_lexicon_is_named_with_its_line():
    lexicon = Lexicon([LexiconEntry("Nguyen", "noo-yen", source="words.tsv, line 3")])
    assert respelled("Nguyen paid", lexicon) == [ReadingStep("Nguyen", "noo-yen", "lexicon: words.tsv, line 3")]
