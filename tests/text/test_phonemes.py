"""Test the phonemes of words, and a user's lexicon."""

import gzip
from pathlib import Path

import pytest

from ane.system.errors import UserError
from ane.text import Lexicon, LexiconEntry, normalise_english, read_lexicon
from ane.text.english import normalise_cased
from ane.text.phonemes import part_of_speech, phonemise
from ane.text.phonemes.dictionary import DATA, stressed, table
from tests.tables import differences, rows
from tests.work import lines_run


def phonemes(text, british=False):
    return "".join(word.phonemes + " " * word.spaced for word in phonemise(text, british)).strip()


@pytest.mark.parametrize("accent", ["american", "british"])
def test_sentences_have_the_phonemes_of_hibari(accent):
    assert not differences(lambda text: phonemes(text, accent == "british"), rows(__file__, "phonemes.tsv", accent))


SECTIONS = [
    "letters and sounds",
    "words with marks on their letters",
    "words that sound as their neighbours say, initials and names",
    "words that are spelled alike, among their neighbours",
]


@pytest.mark.parametrize("section", SECTIONS)
def test_letters_stutters_interjections_and_borrowed_words_are_their_sounds(section):
    assert not differences(phonemes, rows(__file__, "phonemes.tsv", section))


def test_a_borrowed_word_is_british_in_britain():
    assert phonemes("the clichés of José", british=True) == "ðə kliʃˈAz ɒv hQzˈA"


@pytest.mark.parametrize("text", ["", " ", "…", "-", "'", "❤"])
def test_what_has_no_word_has_no_phonemes(text):
    assert not any(character.isalpha() for character in phonemes(text))


def test_words_that_differ_by_their_part_of_speech():
    assert part_of_speech(["They", "record", "a", "record", "."]) == ["PRP", "VBP", "DT", "NN", "."]
    assert phonemes("They record a record.") == "ðˌA ɹəkˈɔɹd ɐ ɹˈɛkəɹd."


def test_how_the_and_to_sound_depends_on_the_next_word():
    assert phonemes("the egg, the hen, to eat, to go to") == "ði ˈɛɡ, ðə hˈɛn, tʊ ˈit, tə ɡˌO tu"


def test_words_without_a_dictionary_are_read_by_their_letters():
    assert phonemes("frobnicated") == "fɹˈɑbnᵻkˌATᵻd"
    assert phonemes("frobnicated", british=True) == "fɹˈɑbnɪkˌATɪd"


@pytest.mark.parametrize("name", ["tags", "vocabulary", "gold"])
def test_a_table_has_every_line_and_no_other(name):
    lines = dict(
        line.split("\t", 1) for line in gzip.decompress((DATA / f"{name}.tsv.gz").read_bytes()).decode().splitlines()
    )
    assert {key: table(name).get(key) for key in lines} == lines
    others = {near for key in lines for near in (f"{key}~", key[:-1], key[1:])} - set(lines)
    assert not [key for key in others if table(name).get(key) is not None]


def test_stress_moves_between_none_secondary_and_primary():
    assert [stressed("dˈɑɡ", stress) for stress in (-0.5, None, 2.0)] == ["dˌɑɡ", "dˈɑɡ", "dˈɑɡ"]
    assert [stressed("ɪts", stress) for stress in (-0.5, 0.5, 2.0)] == ["ɪts", "ˌɪts", "ˈɪts"]


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith lives at 5 Main St., near Mt. Rainier.",
        "THE END IS NEAR.",
        "The CEO of IBM's U.S. office: 3.5% of $2bn.",
        "“Stop!” cried <b>he</b> — twice…",
    ],
)
def test_text_with_capitals_has_the_words_of_text_without(text):
    def letters(normalised):
        return "".join(filter(str.isalpha, normalised.lower()))

    assert letters(normalise_cased(text)) == letters(normalise_english(text))


def lexicon_of(folder: Path, *lines: str) -> Lexicon:
    path = folder / "words.tsv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_lexicon(path)


READINGS = rows(__file__, "phonemes.tsv", "respelled")


@pytest.mark.parametrize(("line", "text", "expected"), READINGS)
def test_whole_words_are_respelled(tmp_path, line, text, expected):
    assert lexicon_of(tmp_path, line)(text) == expected


def test_the_longest_phrase_wins_and_a_condition_wins_over_none(tmp_path):
    lexicon = lexicon_of(tmp_path, "# a comment", "", "York\tyawk", "New York City\tthe city", "York\tork\texact")
    assert lexicon("New York, New York City, york") == "New ork, the city, yawk"
    assert lexicon_of(tmp_path, "a\tb", "b\ta")("a b") == "b a", "a respelling is not respelled again"


FAULTS = rows(__file__, "phonemes.tsv", "faulty entries of a lexicon")


@pytest.mark.parametrize(("line", "fault"), FAULTS)
def test_a_faulty_line_is_named_with_what_to_write(tmp_path, line, fault):
    with pytest.raises(UserError, match=rf"words\.tsv, line 2: {fault}.*; write WORD, a tab, RESPELLING"):
        lexicon_of(tmp_path, "good\tfine", line)


def test_two_entries_for_a_word_are_refused_with_both_lines(tmp_path):
    with pytest.raises(UserError, match=r"words\.tsv, line 2: 'Cat' has an entry already \(words\.tsv, line 1\)"):
        lexicon_of(tmp_path, "cat\tdog", "Cat\tcow")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the lexicon .*none\.tsv"):
        read_lexicon(tmp_path / "none.tsv")
    (tmp_path / "latin.tsv").write_bytes(b"caf\xe9\tcoffee")
    with pytest.raises(UserError, match=r"latin\.tsv is not text in UTF-8 \(byte 3\)"):
        read_lexicon(tmp_path / "latin.tsv")


def test_the_work_is_linear_in_the_text_whatever_the_number_of_entries():
    few, many = (Lexicon(LexiconEntry(f"word{number} thing", "x") for number in range(count)) for count in (3, 10_000))
    text = "word1 word2 thing " * 80
    work = lines_run(many, text)
    assert lines_run(many, text * 10) < 12 * work
    assert work < 1.2 * lines_run(few, text)
