"""Check the records that a job reads from its database, and report a damaged record in one line."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Json, TypeAdapter, ValidationError

from ane.audio.reader import MAX_RATE, MIN_RATE
from ane.system.checked import read_record
from ane.system.errors import UserError

Count = Annotated[int, Field(ge=0, lt=1 << 48)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Cue = tuple[Seconds, Seconds] | None
ADVICE = "; delete the folder to start over"


@dataclass(frozen=True)
class WrittenBook:
    """The files that were written for a book, and facts about them.

    Attributes:
        seconds: Length of the sound in seconds.
        loudness: Loudness of the decoded files in LUFS. ``None`` means that no level was set.
        true_peak: True peak of the decoded files in dBTP. ``None`` means that no level was set.
        former: Files that earlier runs wrote and this run did not. They may no longer fit the sound.
        stale: Files that earlier runs wrote, also in other folders, whose chapters have other sound or titles now.
        notes: Notes about subtitles that start late.
        measures: For ACX, the measured values of each file, in the order of ``ane.books.acx.LIMITS``.
    """

    files: list[str]
    seconds: float
    loudness: float | None = None
    true_peak: float | None = None
    former: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    measures: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class OutputFact:
    """The output of the last run: a digest of everything that determines it, and the size of every file in bytes."""

    digest: str
    book: WrittenBook
    files: list[tuple[str, Count]]


@dataclass(frozen=True)
class DocumentFact:
    """The language of a text, and the fields of each ``PlannedBlock`` as a tuple. A tuple may lack the last fields."""

    language: str
    blocks: list[tuple[Count, str] | tuple[Count, str, int] | tuple[Count, str, int, Cue]] = field(default_factory=list)


FACTS: dict[str, Any] = {
    "seed": int,
    "plan": str,
    "options": str,
    "title": str,
    "chapters": list[str],
    "backend": str,
    "text": DocumentFact,
    "lexicon": str | None,
    "hashes": dict[str, str],
    "identity": dict[str, Any],
    "written": OutputFact,
    "sounds": dict[str, list[tuple[str, str]]],
}
# Columns that ``JobStore.chunks`` reads: those of a chunk, then take, samples, rate, elapsed, notes, lease, problems
CHUNK: TypeAdapter[Any] = TypeAdapter(
    tuple[
        Annotated[int, Field(ge=1)],
        str,
        str,
        Count,
        str,
        str,
        Seconds,
        str,
        Count,
        Count | None,
        Annotated[int, Field(ge=MIN_RATE, le=MAX_RATE)] | None,
        float | None,
        Json[list[str]] | None,
        float | None,
        Json[list[str]] | None,
    ]
)
Word = tuple[str, Seconds, Seconds] | tuple[str, Seconds, Seconds, bool] | tuple[str, Seconds, Seconds, bool, str]


def read_fact(name: str, text: Any, job: Path) -> Any:
    """Parse the JSON of a fact about a job. Raises UserError if the fact has another type than in ``FACTS``."""
    where = f"the job in {job} is damaged: {name}"
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise UserError(f"{where} is not JSON{ADVICE}") from None
    read_record(FACTS.get(name, Any), value, where, ADVICE)
    return value


def read_chunk(row: tuple[Any, ...], job: Path) -> tuple[Any, ...]:
    """Check a chunk's row of the database, and return its columns.

    The database stores notes and problems as JSON. The function converts both to lists.

    Raises:
        UserError: A column does not have the type that ``CHUNK`` gives.
    """
    try:
        return CHUNK.validate_python(row)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        raise UserError(
            f"the job in {job} is damaged: chunk {row[0]!r}, column {fault['loc'][0]}: {fault['msg']}{ADVICE}"
        ) from None


def read_words(text: Any, job: Path) -> list[Any]:
    """Read the timed words of a chunk from JSON. Raises UserError if they are not a list of ``Word``."""
    return read_record(list[Word], read_fact("words", text, job), f"the job in {job} is damaged: words", ADVICE)
