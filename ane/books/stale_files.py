"""Find files of earlier runs whose sound or titles are no longer those of the book, in any format and folder."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ane.books.acx import CREDITS
from ane.books.plan import digest_of
from ane.books.store import JobStore, StoredChunk

ChapterSound = tuple[str, str]  # title of a chapter, and a digest of its sound


def chapter_sounds(chunks: Sequence[StoredChunk], titles: Sequence[str]) -> dict[int, ChapterSound]:
    """Return each chapter's title and a digest of its sound, by the chapter's number."""
    sounds: dict[int, list[Any]] = {}
    for chunk in chunks:
        sounds.setdefault(chunk.chunk.chapter + 1, []).append([chunk.chunk.key, chunk.take, chunk.chunk.silence])
    return {number: (titles[number - 1], digest_of(sound)) for number, sound in sounds.items()}


def all_chapters(titles: Sequence[str]) -> ChapterSound:
    """Return the list of chapters as one chapter without a title, so that a new chapter makes older files stale."""
    return "", digest_of([title for title in titles if title not in CREDITS])


def stale_files(
    store: JobStore, files: Mapping[Path, list[ChapterSound]], now: Collection[ChapterSound] | None
) -> list[str]:
    """Record which chapters the files of this run contain. Return the files of earlier runs with another sound.

    Args:
        files: The chapters in each file.
        now: All chapters of the book. ``None`` means that only a part of the book is known, so that no file is stale.
    """
    base = store.path.parent
    current = {
        os.path.relpath(file, base): sounds for file, sounds in files.items() if file.suffix not in (".jpg", ".png")
    }
    known = {file: [*map(tuple, sounds)] for file, sounds in (store.fact("sounds") or {}).items()}
    titles = {title for title, _ in now or ()}
    kept = {file: sounds for file, sounds in known.items() if (base / file).exists()} | current
    if kept != known:
        store.set_fact("sounds", kept)
    return [
        os.path.normpath(base / file)
        for file, sounds in kept.items()
        if now is not None
        and file not in current
        and any(title in titles and (title, sound) not in now for title, sound in sounds)
    ]
