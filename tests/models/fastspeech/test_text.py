"""Symbols of English text; ids of the golden texts are in tests/parity/test_fastspeech.py."""

import pytest

from ane.models.fastspeech.text import IDS, SYMBOLS, is_speakable, text_to_ids, unknown_phonemes


def spelt(text: str) -> str:
    return " ".join(SYMBOLS[index].removeprefix("@") for index in text_to_ids(text))


def test_there_are_148_symbols():
    assert len(SYMBOLS) == len(set(SYMBOLS)) == len(IDS) == 148


@pytest.mark.parametrize(("text", "symbols"), [
    ("{HH AH0}", "HH AH0"), ("a{B}b", "a B b"), ("{B} {D}", "B   D"), ("{HH}\n{AH0}", "HH   AH0"),
    ("a {B", "a   b"), ("{}a", "a"), ("{B XX}", "B")])
def test_phonemes_in_braces(text, symbols):
    assert spelt(text) == symbols


def test_unknown_phonemes_are_named():
    assert unknown_phonemes("{HH XX1 AH0} a {hh}") == ["XX1", "hh"]


@pytest.mark.parametrize(("text", "speakable"), [
    ("a", True), ("{B}", True), ("", False), ("!?", False), ("\u4e2d", True)])
def test_what_can_be_spoken(text, speakable):
    assert is_speakable(text_to_ids(text)) is speakable
