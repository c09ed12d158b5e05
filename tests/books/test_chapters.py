"""Test the chapters of documents, and the parts that are left out of them, with the cases of chapters.document."""

from pathlib import Path

import pytest

from ane.books.reading import read_document
from ane.text.omissions import omitted_text
from tests.books.documents import chapters, document_cases, named

CASES = document_cases(Path(__file__).with_name("chapters.document"))
FORMS = [(title, ncx) for title, case in CASES.items() for ncx in ((False, True) if case.listed else (False,))]


@pytest.mark.parametrize(("title", "ncx"), FORMS)
def test_a_document_has_its_chapters_and_names_what_it_leaves_out(tmp_path, title, ncx):
    case = CASES[title]
    path = case.write(tmp_path, ncx)
    document = read_document(path, list(filter(None, case.text("keep:").split(","))))
    assert (chapters(document), named(document)) == (case.cells("="), case.cells("-"))
    assert case.text("omitted:") in ("", omitted_text(document.omitted))
    assert case.text("facts:") in ("", f"{document.title} | {document.author}")
    kinds = ", ".join(block.kind for chapter in document.chapters for block in chapter.blocks)
    assert case.text("kinds:") in ("", kinds)
    for rules, text in case.pairs("keeps:"):
        assert text in " ".join(words for _, words in chapters(read_document(path, [rules])))
