"""Numbers in words of languages other than English."""

import pytest

from ane.text import NORMALISERS


@pytest.mark.parametrize(("language", "text", "spoken"), [
    ("de", "1.000 Äpfel, 21 Birnen", "eintausend äpfel, einundzwanzig birnen"),
    ("es", "¿3,5 o 2024?", "¿tres coma cinco o dos mil veinticuatro?"),
    ("fr", "12\u202f345 fois", "douze mille trois cent quarante-cinq fois"),
    ("it", "21 gatti", "ventuno gatti"),
    ("pt", "0,25", "zero vírgula dois cinco"),
    ("nl", "007", "nul nul zeven"),
    ("pl", "3,14", "trzy przecinek jeden cztery"),
    ("de", "in 3D", "in drei d"),
])
def test_numbers_are_spelt_out(language, text, spoken):
    assert NORMALISERS[language](text) == spoken


@pytest.mark.parametrize("language", ["de", "es", "fr", "it", "nl", "pl", "pt"])
def test_no_digit_is_left_however_long_the_number(language):
    spoken = NORMALISERS[language]("1 22 333 4444 1.234.567,89 " + "9" * 15 + " " + "9" * 40)
    assert not any(character.isdigit() for character in spoken)
