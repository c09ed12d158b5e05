"""Compare the readings of texts that people paste, print and publish with a person's: ``readings.tsv``."""

from pathlib import Path

import pytest

from ane.text import normalise_english
from tests.tables import differences, rows

KINDS = [
    line[2:]
    for line in Path(__file__).with_name("readings.tsv").read_text(encoding="utf-8").split("\n")
    if line.startswith("# ")
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_text_is_read_as_a_person_would(kind):
    assert not differences(normalise_english, rows(__file__, "readings.tsv", kind))
