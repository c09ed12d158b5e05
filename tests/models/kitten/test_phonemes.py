"""Ids of phonemes, and full stops that are no pauses."""

import pytest

from ane.models.kitten.phonemes import token_ids, without_abbreviation_dots
from ane.models.styletts.vocabulary import SYMBOLS, VOCABULARY


def test_vocabulary() -> None:
    assert len(SYMBOLS) == 178
    assert len(VOCABULARY) == 175
    assert {11, 14, 174}.isdisjoint(VOCABULARY.values())
    assert (VOCABULARY["$"], VOCABULARY["…"], VOCABULARY['"'], VOCABULARY[" "], VOCABULARY["'"]) == (0, 10, 15, 16, 176)


@pytest.mark.parametrize(("phonemes", "symbols"), [
    ("həlˈoʊ, ", "həlˈoʊ ,"), ("a“b", "a  b"), ("☃", ""), ("", "")])
def test_ids(phonemes: str, symbols: str) -> None:
    ids = token_ids(phonemes)
    assert ids.tolist() == [[0, *(VOCABULARY[symbol] for symbol in symbols), 10, 0]]
    assert ids.dtype == "int64"


@pytest.mark.parametrize(("text", "phonemes", "expected"), [
    ("dr. smith.", "dˈɑːktɚ. smˈɪθ. ", "dˈɑːktɚ  smˈɪθ.  "),
    ("the u.s.a. wins,", "ðə jˈuː.ˈɛs.ˈeɪ. wˈɪnz, ", "ðə jˈuː ˈɛs ˈeɪ  wˈɪnz, "),
    ("in the u.s.a.", "ɪnðə jˈuː.ˈɛs.ˈeɪ.", "ɪnðə jˈuː ˈɛs ˈeɪ. "),
    ("it ends. here.", "ɪt ˈɛndz. hˈɪɹ.", "ɪt ˈɛndz.  hˈɪɹ. "),
    ("so... it ends.", "sˌoʊ... ɪt ˈɛndz.", "sˌoʊ. . .  ɪt ˈɛndz. "),
    ("so did i. then", "sˌoʊ dˈɪd ˈaɪ. ðˈɛn", "sˌoʊ dˈɪd ˈaɪ.  ðˈɛn"),
    ("dr. no", "dˈɑːktɚ nˈoʊ", "dˈɑːktɚ nˈoʊ"),
])
def test_abbreviations_lose_their_full_stops(text: str, phonemes: str, expected: str) -> None:
    assert without_abbreviation_dots(text, phonemes) == expected
