"""`ane read`: narrate a book or any long text, as a job that can be interrupted and goes on where it was."""

import argparse
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ane.bundles import add_model_arguments, open_model
from ane.commands import arguments, read_report
from ane.commands.file_flags import check_files
from ane.commands.messages import LOGGER, ProgressDisplay, message_console, output_console
from ane.commands.read_report import check_text, print_book_report, print_cast, print_contents, print_status, time_left
from ane.commands.say import list_presets
from ane.commands.speech_options import add_backend_arguments, add_settings_arguments, load_synthesizer, read_settings
from ane.commands.voices import list_command
from ane.system.errors import UserError
from ane.system.file_gate import open_regular
from ane.text import shorten
from ane.text.cast import cast_of
from ane.text.user_lexicon import chosen_lexicon

ENGLISH_OR_UNKNOWN = ("en", "eng", "und", "mul", "zxx")      # the first part of a language tag

if TYPE_CHECKING:
    from ane.audio.media import CoverImage
    from ane.books.document import Document
    from ane.books.output import OutputOptions
    from ane.books.plan import BookPlan, Silences
    from ane.books.retries import BookChecker
    from ane.books.speakers import BookSpeaker
    from ane.books.store import JobStore
    from ane.cluster.narration import BookWorker

SILENCES = {"sentence": "between sentences", "paragraph": "between paragraphs",
            "heading": "around headings and at scene breaks", "chapter": "after a chapter"}
WITHOUT_TAGS = (".aac", ".ogg")
MAX_COVER = 16 << 20        # bytes
POCKETSPHINX = "pocketsphinx"
LOCAL = "local"             # of --ray without an address
EXAMPLES = """
examples:
  ane read book.epub -o book.m4b                    an audiobook with chapters and cover
  ane read book.epub -o book.m4b                    again, after an interruption: goes on where it was
  ane read book.epub -o spoken.epub                 text and sound in one: the sentence being read is marked
  ane read book.epub -o 3.m4b --chapters 3 --preview 60
                                                    the first minute of a chapter
  ane read notes.md -o notes.mp3 --per-chapter      one file a chapter
  ane read book.epub -o book.m4b --redo 12,40-44    speak these chunks again
  ane read --list book.epub                         chapters, lengths, what is left out
  ane read --status book.m4b                        how far it is
"""


def register(commands: argparse._SubParsersAction) -> None:
    from ane.books.plan import Silences
    from ane.text.omissions import OMISSIONS

    parser = commands.add_parser(
        "read", help="narrate a book", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Narrate a book or any long text. What is spoken is kept in OUT.job: the same command resumes it.")
    parser.add_argument("book", nargs="?", metavar="BOOK",
                        help="an EPUB, DOCX, PDF, Markdown, HTML, plain text, .srt or .vtt file; - is standard input")
    parser.add_argument("-o", "--output", metavar="OUT", type=arguments.path,
                        help="write to OUT; its suffix is the format: .m4b, .m4a, .mp3, .opus, .aac, .flac, .aiff, "
                             ".wav or .ogg; .epub has text and sound, and marks what is heard")
    parser.add_argument("-v", "--voice", metavar="VOICE", help="as in `ane say`")
    parser.add_argument("--lexicon", metavar="FILE", help="respell words, as in `ane say`")
    parser.add_argument("--status", metavar="JOB", type=arguments.path,
                        help="print how far the job JOB is (OUT or OUT.job), and exit")
    parser.add_argument("--list", action="store_true",
                        help="print the chapters of BOOK, their lengths and what is left out, and exit")
    parser.add_argument("--markdown", action=argparse.BooleanOptionalAction,
                        help="whether plain text is Markdown or HTML (without the flag: a file .md is, and standard "
                             "input is if it has marks)")
    parser.add_argument("--chapters", metavar="N,N-N", type=chunk_numbers, default=(),
                        help="speak these chapters alone; --list numbers them")
    parser.add_argument("--preview", metavar="SECONDS", type=arguments.positive,
                        help="speak about so much from the beginning; without it the same command goes on from there")
    parser.add_argument("--cast-report", action="store_true",
                        help="print who speaks the quotations of BOOK, and which of them are doubtful, and exit")
    parser.add_argument("--redo", metavar="N,N-N", type=chunk_numbers, default=(),
                        help="speak these chunks again, with another seed; --status and --times number them")
    parser.add_argument("--per-chapter", action="store_true", help="write one file a chapter")
    parser.add_argument("--playlist", action="store_true",
                        help="with --per-chapter, also write a playlist OUT.m3u8, and the cover as a file of that name")
    parser.add_argument("--srt", action="store_true", help="write subtitles beside OUT, as SubRip")
    parser.add_argument("--vtt", action="store_true", help="write subtitles beside OUT, as WebVTT")
    parser.add_argument("--times", action="store_true",
                        help="write the times of chapters and chunks beside OUT, as JSON")
    parser.add_argument("--word-times", action="store_true",
                        help="time every word: --times lists them, --srt and --vtt underline the word being spoken, "
                             "an .epub marks it")
    parser.add_argument("--loudness", type=float, metavar="LUFS",
                        help="make the whole book this loud, -19 for example, with true peaks up to -3 dB (EBU R 128)")
    parser.add_argument("--keep", metavar="RULE,…", type=arguments.comma_separated, default=[],
                        help=f"read aloud what these rules leave out: {', '.join(OMISSIONS)}")
    parser.add_argument("--keep-timing", action="store_true",
                        help="speak each subtitle of BOOK at its time, up to 1.5 times as fast where it has to be")
    parser.add_argument("--check", action="store_true",
                        help="also run speech recognition on every chunk, and compare it with its text")
    parser.add_argument("--recogniser", metavar="NAME|PATH",
                        help=f"of --check: {POCKETSPHINX} (default), or a Whisper model as in `ane transcribe --model`")
    parser.add_argument("--retries", type=arguments.natural, default=2, metavar="N",
                        help="speak a suspect chunk again up to N times, and keep the best (default: 2)")
    parser.add_argument("--force", action="store_true",
                        help="replace what was spoken of another text into OUT, and files of other origin in its place")
    add_model_arguments(parser)
    add_settings_arguments(parser)
    parser._option_string_actions["--best"].help = argparse.SUPPRESS        # it is refused
    add_backend_arguments(parser)
    add = arguments.rare_group(parser, "silence", "Seconds from the end of speech to its beginning.").add_argument
    for name, where in SILENCES.items():
        default = getattr(Silences, name)
        add(f"--{name}-silence", type=float, default=default, metavar="S", help=f"{where} (default: {default})")
    add = arguments.rare_group(parser, "files").add_argument
    add("--title", metavar="TITLE", help="title in the file (default: the document's)")
    add("--author", metavar="AUTHOR", help="author in the file (default: the document's)")
    add("--cover", metavar="FILE", type=arguments.path, help="a JPEG or PNG as cover (default: the document's)")
    add = arguments.rare_group(parser, "cluster", "Many processes or machines speak, with Ray.").add_argument
    add("--ray", nargs="?", const=LOCAL, metavar="ADDRESS",
        help="speak on a Ray cluster: its address HOST:PORT, or auto for the one that this machine has joined; without "
             "ADDRESS, on one of this machine alone")
    add("--workers", type=arguments.positive, metavar="N",
        help="processes that speak (default: one for each GPU, else one for each --threads processors)")
    parser.add_argument("--help-all", action=arguments.FullHelpAction, help="show all options, by group, and exit")
    parser.set_defaults(handler=read)


def read(args: argparse.Namespace) -> int:
    from ane.books.plan import cast_document, cast_report
    from ane.books.reading import read_document
    from ane.books.store import JobStore

    if args.status is not None:
        return status(args)
    if args.voice == "?":
        return list_command(args)
    if args.preset == "?":
        return list_presets(args)
    if args.recogniser and not args.check:
        raise UserError("--recogniser has no effect without --check")
    if args.workers and args.ray is None:
        raise UserError("--workers has no effect without --ray")
    cast = cast_of(args.cast, args.quote_voice)
    if (args.list or args.cast_report) and args.book is not None:
        document = read_document(args.book, args.keep, args.keep_timing, args.markdown)
        if args.list:
            print_contents(output_console(), document)
        if cast or args.cast_report:
            print_cast(output_console(), cast_report(document, cast))
        return 0
    if args.book is None or args.output is None:
        raise UserError("name a book and an output: ane read BOOK -o OUT")
    if str(args.output) == "-":
        raise UserError("a job needs a file: -o - is not possible; `ane say -f BOOK -o -` writes to standard output")
    silences = silences_of(args)
    document = cast_document(read_document(args.book, args.keep, args.keep_timing, args.markdown), cast)
    options = output_options(args, document)
    check_kept(args, [options.path, *(options.path.with_suffix(suffix) for suffix in options.companions),
                      *options.of_folder])
    args.began_with = former_backend(args)
    speaker_for = open_speaker(args)
    store = JobStore(job_folder(args.output))
    try:
        seed = store.seed(args.seed)
        return run(args, store, document, speaker_for(seed), seed, silences, options)
    finally:
        store.close()


def run(args: argparse.Namespace, store: "JobStore", document: "Document", speaker: "BookSpeaker", seed: int,
        silences: "Silences", options: "OutputOptions") -> int:
    """Speak what is missing, write the files and report."""
    from ane.books.narration import narrate
    from ane.books.output import write_book_files
    from ane.books.ownership import check_replaced
    from ane.books.plan import SpeechIdentity, plan_book
    from ane.books.retries import check_book
    from ane.text.omissions import can_be_kept, omitted_text

    checker, model = open_checker(args), speaker.synthesizer.model
    if args.redo and not model.is_random:
        raise UserError(f"redo has no effect on {model.name}, which speaks a text the same way each time: respell the "
                        "words with --lexicon", "redo")
    identity = SpeechIdentity(speaker.model, speaker.voice, speaker.settings, seed)
    whole = plan_book(document, identity, silences, speaker.lengths, speaker.respell)
    plan = whole.chosen(args.chapters, args.preview) if args.chapters or args.preview else whole
    check_text(store, whole, args.force, pruned=plan is whole)
    numbers = dict.fromkeys(chunk.chapter + 1 for chunk in plan.chunks)
    check_kept(args, [*options.paths(plan.chapters, numbers), *options.beside(plan.chapters, numbers)])
    check_replaced(store, options, plan.chapters, numbers, args.force)
    former = store.fact("identity")
    store.adopt(plan, options.digest)
    store.set_fact("title", document.title)
    store.set_fact("text", {"language": document.language,
                            "blocks": [astuple(block) for block in plan.blocks]})
    now = {**vars(identity), "settings": dict(identity.settings)}
    changed = [name for name, value in json.loads(json.dumps(now, default=str)).items()
               if former is not None and former.get(name) != value]
    if changed:
        LOGGER.warning("changed since this job was spoken: %s. All chunks are spoken again; to keep them, interrupt "
                       "and repeat the earlier options", ", ".join(changed))
    store.set_fact("identity", now)
    read_report.note_forgotten_lexicon(store, args.lexicon)
    record_backend(store, speaker.synthesizer.backend.name)
    if left_out := omitted_text(document.omitted, document.tables):
        LOGGER.info("left out: %s%s", left_out, "; see --keep" if can_be_kept(document.omitted) else "")
    store.redo(args.redo)
    warn_of_languages(plan)
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
    """Raise UserError for an output that is an input or another output."""
    check_files(args, {"output": outputs}, ("book", "lexicon", "cast", "cover"), ("voice", "quote_voice"),
                ("bundle", "recogniser"), cast_of(args.cast, args.quote_voice))


def warn_of_languages(plan: "BookPlan") -> None:
    """Warn of text that its document marks as other than English, which all voices read as English."""
    other = [chunk for chunk in plan.chunks
             if chunk.language and re.split("[-_]", chunk.language.lower())[0] not in ENGLISH_OR_UNKNOWN]
    if other:
        LOGGER.warning("the document marks %d of %d chunks as another language (%s); they are read as English. The "
                       "first is %r", len(other), len(plan.chunks), ", ".join(sorted({one.language for one in other})),
                       shorten(other[0].text))


def open_checker(args: argparse.Namespace) -> "BookChecker":
    """Raises UserError when the recogniser of --check is not installed, or no Whisper model has that name."""
    from ane.books.recognisers import TextAligner, TranscribingRecogniser
    from ane.books.retries import BookChecker

    if not args.check or args.recogniser in (None, POCKETSPHINX):
        return BookChecker(TextAligner() if args.check else None, args.retries)
    from ane.backends import load_backend
    from ane.commands.transcribe import open_whisper
    from ane.models.whisper.transcription import Transcriber

    model = open_whisper(args.recogniser)
    transcriber = Transcriber(model, load_backend("auto", model, threads=args.threads, keep=True))
    return BookChecker(TranscribingRecogniser(transcriber), args.retries)


def narrate_on_cluster(args: argparse.Namespace, store: "JobStore", plan: "BookPlan", sample_rate: int,
                       checker: "BookChecker", seed: int, progress: Callable[[int, int, float | None], None],
                       check_progress: Callable[[int, int], None]) -> int:
    """Speak and check on a cluster, whose workers have these options; returns the number of chunks spoken."""
    from ane.cluster.narration import narrate_on_ray

    threads = args.threads or 1
    flags = {name: value for name, value in vars(args).items() if name not in ("handler", "parser")}
    make = partial(make_worker, argparse.Namespace(**flags | {"threads": threads, "quiet": True}), seed)
    return narrate_on_ray(store, plan, make, checker, sample_rate, progress, check_progress,
                          None if args.ray == LOCAL else args.ray, args.workers, threads)


def make_worker(args: argparse.Namespace, seed: int) -> "BookWorker":
    from ane.cluster.narration import BookWorker

    return BookWorker(open_speaker(args)(seed), open_checker(args))


def former_backend(args: argparse.Namespace) -> str:
    """Return the name of the backend with which the job of this output began, or "" if there is none."""
    from ane.books.store import JobStore

    folder = job_folder(args.output)
    if not folder.is_dir():
        return ""
    store = JobStore(folder)
    try:
        return store.fact("backend") or ""
    finally:
        store.close()


def record_backend(store: "JobStore", backend: str) -> None:
    """Warn when a job goes on with another backend or precision than it was spoken with so far; both are kept."""
    former = store.fact("backend")
    done, total, _ = store.progress()
    if former not in (None, backend) and done > 0:
        LOGGER.warning("%d of %d chunks were spoken with %s and are kept; from now on it is %s, whose results differ "
                       "by rounding. --redo 1-%d speaks them again", done, total, former, backend, total)
    store.set_fact("backend", backend)


def open_speaker(args: argparse.Namespace) -> Callable[[int], "BookSpeaker"]:
    """What makes the speaker that the flags ask for, from the seed of the job."""
    from ane.books.speakers import BookSpeaker

    if args.word_times and not (args.srt or args.vtt or args.times or args.output.suffix.lower() == ".epub"):
        raise UserError("--word-times has no effect on sound: add --times, --srt or --vtt, or write an .epub")
    if args.best not in (None, 1):
        raise UserError("best has no effect on a book: its files hold the best candidate", "best")
    lexicon = chosen_lexicon(args.lexicon, args.unreadable)
    model = open_model(args.bundle)
    settings = read_settings(args, model)
    speed = 1.0 if args.speed is None else args.speed
    cast = cast_of(args.cast, args.quote_voice)
    synthesizer = load_synthesizer(args, model, settings, message_console(args), keep=True)
    synthesizer.request("", settings=settings, speed=speed, cast=cast)       # raises, before there is a job
    return lambda seed: BookSpeaker(synthesizer, args.voice, settings, seed, speed=speed, lexicon=lexicon,
                                    word_times=args.word_times, checked=args.check, cast=cast)


def silences_of(args: argparse.Namespace) -> "Silences":
    from ane.books.plan import Silences

    return Silences(**{name: getattr(args, f"{name}_silence") for name in SILENCES})


def output_options(args: argparse.Namespace, document: "Document") -> "OutputOptions":
    from ane.audio import SUFFIXES
    from ane.audio.media import FORMATS
    from ane.books.output import OutputOptions

    options = OutputOptions(
        args.output, args.per_chapter, args.srt, args.vtt, args.times, args.word_times, args.loudness,
        document.title if args.title is None else args.title, document.author if args.author is None else args.author,
        document.cover if args.cover is None else read_cover(args.cover), args.playlist)
    suffix, untagged = args.output.suffix.lower(), not args.times and args.output.suffix.lower() in WITHOUT_TAGS
    uncovered = suffix in SUFFIXES and not ((suffix in FORMATS and FORMATS[suffix].cover) or args.playlist)
    for name, is_lost in (("cover", uncovered), ("title", untagged), ("author", untagged)):
        if getattr(args, name) is not None and is_lost:
            raise UserError(f"{name} has no effect on {suffix}, which holds none: .m4b, .mp3, .flac and .epub do", name)
    return options


def read_cover(path: Path) -> "CoverImage":
    """A cover in a file. Raises UserError when it is no JPEG or PNG."""
    from ane.audio.media import IMAGES, CoverImage, cover_size, has_pyav

    try:
        with open_regular(path) as file:
            data = file.read(MAX_COVER + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    kind = next((kind for kind, (start, _) in IMAGES.items() if data.startswith(start)), None)
    if kind is None or len(data) > MAX_COVER:
        raise UserError(f"{path} cannot be a cover: give a JPEG or PNG of at most {MAX_COVER >> 20} MB")
    cover = CoverImage(data, kind)
    if has_pyav() and cover_size(cover) is None:
        raise UserError(f"{path} cannot be a cover: it is damaged")
    return cover


def job_folder(output: Path) -> Path:
    return output.with_name(f"{output.name}.job")


def status(args: argparse.Namespace) -> int:
    """Print how far a job is."""
    from ane.books.job_database import FILE
    from ane.books.store import JobStore

    folder = next((path for path in (args.status, job_folder(args.status)) if os.path.isfile(path / FILE)), None)
    if folder is None:
        raise UserError(f"there is no job at {args.status}: name the output of `ane read` or its folder, OUT.job")
    store = JobStore(folder)
    try:
        print_status(output_console(), store)
    finally:
        store.close()
    return 0


def chunk_numbers(text: str) -> tuple[int, ...]:
    """"12,40-44" → (12, 40, 41, 42, 43, 44)."""
    numbers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?\s*", part)
        start, end = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= start <= end < start + 100_000:
            raise argparse.ArgumentTypeError(f"it must be numbers from 1 and ranges, such as 12,40-44, got {text!r}")
        numbers.update(range(start, end + 1))
    return tuple(sorted(numbers))
