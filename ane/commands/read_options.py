"""Define the flags of `ane read`, and make the document and the output options that they describe."""

import argparse
import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ane.bundles import add_model_arguments
from ane.commands import arguments
from ane.commands.messages import LOGGER
from ane.commands.speech_options import add_backend_arguments, add_request_arguments, add_settings_arguments
from ane.system.errors import NoEffectError, UserError, system_errors
from ane.system.file_gate import open_regular
from ane.system.sound_formats import FORMATS, SUFFIX_HELP, TAGS

if TYPE_CHECKING:
    from ane.audio.media import CoverImage
    from ane.books.document import Document
    from ane.books.output import OutputOptions
    from ane.books.plan import Silences

SILENCES = {
    "sentence": "between sentences",
    "paragraph": "between paragraphs",
    "heading": "around headings and at scene breaks",
    "chapter": "after a chapter",
}
MAX_COVER = 16 << 20  # maximum bytes of a cover image
POCKETSPHINX = "pocketsphinx"
LOCAL = "local"  # value of the flag --ray if no address follows it
EXAMPLES = """
examples:
  ane read book.epub -o book.m4b                    write an audiobook with chapters and cover.
                                                    After an interruption, run the same command again
  ane read book.epub -o spoken.epub                 write text and sound. Readers mark the sentence being spoken
  ane read book.epub -o 3.m4b --chapters 3 --preview 60
                                                    speak the first minute of chapter 3
  ane read notes.md -o notes.mp3 --per-chapter      write one file per chapter
  ane read book.epub -o book.mp3 --job book.m4b     write another format of book.m4b, and speak nothing again
  ane read book.epub -o book.m4b --redo 12,40-44    speak these chunks again
  ane read book.epub --explain                      show chapters, omitted parts and readings of numbers
  ane read book.epub --text                         show the text that would be spoken
  ane read --status book.m4b                        show the progress of a job
"""


def add_read_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    from ane.books.plan import Silences
    from ane.books.reading import FORMATS as DOCUMENTS
    from ane.text.omissions import OMISSIONS

    parser = commands.add_parser(
        "read",
        help="narrate a book",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Narrate a book or any long text. The folder OUT.job keeps all sound that has been made.\n"
        "After an interruption, run the same command again to continue.",
    )
    parser.add_argument(
        "book",
        nargs="?",
        metavar="BOOK",
        help=f"document to read: {', '.join(document.name for document in DOCUMENTS)}. '-' is standard input",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=arguments.path,
        help=f"file to write, whose suffix chooses the format: {SUFFIX_HELP}, or .epub. An .epub contains the "
        "text too, so that a reading program can mark the sentence being spoken",
    )
    add_request_arguments(parser, "voice", "lexicon")
    parser.add_argument(
        "--status", metavar="JOB", type=arguments.path, help="print the progress of a job (OUT or OUT.job), and exit"
    )
    parser.add_argument(
        "--job",
        metavar="JOB",
        type=arguments.path,
        help="earlier job whose sound to write to OUT (its OUT or OUT.job). Text that the job lacks is spoken first",
    )
    parser.add_argument(
        "--list", action="store_true", help="print the chapters of BOOK, their lengths and the omitted parts, and exit"
    )
    parser.add_argument("--json", action="store_true", help="print JSON with --list, or if '?' is the value of a flag")
    parser.add_argument("--text", action="store_true", help="print the text that would be spoken, and exit")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print the output of --list, the reading of every number, sign and abbreviation, and the "
        "words that no dictionary has, and exit",
    )
    parser.add_argument(
        "--markdown",
        action=argparse.BooleanOptionalAction,
        help="whether plain text is Markdown or HTML (default: yes for .md, and for standard input that looks so)",
    )
    parser.add_argument(
        "--chapters",
        metavar="N,N-N|TITLE",
        type=numbers_or_titles,
        default=(),
        help="speak or print only these chapters, and leave out the others. --list shows numbers and titles",
    )
    parser.add_argument(
        "--preview",
        metavar="SECONDS",
        type=arguments.positive,
        help="speak only about the first SECONDS. To continue from there, run the command without --preview",
    )
    parser.add_argument(
        "--cast-report",
        action="store_true",
        help="print who speaks each quotation of BOOK, mark the speakers that are doubtful guesses, and exit",
    )
    parser.add_argument(
        "--redo",
        metavar="N,N-N",
        type=chunk_numbers,
        default=(),
        help="speak these chunks again, with another seed. --status and --times show their numbers",
    )
    parser.add_argument("--per-chapter", action="store_true", help="write one file per chapter")
    parser.add_argument(
        "--playlist",
        action="store_true",
        help="with --per-chapter, also write a playlist OUT.m3u8, and the cover next to it",
    )
    parser.add_argument("--srt", action="store_true", help="also write SubRip subtitles, OUT.srt")
    parser.add_argument("--vtt", action="store_true", help="also write WebVTT subtitles, OUT.vtt")
    parser.add_argument(
        "--times", action="store_true", help="also write the times of chapters and chunks as JSON, OUT.json"
    )
    parser.add_argument(
        "--word-times",
        action="store_true",
        help="find the start and end of every word. --times lists them, --srt and --vtt underline the word being "
        "spoken, and an .epub marks it",
    )
    parser.add_argument(
        "--loudness",
        type=float,
        metavar="LUFS",
        help="loudness of the whole book in LUFS, such as -19. True peaks stay at or below -3 dB (EBU R 128)",
    )
    parser.add_argument(
        "--acx",
        action="store_true",
        help="write files for ACX and measure them: one .mp3 per chapter at 44.1 kHz and 192 kbit/s, with the levels, "
        "room tone and spoken credits that ACX requires",
    )
    parser.add_argument(
        "--opening",
        metavar="TEXT",
        help="opening credits to speak (default: none. With --acx: title, author and narrator, '' for none)",
    )
    parser.add_argument("--closing", metavar="TEXT", help="closing credits to speak (default: as for --opening)")
    parser.add_argument(
        "--keep",
        metavar="RULE,…",
        type=arguments.comma_separated,
        default=[],
        help=f"read aloud text that `ane read` would leave out by these rules: {', '.join(OMISSIONS)}",
    )
    parser.add_argument(
        "--keep-timing",
        action="store_true",
        help="speak each subtitle of BOOK at its time. If the time is too short, speak up to 1.5 times as fast",
    )
    parser.add_argument(
        "--check", action="store_true", help="run speech recognition on every chunk, and compare it with the text"
    )
    parser.add_argument(
        "--recogniser",
        metavar="NAME|PATH",
        help=f"recogniser of --check: {POCKETSPHINX} (default), or a Whisper model as in `ane transcribe --model`",
    )
    parser.add_argument(
        "--retries",
        type=arguments.natural,
        default=2,
        metavar="N",
        help="speak a suspect chunk again up to N times, and keep the best attempt (default: 2)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace the job of another text in OUT.job, and files that this job did not write",
    )
    add_model_arguments(parser)
    add_settings_arguments(parser)
    parser._option_string_actions["--best"].help = argparse.SUPPRESS  # books always get the best candidate
    add_backend_arguments(parser)
    silence = arguments.rare_group(parser, "silence", "Seconds between the end of one sound and the start of the next.")
    for name, where in SILENCES.items():
        default = getattr(Silences, name)
        silence.add_argument(
            f"--{name}-silence", type=float, default=default, metavar="S", help=f"silence {where} (default: {default})"
        )
    add = arguments.rare_group(parser, "files").add_argument
    add("--title", metavar="TITLE", help="title in the file (default: the document's)")
    add("--author", metavar="AUTHOR", help="author in the file (default: the document's)")
    add("--narrator", metavar="NAME", help="narrator in the file (default: none)")
    add("--year", metavar="YEAR", type=year, help="year of publication in the file (default: the document's)")
    add("--publisher", metavar="NAME", help="publisher in the file (default: the document's)")
    add("--series", metavar="NAME[#N]", help="series in the file, and its volume, as in 'Ponds #2'")
    add("--description", metavar="TEXT", help="description in the file (default: the document's)")
    add("--cover", metavar="FILE", type=arguments.path, help="cover as a JPEG or PNG (default: the document's)")
    add = arguments.rare_group(parser, "cluster", "Speak with many processes or machines, using Ray.").add_argument
    add(
        "--ray",
        nargs="?",
        const=LOCAL,
        metavar="ADDRESS",
        help="Ray cluster to speak on: HOST:PORT, or 'auto' for the cluster that this machine has joined. Without "
        "ADDRESS, start a new cluster on this machine",
    )
    add(
        "--workers",
        type=arguments.positive,
        metavar="N",
        help="number of processes that speak (default: one per GPU, or without GPUs one per --threads CPU cores)",
    )
    parser.add_argument("--help-all", action=arguments.FullHelpAction, help="show all options, by group, and exit")
    return parser


def open_document(args: argparse.Namespace) -> "Document":
    """Read the book, and add the opening and closing credits that the flags ask for."""
    from ane.books import acx
    from ane.books.front_matter import without_title_page
    from ane.books.reading import read_document

    document = read_document(args.book, args.keep, args.keep_timing, args.markdown)
    facts = {
        "title": document.title if args.title is None else args.title,
        "author": document.author if args.author is None else args.author,
        "narrator": args.narrator or "",
    }
    if args.acx and None in (args.opening, args.closing) and (missing := [name for name in facts if not facts[name]]):
        LOGGER.warning(
            "the credits that ACX requires lack the %s: add %s",
            " and the ".join(missing),
            " and ".join(f"--{name}" for name in missing),
        )
    opening, closing = (
        default(**facts) if args.acx and text is None else text or ""
        for text, default in ((args.opening, acx.opening_credits), (args.closing, acx.closing_credits))
    )
    named = facts["title"] and facts["title"].casefold() in opening.casefold()
    if args.acx and named and not {"front-matter", "title-page"} & {*args.keep}:
        document = without_title_page(document, facts["title"], facts["author"], spoken=True)
    return acx.with_credits(document, opening, closing)


def silences_of(args: argparse.Namespace) -> "Silences":
    from ane.books.plan import Silences

    return Silences(**{name: getattr(args, f"{name}_silence") for name in SILENCES})


def output_options(args: argparse.Namespace, document: "Document") -> "OutputOptions":
    from ane.books.output import OutputOptions

    options = OutputOptions(
        args.output,
        args.per_chapter or args.acx,
        args.srt,
        args.vtt,
        args.times,
        args.word_times,
        args.loudness,
        document.title if args.title is None else args.title,
        document.author if args.author is None else args.author,
        document.cover if args.cover is None else read_cover(args.cover),
        args.playlist,
        args.acx,
        args.narrator or "",
        document.language,
        {**document.about, **{name: value for name, value in about_of(args).items() if value}},
    )
    suffix = args.output.suffix.lower()
    covered = [name for name, row in FORMATS.items() if row.media and row.media.cover]
    lost = set(FORMATS[suffix].lacks if suffix in FORMATS else ())
    if args.times:
        lost -= {"title", "author"}  # OUT.json contains both
    if suffix in FORMATS and suffix not in covered and not args.playlist:
        lost.add("cover")
    for name in (*TAGS, "cover"):
        if getattr(args, name) is not None and name in lost:
            able = [end for end in covered if name not in FORMATS[end].lacks] + [".epub"]
            advice = f"use {', '.join(able[:-1])} or {able[-1]}"
            raise NoEffectError(name, f"on {suffix}, which cannot store it", advice)
    return options


def about_of(args: argparse.Namespace) -> dict[str, str | None]:
    """Return the facts about the book that flags state, by their names in ``ane.books.document.ABOUT``."""
    name, _, position = (args.series or "").partition("#")
    return {
        "date": args.year,
        "publisher": args.publisher,
        "description": args.description,
        "series": f"{name.strip()} #{position.strip()}" if position.strip() else name.strip(),
    }


def year(text: str) -> str:
    """Read a year, from 1 to 9999."""
    if not re.fullmatch("[0-9]{1,4}", text) or not int(text):
        raise argparse.ArgumentTypeError(f"it must be a year from 1 to 9999, got {text!r}")
    return text


def read_cover(path: Path) -> "CoverImage":
    """Read a cover image from a file. Raises UserError if it is not a JPEG or PNG."""
    from ane.audio.media import IMAGES, CoverImage, cover_size, has_pyav

    with system_errors(f"cannot read {path}"), open_regular(path) as file:
        data = file.read(MAX_COVER + 1)
    kind = next((kind for kind, (start, _) in IMAGES.items() if data.startswith(start)), None)
    if kind is None or len(data) > MAX_COVER:
        raise UserError(f"{path} cannot be a cover: give a JPEG or PNG of at most {MAX_COVER >> 20} MB")
    cover = CoverImage(data, kind)
    if has_pyav() and cover_size(cover) is None:
        raise UserError(f"{path} cannot be a cover, because it is damaged: use another JPEG or PNG")
    return cover


def numbers_or_titles(text: str) -> tuple[int | str, ...]:
    """Read numbers and titles of chapters, such as "1,3-4,Epilogue" → (1, 3, 4, "Epilogue")."""
    titles = {part.strip() for part in text.split(",") if re.match(r"\s*[^\W\d]", part)}
    numbers = ",".join(part for part in text.split(",") if part.strip() not in titles)
    return (*(chunk_numbers(numbers) if numbers or not titles else ()), *sorted(titles))


def chapter_numbers(chosen: Sequence[int | str], titles: Sequence[str]) -> tuple[int, ...]:
    """Replace the titles among chosen chapters by numbers. Raises UserError for a title that no chapter has."""
    numbers = {title.casefold(): number for number, title in enumerate(titles, 1)}
    for title in chosen:
        if isinstance(title, str) and title.casefold() not in numbers:
            near = difflib.get_close_matches(title, titles, 1)
            raise UserError(
                f"chapters must be numbers or titles that --list shows, got {title!r}"
                + (f" (did you mean {near[0]!r}?)" if near else ""),
                "chapters",
            )
    return tuple(sorted({one if isinstance(one, int) else numbers[one.casefold()] for one in chosen}))


def chunk_numbers(text: str) -> tuple[int, ...]:
    """Read chunk numbers and ranges of chunk numbers: "12,40-44" → (12, 40, 41, 42, 43, 44)."""
    numbers: set[int] = set()
    for part in text.split(","):
        bounds = re.fullmatch(r"\s*([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?\s*", part)
        start, end = (int(bounds[1]), int(bounds[2] or bounds[1])) if bounds else (0, 0)
        if not 1 <= start <= end < start + 100_000:
            raise argparse.ArgumentTypeError(f"it must be numbers from 1 and ranges, such as 12,40-44, got {text!r}")
        numbers.update(range(start, end + 1))
    return tuple(sorted(numbers))
