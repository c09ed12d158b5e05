"""Find files of earlier runs whose sound or titles are no longer those of the book, in any format and folder."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ane.books.plan import digest_of
from ane.books.store import JobStore, StoredChunk


def chapter_sounds(chunks: Sequence[StoredChunk], titles: Sequence[str]) -> dict[int, str]:
    """Return a digest of the number, the title and the sound of each chapter, by the chapter's number."""
    sounds: dict[int, list[Any]] = {}
    for chunk in chunks:
        sounds.setdefault(chunk.chunk.chapter + 1, []).append([chunk.chunk.key, chunk.take, chunk.chunk.silence])
    return {number: digest_of([number, titles[number - 1], sound]) for number, sound in sounds.items()}


def stale_files(store: JobStore, files: Mapping[Path, list[str]], now: Collection[str] | None) -> list[str]:
    """Record which chapters the files of this run contain. Return the files of earlier runs that have other chapters.

    Args:
        files: The digests of the chapters in each file (``chapter_sounds``).
        now: The digests of all chapters of the book. ``None`` means that only a part of the book is known, so that
            no file is stale.
    """
    base = store.path.parent
    current = {
        os.path.relpath(file, base): sounds for file, sounds in files.items() if file.suffix not in (".jpg", ".png")
    }
    known = store.fact("sounds") or {}
    kept = {file: sounds for file, sounds in known.items() if (base / file).exists()} | current
    if kept != known:
        store.set_fact("sounds", kept)
    return [
        os.path.normpath(base / file)
        for file, sounds in kept.items()
        if now is not None and file not in current and not {*sounds} <= {*now}
    ]
