"""Provide a stand-in for WordNet."""

import pytest


@pytest.fixture(scope="session")
def wordnet(tmp_path_factory):
    """A folder in WordNet's format: a licence, then synsets whose glosses follow a bar."""
    folder = tmp_path_factory.mktemp("wordnet")
    lines = [
        "  1 This software and database is being provided to you",
        '00001740 03 n 01 entity 0 003 ~ 00001930 n 0000 | that which is perceived; "he saw an (old) entity"',
        '00002684 03 n 01 object 0 001 @ 00001930 n 0000 | a tangible entity; "it was full of ABC objects"; '
        '"she asked her brother to help with the dishes after dinner"',
    ]
    for part in ("noun", "verb", "adj", "adv"):
        (folder / f"data.{part}").write_text("\n".join(lines) + "\n", encoding="latin-1")
    return folder
