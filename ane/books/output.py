"""Write the files of a finished job: the sound with its tags, subtitles, times and a playlist."""

import math
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ane.audio import check_output
from ane.audio.media import INSTALL, ChapterMark, CoverImage, has_pyav, iso_639_2
from ane.books import acx
from ane.books.assembly import BookTimeline, late_cues, planned_blocks, time_book, with_words
from ane.books.captions import srt, times, vtt
from ane.books.epub_writer import EPUB, EpubFacts, write_epub
from ane.books.job_facts import WrittenBook
from ane.books.narration import POLL, leases_renewed
from ane.books.ownership import FileOwnership, published
from ane.books.plan import digest_of
from ane.books.sound_files import SoundFiles
from ane.books.stale_files import all_chapters, chapter_sounds, stale_files
from ane.books.store import JobStore
from ane.system import sound_formats
from ane.system.errors import NoEffectError, UserError
from ane.system.file_gate import check_apart
from ane.system.files import check_output_file, write_json

MIN_LOUDNESS, MAX_LOUDNESS = -40.0, -5.0  # LUFS that a user may ask for
FORBIDDEN = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]+')  # characters that some systems forbid in file names
IMAGE_SUFFIXES = {"image/jpeg": ".jpg", "image/png": ".png"}
ABOUT_TAGS = {"date": "date", "publisher": "publisher", "description": "description", "series": "grouping"}
COMPANIONS = {".srt": "srt", ".vtt": "vtt", ".json": "times"}  # suffix of a file next to the sound → option
MAX_NAME = 120  # characters of a title in a file name
MAX_BYTES = 210  # bytes of a title in a file name (most systems allow 255 for the whole name)


@dataclass(frozen=True)
class OutputOptions:
    """The files to write for a book. Subtitles and times are separate files next to the sound, or parts of an EPUB.

    Attributes:
        path: File of the book. Its suffix chooses the format.
        per_chapter: Whether to write one file per chapter next to ``path``, named by its stem, the number and the
            title.
        srt: Whether to write SubRip subtitles.
        vtt: Whether to write WebVTT subtitles.
        times: Whether to write the times of chapters and chunks.
        word_times: Whether subtitles, times and an EPUB contain the times of words.
        loudness: Loudness of the book in LUFS. ``None`` leaves the level unchanged.
        playlist: Whether to write a playlist of the chapters, and the cover as a file.
        acx: Whether to write the files as ``ane.books.acx`` requires.
        language: BCP 47 tag. "" means English.
        about: Facts about the book, for tags. The keys are names of ``ane.books.document.ABOUT``.

    Raises:
        UserError: An option has no effect, or the loudness is out of range.
    """

    path: Path
    per_chapter: bool = False
    srt: bool = False
    vtt: bool = False
    times: bool = False
    word_times: bool = False
    loudness: float | None = None
    title: str = ""
    author: str = ""
    cover: CoverImage | None = None
    playlist: bool = False
    acx: bool = False
    narrator: str = ""
    language: str = ""
    about: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.acx:
            acx.check_options(self.path, self.per_chapter, self.loudness)
        if self.acx and not has_pyav():
            raise UserError(f"acx needs PyAV: {INSTALL}", "acx")
        if self.playlist and not (self.per_chapter or self.is_epub):
            raise NoEffectError("playlist", "on one file", "add per_chapter=True, or leave it out")
        if self.loudness is not None and not MIN_LOUDNESS <= self.loudness <= MAX_LOUDNESS:
            raise UserError(
                f"loudness must be from {MIN_LOUDNESS:g} to {MAX_LOUDNESS:g} LUFS, got {self.loudness:g}", "loudness"
            )
        check_output_file(self.path)
        if self.is_epub:
            for name in ("playlist", "per_chapter", "srt", "vtt", "times"):
                if getattr(self, name):
                    raise NoEffectError(name, "on an EPUB, which contains chapters, text and times", "leave it out")
        elif self.path.suffix.lower() not in sound_formats.FORMATS:
            formats = ", ".join(sound_formats.FORMATS)
            raise UserError(f"cannot write {self.path}: end its name in {formats} or {EPUB}")
        else:
            check_output(self.path)
        for suffix in self.companions:
            check_output_file(self.path.with_suffix(suffix))

    @property
    def digest(self) -> str:
        """Digest of all options except the path, so that the digest does not depend on the current folder."""
        return digest_of(self.content() | {"path": ""})

    def content(self) -> dict[str, Any]:
        """Return the options as a JSON value."""
        return {**asdict(self), "cover": self.cover and digest_of(self.cover.data.hex())}

    @property
    def is_epub(self) -> bool:
        return self.path.suffix.lower() == EPUB

    @property
    def companions(self) -> list[str]:
        """Suffixes of the files with subtitles and times."""
        return [suffix for suffix, name in COMPANIONS.items() if getattr(self, name)]

    def paths(self, titles: Sequence[str], numbers: Collection[int]) -> list[Path]:
        """Return the paths of the sound files.

        Args:
            titles: The titles of all chapters in the book.
            numbers: Numbers of the chapters to write, from 1.
        """
        return (
            [self.chapter_path(number, len(titles), titles[number - 1]) for number in numbers]
            if self.per_chapter
            else [self.path]
        )

    def other_paths(self, titles: Sequence[str], numbers: Collection[int]) -> list[Path]:
        """Return the paths of subtitles, times, playlist and cover.

        The arguments are the same as for ``self.paths``.
        """
        subtitles = [
            path.with_suffix(suffix)
            for path in self.paths(titles, numbers)
            for suffix in self.companions
            if suffix != ".json"
        ]
        return subtitles + [self.path.with_suffix(".json")] * self.times + self.of_folder

    @property
    def of_folder(self) -> list[Path]:
        """Paths of the playlist and the cover. Players find the cover by the playlist's name."""
        if not self.playlist:
            return []
        cover = [IMAGE_SUFFIXES[self.cover.media_type]] if self.cover else []
        return [self.path.with_suffix(suffix) for suffix in (".m3u8", *cover)]

    def chapter_path(self, number: int, count: int, title: str) -> Path:
        """Return the path of a chapter's file. Characters that file names cannot contain become spaces."""
        clean = FORBIDDEN.sub(" ", title)[:MAX_NAME].encode("utf-8", "replace")[:MAX_BYTES].decode("utf-8", "ignore")
        clean = " ".join((clean.strip(" .") or "untitled").split())
        return self.path.with_name(f"{self.path.stem} {number:0{max(2, len(str(count)))}} {clean}{self.path.suffix}")


def check_replaced(
    store: JobStore, options: OutputOptions, titles: Sequence[str], numbers: Collection[int], force: bool
) -> None:
    """Check, before hours of work, that outputs replace only unchanged files that this job wrote.

    Args:
        titles: The titles of all chapters.
        numbers: Numbers of the chapters to write, from 1.
        force: Whether outputs may replace other files too.

    Raises:
        UserError: An output would replace another file, cannot be written, or is the same file as another output.
    """
    ownership = FileOwnership(store, force)
    paths = [*options.paths(titles, numbers), *options.other_paths(titles, numbers)]
    check_apart([], [("output", path) for path in paths])
    for path in paths:
        check_output_file(path)
        ownership.check(path)


def write_book_files(store: JobStore, options: OutputOptions, prune: bool = True, force: bool = False) -> WrittenBook:
    """Write the files of a job (narration) whose chunks all have a sound. Files that are up to date stay unchanged.

    If several processes call this function for one job, the first writes, and the others wait for it.

    Args:
        prune: Whether to delete stored sounds that the plan does not need, once the files are written.
        force: Whether files that this job did not write may be replaced.

    Raises:
        UserError: The job is not finished, a file cannot be written, or a file that this job did not write exists.
    """
    with leases_renewed(store):
        while not store.claim_output():
            time.sleep(POLL)
        chunks = store.chunks()
        blocks = planned_blocks(store)
        timeline = time_book(chunks, titles := store.fact("chapters"), blocks)
        numbers = [chapter.number for chapter in timeline.chapters]
        written, folder = store.fact("written") or {}, options.path.parent
        before = [
            folder / Path(file).name
            for file in (*(file for file, _ in written.get("files", [])), *written.get("book", {}).get("former", []))
        ]
        options = with_former_companions(options, titles, numbers, FileOwnership(store))
        wanted = digest_of(
            [
                store.fact("plan"),
                [chunk.take for chunk in chunks],
                options.content(),
                *([store.fact("text")] if options.is_epub or any(block.cue for block in blocks) else []),
            ]
        )
        if written.get("digest") != wanted or not all(
            (folder / file).is_file() and (folder / file).stat().st_size == size for file, size in written["files"]
        ):
            check_replaced(store, options, titles, numbers, force)  # hours may have passed since the first check
            book = _write(store, timeline, options, FileOwnership(store, force))
            book = replace(
                book,
                notes=late_cues(timeline, blocks),
                former=[file.name for file in before if file.name not in book.files and file.exists()],
            )
            if prune:
                store.prune()
            store.set_fact(
                "written",
                {
                    "digest": wanted,
                    "book": asdict(book),
                    "files": [[file, (folder / file).stat().st_size] for file in book.files],
                },
            )
        else:
            book = WrittenBook(**written["book"])
        sounds = chapter_sounds(chunks, titles)
        paths = zip(numbers, options.paths(titles, numbers), strict=True) if options.per_chapter else ()
        ones = {path.stem: [sounds[number]] for number, path in paths}
        book_sounds = [*sounds.values(), *([all_chapters(titles)] if prune else [])]
        every = {folder / Path(file).name: ones.get(Path(file).stem, book_sounds) for file in book.files}
        stale = stale_files(store, every, {*book_sounds} if prune else None)
        # The job stores only file names, because somebody may have moved its folder together with the files next to it.
        return replace(
            book,
            files=[str(folder / Path(file).name) for file in book.files],
            former=[str(folder / Path(file).name) for file in book.former],
            stale=stale,
        )


def with_former_companions(
    options: OutputOptions, titles: Sequence[str], numbers: Collection[int], ownership: FileOwnership
) -> OutputOptions:
    """Return options that also write the formats of subtitles and times that an earlier run wrote.

    Otherwise, the old files would remain and would not fit the new sound. A format is not added if the user wrote or
    changed a file of that format.
    """
    if options.is_epub:
        return options
    there = [
        file
        for file in replace(options, srt=True, vtt=True, times=True).other_paths(titles, numbers)
        if file.exists() and file not in options.of_folder
    ]
    others = {file.suffix for file in there if not ownership.is_own(file)}
    again: dict[str, Any] = {COMPANIONS[file.suffix]: True for file in there if file.suffix not in others}
    return replace(options, **again)


def _write(store: JobStore, timeline: BookTimeline, options: OutputOptions, ownership: FileOwnership) -> WrittenBook:
    files, titles = list[str](), store.fact("chapters")
    timeline = acx.with_room(timeline) if options.acx else timeline
    if options.word_times or options.is_epub:
        timeline = with_words(timeline, store, estimated=options.word_times)
    parts = timeline.parts() if options.per_chapter or options.is_epub else [timeline]
    sounds = SoundFiles(store, options.loudness, options.acx, parts)

    @contextmanager
    def written(path: Path) -> Iterator[Path]:
        with published(path, ownership) as target:
            yield target
        files.append(path.name)

    if options.is_epub:
        with written(options.path) as target:
            write_epub(target, timeline, epub_facts(store, options), sounds.write)
        parts = []
    paths = [] if options.is_epub else options.paths(titles, [chapter.number for chapter in timeline.chapters])
    for part, path in zip(parts, paths, strict=True):
        marks = [
            ChapterMark(chapter.title, part.seconds(chapter.start), part.seconds(chapter.end))
            for chapter in part.chapters
        ]
        with written(path) as target:
            sounds.write(part, target, _tags(options, part, len(titles)), marks, options.cover)
        for suffix, wanted, render in ((".srt", options.srt, srt), (".vtt", options.vtt, vtt)):
            if wanted:
                with written(path.with_suffix(suffix)) as target:
                    target.write_text(render(part), encoding="utf-8")
    for path in options.of_folder:
        with written(path) as target:
            target.write_bytes(
                options.cover.data
                if options.cover and path.suffix != ".m3u8"
                else playlist(parts, paths).encode("utf-8", "replace")
            )
    if options.times:
        with written(options.path.with_suffix(".json")) as target:
            write_json(
                target,
                {
                    "title": options.title,
                    "author": options.author,
                    "sample_rate": timeline.rate,
                    "seconds": timeline.samples / timeline.rate,
                    "chapters": [
                        {"file": path.name, **chapter}
                        for part, path in zip(parts, paths, strict=True)
                        for chapter in times(part)
                    ],
                },
            )
    whole = sounds.whole
    return WrittenBook(
        files,
        timeline.samples / timeline.rate,
        whole.loudness if whole else None,
        whole.true_peak if whole else None,
        measures=sounds.measures,
    )


def playlist(parts: Sequence[BookTimeline], paths: Sequence[Path]) -> str:
    """Return an extended M3U playlist with the length in seconds, the title and the file of each chapter."""
    entries = [
        f"#EXTINF:{math.ceil(part.samples / part.rate)},{' '.join(part.chapters[0].title.split())}\n{path.name}"
        for part, path in zip(parts, paths, strict=True)
    ]
    return "\n".join(("#EXTM3U", *entries)) + "\n"


def epub_facts(store: JobStore, options: OutputOptions) -> EpubFacts:
    """Collect the facts about the book that its EPUB contains."""
    text = store.fact("text") or {"language": ""}
    return EpubFacts(
        options.title,
        options.author,
        text["language"],
        options.cover,
        store.fact("plan"),
        planned_blocks(store),
        options.word_times,
        options.narrator,
        options.about,
    )


def _tags(options: OutputOptions, part: BookTimeline, count: int) -> dict[str, str]:
    """Return the tags of a sound file by FFmpeg's names. Audiobook players show the tag "composer" as the narrator."""
    tags = {
        "title": options.title,
        "artist": options.author,
        "album": options.title,
        "album_artist": options.author,
        "genre": "Audiobook",
        "composer": options.narrator,
        "language": iso_639_2(options.language or "en"),
        **{tag: options.about[name] for name, tag in ABOUT_TAGS.items() if name in options.about},
    }
    if options.per_chapter:
        tags |= {"title": part.chapters[0].title, "track": f"{part.chapters[0].number}/{count}"}
    # Python turns a file name that is not UTF-8 into lone surrogates, which tags cannot contain
    return {name: value.encode("utf-8", "replace").decode("utf-8") for name, value in tags.items()}
