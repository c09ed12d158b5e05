"""Print the reports of `ane read`: the remaining time, the last lines, and the progress of a job."""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ane.commands.messages import LOGGER, counted, plain_table, print_listing
from ane.system.errors import UserError
from ane.system.sound_formats import FORMATS
from ane.text import shorten
from ane.text.cast import Cast

if TYPE_CHECKING:
    from ane.books.document import Document
    from ane.books.job_facts import WrittenBook
    from ane.books.plan import BookPlan, CastReport
    from ane.books.store import JobStore, StoredChunk
    from ane.text.user_lexicon import Lexicon

SHOWN_NOTES = 5


def duration(seconds: float) -> str:
    """Format a duration in seconds as "2 h 05 min", "5 min" or "40 s"."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min" if seconds >= 90 else f"{seconds:.0f} s"


def time_left(seconds: float | None) -> str:
    return "" if seconds is None else f"{duration(seconds)} left"


def print_book_report(
    console: Console, store: "JobStore", written: "WrittenBook", spoken: int, count: int, part: str
) -> None:
    chunks = store.chunks()
    print_notes(chunks)
    for note in written.notes[:SHOWN_NOTES]:
        LOGGER.warning("%s", note)
    if len(written.notes) > SHOWN_NOTES:
        LOGGER.warning("%d more subtitles begin late", len(written.notes) - SHOWN_NOTES)
    print_doubtful(console, store, chunks)
    if written.measures:
        print_acx(console, written.measures)
    level = "" if written.loudness is None else f"; {written.loudness:.1f} LUFS, true peak {written.true_peak:.1f} dB"
    formats = {*FORMATS, ".epub"} - {Path(written.files[0]).suffix}  # other formats may still have the same sound
    former = [name for name in written.former if Path(name).suffix not in formats]
    if former := list(dict.fromkeys([*former, *written.stale])):
        others = len(former) - SHOWN_NOTES
        LOGGER.warning(
            "an earlier run wrote these files, and this run did not change them: %s%s",
            ", ".join(former[:SHOWN_NOTES]),
            f" and {counted(others, 'more file')}" if others > 0 else "",
        )
    more = len(written.files) - 1
    files = f"{written.files[0]} and {counted(more, 'more file')}" if more else written.files[0]
    facts = f"{store.fact('backend')}; seed {store.fact('seed')}"
    console.print(
        f"{duration(written.seconds)} of audio → {files}  ({spoken} of {count} chunks spoken now{level}; "
        f"{facts}; the job is kept in {store.path})" + (f"; {part}" if part else "")
    )


def print_acx(console: Console, measures: Mapping[str, Sequence[float]]) -> None:
    """Print ACX's limits and the levels measured in each decoded file. Warn of every file that ACX would reject."""
    from ane.books.acx import LIMITS, faults

    table = plain_table(
        "measured for ACX",
        "file",
        *(f"{name}, {unit}" for name, (unit, *_) in LIMITS.items()),
        numbers=range(1, 1 + len(LIMITS)),
        rows=[(name, *(f"{value:.1f}" for value in values)) for name, values in measures.items()],
    )
    console.print(table)
    for name, values in measures.items():
        for fault in faults(values):
            LOGGER.warning("%s: %s", name, fault)


def check_text(store: "JobStore", plan: "BookPlan", force: bool, pruned: bool) -> None:
    """Warn if chunks that have been spoken are no longer in the text of the book.

    Args:
        force: Whether to accept a text with fewer than half of the spoken chunks.
        pruned: Whether this run will delete the sound of chunks that are no longer in the text. If not, there is no
            warning.

    Raises:
        UserError: More than half of the spoken chunks are not in the text, so the job belongs to another text.
    """
    missing, spoken = store.missing_texts(plan)
    if 2 * missing > spoken and not force:
        title = store.fact("title")
        raise UserError(
            f"only {spoken - missing} of {spoken} spoken chunks are in this text, so the job in "
            f"{store.path} is for {repr(title) if title else 'another text'}: choose another output or job, "
            "or add force=True to replace the job"
        )
    if missing and pruned:
        LOGGER.warning(
            "%d of %d spoken chunks are no longer in this text. Their sound will be deleted when the output is written",
            missing,
            spoken,
        )


@contextmanager
def kept_chunks_stated(store: "JobStore") -> Iterator[None]:
    """Add a note to the exception that says how many chunks are kept, if the ``with`` block is interrupted."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        done, total, _ = store.progress()
        stopped.add_note(f"{done} of {total} chunks are kept for the next run of this command")
        raise


def warn_of_other_chapters(store: "JobStore", plan: "BookPlan", numbers: Sequence[int]) -> None:
    """Warn of numbers whose chapters have changed since the last run of the job."""
    former = store.fact("chapters") or []
    for number in numbers:
        if number <= min(len(former), len(plan.chapters)) and former[number - 1] != plan.chapters[number - 1]:
            LOGGER.warning(
                "chapter %d was %r in the last run of this job, and is %r now: the same command with --list shows the "
                "numbers",
                number,
                former[number - 1],
                plan.chapters[number - 1],
            )


def note_forgotten_lexicon(store: "JobStore", lexicon: str | None) -> None:
    """Warn if the last run of the job (narration) had a lexicon but this run has none.

    Then record the lexicon of this run.
    """
    former = store.fact("lexicon")
    if former and not lexicon:
        LOGGER.warning(
            "the last run had --lexicon %s and this run has none, so the respelt chunks will be spoken again", former
        )
    store.set_fact("lexicon", lexicon)


def warn_of_unused_words(lexicon: "Lexicon | None", texts: Iterable[str]) -> None:
    """Warn of each entry in a lexicon that matches no word in a book, because a typo in an entry has no other sign."""
    if lexicon is None:
        return
    used = {match.entry for text in texts for match in lexicon.matches(text)}
    if unused := [entry for entry in lexicon.entries if entry not in used]:
        shown = ", ".join(f"{entry.word!r} ({entry.source})" for entry in unused[:SHOWN_NOTES])
        others = len(unused) - SHOWN_NOTES
        LOGGER.warning(
            "%d of %d entries of the lexicon match no word of the book: %s%s",
            len(unused),
            len(lexicon.entries),
            shown,
            f" and {others} more" if others > 0 else "",
        )


def part_of_book(chapters: Sequence[int], preview: int | None, plan: "BookPlan", whole: "BookPlan") -> str:
    """Return a sentence for the command's last line if this output has only a part of the book.

    Otherwise, return "".
    """
    if len(plan.chunks) == len(whole.chunks):
        return ""
    numbers = f"{','.join(map(str, chapters))} of {len(whole.chapters)}"
    parts = {
        "--chapters": f"chapter{'s' * (len(chapters) > 1)} {numbers}" if chapters else "",
        "--preview": "a preview" if preview else "",
    }
    flags = [flag for flag, part in parts.items() if part]
    part = f"this is {' of '.join(parts[flag] for flag in reversed(flags))}"
    return f"{part}: the same command without {' and '.join(flags)} writes the whole book" if preview else part


def print_notes(chunks: Sequence["StoredChunk"]) -> None:
    noted = [(chunk.chunk, note) for chunk in chunks for note in chunk.notes]
    for chunk, note in noted[:SHOWN_NOTES]:
        LOGGER.warning("chunk %d, %r: %s", chunk.number, shorten(chunk.text), note)
    if len(noted) > SHOWN_NOTES:
        LOGGER.warning("%d more notes: see --status", len(noted) - SHOWN_NOTES)


def print_doubtful(console: Console, store: "JobStore", chunks: Sequence["StoredChunk"]) -> None:
    """Print the chunks that a person should listen to, and the time in the book at which each chunk starts."""
    from ane.books.assembly import planned_blocks, time_book

    doubtful = [
        (timed, chunk)
        for timed, chunk in zip(
            time_book(chunks, store.fact("chapters"), planned_blocks(store)).chunks, chunks, strict=True
        )
        if chunk.problems
    ]
    if not doubtful:
        return
    rate = next(chunk.rate for _, chunk in doubtful) or 1
    console.print(
        f"{len(doubtful)} of {len(chunks)} chunks are doubtful: listen to them, or speak them again with --redo "
        + ",".join(str(chunk.chunk.number) for _, chunk in doubtful)
    )
    for timed, chunk in doubtful:
        console.print(
            f"{clock_time(timed.start / rate)} chunk {chunk.chunk.number}, {shorten(chunk.chunk.text)!r}: "
            + "; ".join(chunk.problems),
            markup=False,
        )


def clock_time(seconds: float) -> str:
    """Format a position in a recording, in seconds: 3723.5 → "1:02:03"."""
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"


def print_status(console: Console, store: "JobStore") -> None:
    """Print one row per chapter, the totals, the chunks that are being spoken, and the notes about chunks."""
    from ane.books.assembly import planned_blocks, time_book

    chunks, titles = store.chunks(), store.fact("chapters") or []
    table = Table("chapter", "chunks", "spoken", "audio")
    for index, title in enumerate(titles):
        inside = [chunk for chunk in chunks if chunk.chunk.chapter == index]
        done = [chunk for chunk in inside if chunk.samples is not None]
        if inside:
            table.add_row(
                title,
                f"{inside[0].chunk.number}-{inside[-1].chunk.number}",
                f"{len(done)} of {len(inside)}",
                duration(seconds_of(done)),
            )
    console.print(table)
    done = [chunk for chunk in chunks if chunk.samples is not None]
    working = [str(chunk.chunk.number) for chunk in chunks if chunk.leased and chunk.samples is None]
    finished = len(done) == len(chunks) > 0
    timeline = time_book(chunks, titles, planned_blocks(store)) if finished else None
    seconds = timeline.samples / timeline.rate if timeline else seconds_of(done)
    console.print(
        f"{len(done)} of {len(chunks)} chunks spoken, {duration(seconds)} of audio"
        + (f"; being spoken: {', '.join(working)}" if working else "")
        + f"; seed {store.fact('seed')}"
    )
    for chunk in chunks:
        for note in [*chunk.notes, *chunk.problems]:
            console.print(f"chunk {chunk.chunk.number}, {shorten(chunk.chunk.text)!r}: {note}")


def seconds_of(chunks: Sequence["StoredChunk"]) -> float:
    """Add up the seconds of sound in chunks, with the silence after every chunk."""
    from ane.books.narration import BREATH

    return sum(
        chunk.samples / (chunk.rate or 1) + max(0.0, chunk.chunk.silence - 2 * BREATH)
        for chunk in chunks
        if chunk.samples
    )


def print_contents(args: argparse.Namespace, document: "Document") -> None:
    """Print the chapters with their lengths, and the text that will be left out."""
    from ane.books.plan import CHARACTERS_PER_SECOND, chapter_titles
    from ane.text.omissions import COUNTED, omitted_text

    chapters = [
        (number, title, sum(len(block.text) for block in chapter.blocks))
        for number, (title, chapter) in enumerate(zip(chapter_titles(document), document.chapters, strict=True), 1)
    ]
    total, left_out = sum(length for *_, length in chapters), omitted_text(document.omitted, document.tables)
    footnotes = [part for part in document.left_out if part.kind == "footnotes"]
    others = [part for part in document.left_out if part.kind != "footnotes"]
    more = max(0, len(footnotes) - SHOWN_NOTES)
    print_listing(
        args,
        ("", "chapter", "characters", "about"),
        [
            (str(number), title, f"{length:,}", duration(length / CHARACTERS_PER_SECOND))
            for number, title, length in chapters
        ],
        [
            {"number": number, "title": title, "characters": length, "seconds": length / CHARACTERS_PER_SECOND}
            for number, title, length in chapters
        ],
        numbers=(0, 2, 3),
        notes=[
            f"{total:,} characters, about {duration(total / CHARACTERS_PER_SECOND)} of audio; "
            + (f"left out: {left_out}" if left_out else "nothing is left out"),
            *(
                f"left out, {COUNTED[part.kind][0]}: "
                + ": ".join(filter(None, (part.title, part.words)))
                + (f" ({counted(part.length, 'word', ',')})" if part.length else "")
                for part in (*others, *footnotes[:SHOWN_NOTES])
            ),
            *([f"left out: {counted(more, 'more footnote')}, which --keep footnotes reads aloud"] if more else []),
        ],
    )


def warn_of_unreadable(document: "Document") -> None:
    """Name each file in the book that cannot be read, because its text will not be spoken."""
    for part in document.left_out:
        if part.kind == "unreadable":
            LOGGER.warning(
                "the sound will lack the text of %s, which may be a chapter: %s. If every copy of the book has this "
                "fault, add the text with an EPUB editor",
                part.title,
                part.words,
            )


def warn_of_absent(report: "CastReport") -> None:
    """Warn of the speakers that the cast names but the book does not, and name the most similar speakers."""
    for name, near in report.absent.items():
        LOGGER.warning(
            "the cast names %r, who speaks nowhere in the book%s", name, f" (did you mean {near!r}?)" if near else ""
        )


def print_cast(console: Console, report: "CastReport", cast: Cast, voice: str) -> None:
    """Print the quotations and the voice of each speaker, then the doubtful guesses, with the rule that made each.

    Args:
        voice: Voice of speakers for whom the cast has none.
    """
    table = Table("speaker", "quotations", "voice")
    for speaker, count in report.counts.items():
        chosen = cast.speakers.get(speaker) or cast.quotations or cast.narrator or voice
        table.add_row(speaker or "(not known)", str(count), chosen)
    console.print(table)
    warn_of_absent(report)
    for chapter, line in report.doubtful:
        console.print(
            f"chapter {chapter}, {shorten(line.text)!r}: {line.speaker or 'nobody is known'} ({line.rule})",
            markup=False,
        )
    console.print(
        f"{len(report.doubtful)} of {sum(report.counts.values())} quotations are doubtful"
        + (": name their speakers under [lines] in --cast FILE.toml" if report.doubtful else "")
    )
