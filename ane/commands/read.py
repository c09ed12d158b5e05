"""Run `ane read`: narrate a book or any long text, as a job that resumes after an interruption."""

import argparse
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.bundles import open_model
from ane.commands import read_report
from ane.commands.defaults import without_useless_defaults
from ane.commands.file_flags import check_files
from ane.commands.listings import printed_values
from ane.commands.messages import LOGGER, ProgressDisplay, message_console, output_console
from ane.commands.read_options import (
    LOCAL,
    POCKETSPHINX,
    add_read_parser,
    chapter_numbers,
    open_document,
    output_options,
    silences_of,
)
from ane.commands.read_preview import print_preview
from ane.commands.read_report import check_text, print_book_report, print_status, time_left
from ane.commands.speech_options import load_synthesizer, read_settings, requested
from ane.system.errors import NoEffectError, UserError
from ane.text import shorten
from ane.text.cast import cast_of
from ane.text.user_lexicon import chosen_lexicon

if TYPE_CHECKING:
    from ane.books.document import Document
    from ane.books.output import OutputOptions
    from ane.books.plan import BookPlan, Silences
    from ane.books.retries import BookChecker
    from ane.books.speakers import BookSpeaker
    from ane.books.store import JobStore
    from ane.cluster.narration import BookWorker

ENGLISH_OR_UNKNOWN = ("en", "eng", "und", "mul", "zxx")  # primary subtags of BCP 47 language tags


def register(commands: argparse._SubParsersAction) -> None:
    add_read_parser(commands).set_defaults(handler=read)


def read(args: argparse.Namespace) -> int:
    from ane.books.plan import chapter_titles
    from ane.books.store import JobStore

    if printed_values(args):
        return 0
    wanted = [name for name in ("list", "cast_report", "text", "explain") if getattr(args, name)]
    if args.json and wanted != ["list"]:
        reason = f"with --{wanted[-1].replace('_', '-')}" if wanted else "without --list"
        raise NoEffectError("json", reason, "leave it out")
    if args.status is not None:
        return status(args)
    if args.recogniser and not args.check:
        raise NoEffectError("recogniser", "without --check")
    if args.workers and args.ray is None:
        raise NoEffectError("workers", "without --ray")
    cast = cast_of(args.cast, args.quote_voice)
    if wanted:
        if args.book is None:
            raise UserError(f"{wanted[0]} needs a book: ane read BOOK --{wanted[0].replace('_', '-')}", wanted[0])
        document = document_of_job(args)
        args.chapters = chapter_numbers(args.chapters, chapter_titles(document))
        print_preview(args, document, cast)
        return 0
    if args.book is None or args.output is None:
        raise UserError("name a book and an output: ane read BOOK -o OUT")
    if str(args.output) == "-":
        raise UserError(
            "`ane read` cannot write to standard output: give -o OUT, or use `ane say -f FILE -o -` for plain text"
        )
    if args.acx:  # before the credits are added to the document
        from ane.books import acx

        acx.check_options(args.output, True, args.loudness)
    silences = silences_of(args)
    document = document_of_job(args)
    args.chapters = chapter_numbers(args.chapters, chapter_titles(document))
    options = without_useless_defaults(args, lambda given: output_options(given, document))
    check_kept(
        args, [options.path, *(options.path.with_suffix(suffix) for suffix in options.companions), *options.of_folder]
    )
    args.began_with = former_fact(args, "backend") or ""
    if not job_of(args).is_dir():
        note_other_jobs(args.output)
    speaker_for = without_useless_defaults(args, open_speaker)
    store = JobStore(job_of(args))
    try:
        seed = store.seed(args.seed)
        return run(args, store, document, speaker_for(seed), seed, silences, options)
    except BaseException:
        store.discard_new()
        raise
    finally:
        store.close()


def run(
    args: argparse.Namespace,
    store: "JobStore",
    document: "Document",
    speaker: "BookSpeaker",
    seed: int,
    silences: "Silences",
    options: "OutputOptions",
) -> int:
    """Speak the chunks that are missing, write the files of the book, and print the report."""
    from ane.books.narration import narrate
    from ane.books.output import check_replaced, write_book_files
    from ane.books.plan import SpeechIdentity, cast_report, plan_book
    from ane.books.retries import check_book
    from ane.text.omissions import can_be_kept, omitted_text

    checker, model = open_checker(args), speaker.synthesizer.model
    if args.redo and not model.uses_seed:
        reason = f"on {model.name}, which speaks a text the same way every time"
        raise NoEffectError("redo", reason, "respell words with --lexicon")
    identity = SpeechIdentity(speaker.model, speaker.voice, speaker.settings, seed)
    cast = cast_of(args.cast, args.quote_voice)
    whole = plan_book(document, identity, silences, speaker.lengths, speaker.spoken_as, cast)
    plan = whole.chosen(args.chapters, args.preview) if args.chapters or args.preview else whole
    check_text(store, whole, args.force, pruned=plan is whole)
    read_report.warn_of_other_chapters(store, whole, args.chapters)
    numbers = dict.fromkeys(chunk.chapter + 1 for chunk in plan.chunks)
    check_kept(args, [*options.paths(plan.chapters, numbers), *options.other_paths(plan.chapters, numbers)])
    check_replaced(store, options, plan.chapters, numbers, args.force)
    former = store.fact("identity")
    now = {**vars(identity), "settings": dict(identity.settings)}
    changed = [
        name
        for name, value in json.loads(json.dumps(now, default=str)).items()
        if former is not None and former.get(name) != value
    ]
    if changed and store.path.absolute() != job_folder(args.output).absolute():
        raise UserError(
            f"{store.path} was spoken with other options (changed: {', '.join(changed)}), and its sound would be "
            "replaced: repeat the earlier options, or leave out --job"
        )
    store.adopt(plan, options.digest)
    store.set_fact("title", document.title)
    store.set_fact("text", {"language": document.language, "blocks": [astuple(block) for block in plan.blocks]})
    if changed:
        LOGGER.warning(
            "changed since the last run of this job: %s. All chunks will be spoken again. To keep them, press "
            "Ctrl-C and use the earlier options",
            ", ".join(changed),
        )
    store.set_fact("identity", now)
    read_report.note_forgotten_lexicon(store, args.lexicon)
    read_report.warn_of_unused_words(speaker.lexicon, (chunk.text for chunk in whole.chunks))
    record_backend(store, speaker.synthesizer.backend.name)
    if left_out := omitted_text(document.omitted, document.tables):
        LOGGER.info("left out: %s%s", left_out, "; see --keep" if can_be_kept(document.omitted) else "")
    read_report.warn_of_unreadable(document)
    if plan is not whole and args.redo and args.redo[-1] > len(plan.chunks):
        raise UserError(
            f"redo must name chunks from 1 to {len(plan.chunks)}, got {args.redo[-1]}: with --chapters or --preview, "
            "the chunks are numbered from the first chosen one",
            "redo",
        )
    store.redo(args.redo)
    warn_of_languages(plan)
    if cast and cast.speakers:
        read_report.warn_of_absent(cast_report(document, cast))
    console = message_console(args)
    with read_report.kept_chunks_stated(store), ProgressDisplay(console, shown=not args.quiet) as progress:

        def show(done: int, total: int, left: float | None) -> None:
            progress.update("chunks", done, total, time_left(left))

        def show_checked(done: int, total: int) -> None:
            progress.update("checked", done, total, "")

        if args.ray is None:
            spoken = narrate(store, plan, speaker, show)
            check_book(store, plan, speaker, checker, show_checked)
        else:
            spoken = narrate_on_cluster(args, store, plan, speaker.sample_rate, checker, seed, show, show_checked)
    written = write_book_files(store, options, prune=plan is whole, force=args.force)
    part = read_report.part_of_book(args.chapters, args.preview, plan, whole)
    print_book_report(console, store, written, spoken, len(plan.chunks), part)
    return 0


def check_kept(args: argparse.Namespace, outputs: Sequence[Path]) -> None:
    """Raise UserError if a file to write is also a file to read, or would be written twice."""
    check_files(
        args,
        {"output": outputs},
        ("book", "lexicon", "cast", "cover"),
        ("voice", "quote_voice"),
        ("bundle", "recogniser"),
        cast_of(args.cast, args.quote_voice),
    )


def warn_of_languages(plan: "BookPlan") -> None:
    """Warn the user if the document marks text as another language, because all voices read it as English."""
    other = [
        chunk
        for chunk in plan.chunks
        if chunk.language and re.split("[-_]", chunk.language.lower())[0] not in ENGLISH_OR_UNKNOWN
    ]
    if other:
        LOGGER.warning(
            "the document marks %d of %d chunks as another language (%s). They are read as English. The first is %r",
            len(other),
            len(plan.chunks),
            ", ".join(sorted({one.language for one in other})),
            shorten(other[0].text),
        )


def open_checker(args: argparse.Namespace) -> "BookChecker":
    """Load the speech recogniser with which --check compares the speech with the text.

    Raises:
        UserError: The recogniser is not installed, or there is no such model.
    """
    from ane.books.recognisers import TextAligner, TranscribingRecogniser
    from ane.books.retries import BookChecker

    if not args.check or args.recogniser in (None, POCKETSPHINX):
        return BookChecker(TextAligner() if args.check else None, args.retries)
    from ane.backends import load_backend
    from ane.models.whisper.transcription import Transcriber, open_whisper

    model = open_whisper(args.recogniser)
    transcriber = Transcriber(model, load_backend("auto", model, threads=args.threads, keep=True))
    return BookChecker(TranscribingRecogniser(transcriber), args.retries)


def narrate_on_cluster(
    args: argparse.Namespace,
    store: "JobStore",
    plan: "BookPlan",
    sample_rate: int,
    checker: "BookChecker",
    seed: int,
    progress: Callable[[int, int, float | None], None],
    check_progress: Callable[[int, int], None],
) -> int:
    """Speak and check the chunks on a cluster. The cluster's workers use the flags in ``args``.

    Returns:
        Number of chunks that were spoken.
    """
    from ane.cluster.narration import narrate_on_ray

    threads = args.threads or 1
    flags = {name: value for name, value in vars(args).items() if name not in ("handler", "parser")}
    make = partial(make_worker, argparse.Namespace(**flags | {"threads": threads, "quiet": True}), seed)
    return narrate_on_ray(
        store,
        plan,
        make,
        checker,
        sample_rate,
        progress,
        check_progress,
        None if args.ray == LOCAL else args.ray,
        args.workers,
        threads,
    )


def make_worker(args: argparse.Namespace, seed: int) -> "BookWorker":
    from ane.cluster.narration import BookWorker

    return BookWorker(open_speaker(args)(seed), open_checker(args))


def document_of_job(args: argparse.Namespace) -> "Document":
    """Read the book. If its job began with the title page as a chapter, keep this page and the chapters' numbers.

    Earlier versions left out only title pages with markup.
    """
    from ane.books.plan import chapter_titles

    document = open_document(args)
    former = None if args.output is None and args.job is None else former_fact(args, "chapters")
    if former in (None, [*chapter_titles(document)]) or str(args.book) == "-":
        return document
    whole = open_document(argparse.Namespace(**vars(args) | {"keep": [*args.keep, "title-page"]}))
    if former != [*chapter_titles(whole)]:
        return document
    LOGGER.info(
        "the job began with the title page as a chapter, so it keeps the page and the chapters' numbers. To begin "
        "without it, remove the job's folder"
    )
    return whole


def former_fact(args: argparse.Namespace, name: str) -> Any:
    """Return a fact about the job (narration) from its last run, or ``None`` if there is no job yet."""
    from ane.books.job_database import FILE
    from ane.books.store import JobStore

    if not os.path.isfile(job_of(args) / FILE):
        return None
    store = JobStore(job_of(args))
    try:
        return store.fact(name)
    finally:
        store.close()


def record_backend(store: "JobStore", backend: str) -> None:
    """Record the backend of a job (narration). Warn if another backend or precision has spoken some of its chunks."""
    former = store.fact("backend")
    done, total, _ = store.progress()
    if former not in (None, backend) and done > 0:
        LOGGER.warning(
            "%d of %d chunks were spoken with %s and are kept. The rest will be spoken with %s, which rounds "
            "differently. To speak all chunks again, add --redo 1-%d",
            done,
            total,
            former,
            backend,
            total,
        )
    store.set_fact("backend", backend)


def open_speaker(args: argparse.Namespace) -> Callable[[int], "BookSpeaker"]:
    """Load the model, and return a function that takes the seed of a job and creates the speaker for it."""
    from ane.books.speakers import BookSpeaker

    if args.word_times and not (args.srt or args.vtt or args.times or args.output.suffix.lower() == ".epub"):
        raise NoEffectError("word_times", "on sound", "add --times, --srt or --vtt, or write an .epub")
    if args.best not in (None, 1):
        raise NoEffectError("best", "on a book, which always has the best candidate", "leave the option out")
    lexicon = chosen_lexicon(args.lexicon, args.unreadable)
    model = open_model(args.bundle)
    settings = read_settings(args, model)
    request = requested(
        args, "", settings, lexicon=lexicon, cast=cast_of(args.cast, args.quote_voice), quote_voice=None
    )
    synthesizer = load_synthesizer(args, model, settings, message_console(args), keep=True)
    synthesizer.with_defaults(request)  # raises for a bad request before the job begins
    return lambda seed: BookSpeaker(synthesizer, request.changed(seed=seed), args.check)


def job_folder(output: Path) -> Path:
    return output.with_name(f"{output.name}.job")


def job_of(args: argparse.Namespace) -> Path:
    """Return the folder of the job (narration) that the flags name. Raises UserError if --job names no job."""
    return job_folder(args.output) if args.job is None else find_job(args.job)


def find_job(path: Path) -> Path:
    """Return the folder of a job (the narration of a book).

    ``path`` is this folder, or an output next to the folder.
    """
    from ane.books.job_database import FILE

    folder = next((folder for folder in (path, job_folder(path)) if os.path.isfile(folder / FILE)), None)
    if folder is None:
        raise UserError(f"there is no job at {path}: name the output of `ane read` or its folder, OUT.job")
    return folder


def note_other_jobs(output: Path) -> None:
    """Tell the user about jobs that spoke the same book for another output file.

    The option --job can use their sound.
    """
    for folder in sorted(output.parent.glob("*.*.job")):
        if Path(folder.stem).stem == output.stem:
            LOGGER.info("%s keeps the sound of another output: add --job %s to use this sound", folder, folder)


def status(args: argparse.Namespace) -> int:
    """Run `ane read --status`: print the progress of a job."""
    from ane.books.store import JobStore

    store = JobStore(find_job(args.status))
    try:
        print_status(output_console(), store)
    finally:
        store.close()
    return 0
