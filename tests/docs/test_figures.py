"""Test that the source grows only on purpose: no figure of its structure is above its limit in figures.json."""

import json

from tools.source.measures import missing_places, request_declarations
from tools.source.structure import FIGURES, figures


def test_no_figure_of_the_structure_grew() -> None:
    allowed, found = json.loads(FIGURES.read_text(encoding="utf-8")), figures()
    grown = {
        name: f"{count}, at most {allowed.get(name, 0)}"
        for name, count in found.items()
        if count > allowed.get(name, 0)
    }
    assert not grown, "make it smaller; or decide it, with python -m tools.source.structure --write"
    assert allowed.keys() <= found.keys(), "a folder is gone: python -m tools.source.structure --write"


def test_every_form_of_a_chunk_is_made_where_the_measures_say() -> None:
    assert not missing_places(), "a form is gone or made elsewhere: correct FORMS of tools/source/measures.py"


def test_the_fields_of_a_request_are_declared_once() -> None:
    [declaration] = request_declarations()
    assert declaration.startswith("ane/speech/request.py:"), "flags and bodies are made of the fields of SpeechRequest"
