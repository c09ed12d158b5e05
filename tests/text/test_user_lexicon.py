"""A user's lexicon: which words it respells, and what is refused in its file."""

from pathlib import Path

import pytest

from ane.system.errors import UserError
from ane.text import Lexicon, LexiconEntry, Tokenizer, read_lexicon
from tests.text.test_tokenizer import OFFICIAL
from tests.work import lines_run


def lexicon_of(folder: Path, *lines: str) -> Lexicon:
    path = folder / "words.tsv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_lexicon(path)


READINGS = [
    ("Nguyen\tnoo-yen", "Nguyen met nguyen.", "noo-yen met noo-yen."),
    ("Nguyen\tnoo-yen", "Nguyen's and Nguyens", "noo-yen's and Nguyens"),
    ("cat\tdog", "cat concat cats (cat) 'cat'", "dog concat cats (dog) 'dog'"),
    ("New York\tgotham", "new\n  york, NewYork, New-York", "gotham, NewYork, New-York"),
    ("C++\tsee plus plus", "C++ or C+", "see plus plus or C+"),
    ("don't\tdo not", "Don’t go", "do not go"),
    ("AI\tay eye\texact", "AI and ai", "ay eye and ai"),
    ("lead\tled\t\tnoun", "the lead to lead", "the led to lead"),
    ("lead\tleed\t\tverb", "the lead to lead", "the lead to leed"),
]


@pytest.mark.parametrize(("line", "text", "expected"), READINGS)
def test_whole_words_are_respelled(tmp_path, line, text, expected):
    assert lexicon_of(tmp_path, line)(text) == expected


def test_the_longest_phrase_wins_and_a_condition_wins_over_none(tmp_path):
    lexicon = lexicon_of(tmp_path, "# a comment", "", "York\tyawk", "New York City\tthe city", "York\tork\texact")
    assert lexicon("New York, New York City, york") == "New ork, the city, yawk"


def test_a_respelling_is_not_respelled_again(tmp_path):
    assert lexicon_of(tmp_path, "a\tb", "b\ta")("a b") == "b a"


def test_each_of_a_hundred_entries_changes_the_tokens(tmp_path):
    tokenizer = Tokenizer(OFFICIAL)
    names = [f"Qu{first}r{second}x" for first in "aeiouybdfg" for second in "aeiouklmnp"]
    lexicon = lexicon_of(tmp_path, *(f"{name}\tword {name[2]} {name[4]} spoken" for name in names))
    assert len(lexicon.entries) == 100
    for name in names:
        text = f"I saw {name} today."
        assert tokenizer.encode(lexicon(text)) != tokenizer.encode(text)
        assert tokenizer.decode(tokenizer.encode(lexicon(text))) == f"i saw word {name[2]} {name[4]} spoken today."


FAULTS = [("Nguyen noo-yen", "there is no tab"), ("a\tb\t\t\tc", "it has 5 columns"), ("\tb", "the word ''"),
          ("a\t--", "the respelling '--' has no letter"), ("a\tb\tupper", "the case 'upper' is unknown"),
          ("a\tb\t\tadverb", "the word class 'adverb' is unknown")]


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
