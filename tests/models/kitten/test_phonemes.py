"""Ids of phonemes."""

import pytest

from ane.models.kitten.synthesizer import word_ids
from ane.models.styletts.bundle import SYMBOLS, VOCABULARY


def test_vocabulary() -> None:
    assert len(SYMBOLS) == 178
    assert len(VOCABULARY) == 175
    assert {11, 14, 174}.isdisjoint(VOCABULARY.values())
    assert (VOCABULARY["$"], VOCABULARY["…"], VOCABULARY['"'], VOCABULARY[" "], VOCABULARY["'"]) == (0, 10, 15, 16, 176)


@pytest.mark.parametrize(("phonemes", "symbols"), [
    ("həlˈoʊ, ", "həlˈoʊ ,"), ("a“b", "a  b"), ("☃", ""), ("", "")])
def test_ids(phonemes: str, symbols: str) -> None:
    ids, _ = word_ids(phonemes, "")
    assert ids.tolist() == [0, *(VOCABULARY[symbol] for symbol in symbols), 10, 0]
    assert ids.dtype == "int64"
