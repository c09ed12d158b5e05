"""Test that a damaged or altered job database gives a one-line error, and loses at most one chunk."""

import io
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from ane.books.job_database import FILE
from ane.books.output import OutputOptions, write_book_files
from ane.books.store import JobStore
from ane.commands.read_report import print_status
from ane.system.errors import UserError
from tests.books.stand_in import StandInSpeaker, book, plan_for, run_job, write

FACTS = ["seed", "plan", "options", "title", "chapters", "text", "written", "hashes", "identity", "lexicon", "backend"]
VALUES = [5, "x", [], [[1]], {"a": 1}, {"book": 1, "digest": [], "files": [[1]]}, None]
COLUMNS = [
    *(f"chunks.{name}" for name in ("chapter", "silence", "kind", "language", "text")),
    *(f"sounds.{name}" for name in ("take", "samples", "rate", "elapsed", "notes")),
    *(f"sounds.{name}" for name in ("problems", "words", "signals", "flac")),
]
CELLS = [-1, 0, 10**12, float("inf"), "x", '{"a": 1}', "[[1, 2]]", b"\xff\x00"]


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    run_job(folder / "book.wav.job", book(2))
    with closing(JobStore(folder / "book.wav.job")) as store:
        for name, value in {
            "title": "A",
            "identity": {"model": "m"},
            "lexicon": None,
            "backend": "torch",
            "text": {"language": "en", "blocks": [[1, "paragraph"]]},
            "hashes": {},
        }.items():
            store.set_fact(name, value)
    write(folder / "book.wav.job", folder / "book.wav", srt=True)
    return folder


def altered(job: Path, folder: Path, statement: str, *values: object) -> Path:
    shutil.copytree(job, folder, dirs_exist_ok=True)
    with closing(sqlite3.connect(folder / "book.wav.job" / FILE)) as connection:
        connection.execute(statement, values)
        connection.commit()
    return folder


def use(folder: Path) -> None:
    """What `ane read --status` and the next run read of a job."""
    with closing(JobStore(folder / "book.wav.job")) as store:
        print_status(Console(file=io.StringIO()), store)
        store.adopt(plan_for(StandInSpeaker(), book(2), store.seed(None)))
        store.signals()
        for options in ({"word_times": True, "times": True}, {"loudness": -19.0}):
            write_book_files(store, OutputOptions(folder / "book.wav", **options))


def refusal(folder: Path) -> str:
    """What the job is refused with; "" if it is used. Any other error is a fault."""
    try:
        use(folder)
    except UserError as error:
        return str(error)
    return ""


def test_a_job_that_is_not_altered_is_used(job, tmp_path):
    assert refusal(altered(job, tmp_path / "whole", "SELECT 1")) == ""


@pytest.mark.parametrize("name", FACTS)
def test_an_altered_fact_is_used_or_refused_in_one_line(job, tmp_path, name):
    for index, value in enumerate([*VALUES, "not JSON"]):
        text = value if value == "not JSON" else json.dumps(value)
        folder = altered(job, tmp_path / str(index), "INSERT OR REPLACE INTO facts VALUES (?, ?)", name, text)
        assert "\n" not in refusal(folder)


@pytest.mark.parametrize("column", COLUMNS)
def test_an_altered_row_is_used_or_refused_in_one_line(job, tmp_path, column):
    table, name = column.split(".")
    for index, value in enumerate(CELLS):
        folder = altered(job, tmp_path / str(index), f"UPDATE {table} SET {name} = ? WHERE rowid = 2", value)
        assert "\n" not in refusal(folder)


def test_of_one_damaged_sound_only_its_chunk_is_spoken_again(job, tmp_path):
    folder = altered(job, tmp_path / "copy", "UPDATE sounds SET flac = substr(flac, 1, 200) WHERE rowid = 2")
    (folder / "book.wav").unlink()
    with pytest.raises(UserError, match=r"the sound of chunk \d+ in .* was damaged and is removed: run the command"):
        write(folder / "book.wav.job", folder / "book.wav", srt=True)
    assert run_job(folder / "book.wav.job", book(2)) == 1
    write(folder / "book.wav.job", folder / "book.wav", srt=True)
    assert (folder / "book.wav").read_bytes() == (job / "book.wav").read_bytes()
