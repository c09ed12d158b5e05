"""From a finished job to files for the book, or one a chapter: one loudness and its limit, tags, subtitles, times."""

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
from ane.books.ownership import FileOwnership, completed
from ane.books.plan import digest_of
from ane.books.sound_files import SoundFiles
from ane.books.store import JobStore
from ane.system.errors import UserError
from ane.system.file_gate import check_apart
from ane.system.files import check_output_file, write_json

MIN_LOUDNESS, MAX_LOUDNESS = -40.0, -5.0  # LUFS
FORBIDDEN = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]+')  # in names of files, on some system
IMAGE_SUFFIXES = {"image/jpeg": ".jpg", "image/png": ".png"}
ABOUT_TAGS = {"date": "date", "publisher": "publisher", "description": "description", "series": "grouping"}
MAX_NAME = 120  # characters of a title in a file name
MAX_BYTES = 210  # of it: a name has 255 at most on most systems, and the rest of the name needs some


@dataclass(frozen=True)
class OutputOptions:
    """What is written. Subtitles and times are beside the book, with their own suffixes; an EPUB has both inside.

    Raises:
        UserError: an option without effect, or a loudness that cannot be used.
    """

    path: Path  # of the book; its suffix is the format
    per_chapter: bool = False  # one file a chapter beside ``path``, named by its stem, number and title
    srt: bool = False
    vtt: bool = False
    json: bool = False
    word_times: bool = False  # whether these state when each word is heard
    loudness: float | None = None  # LUFS; None: as spoken
    title: str = ""
    author: str = ""
    cover: CoverImage | None = None
    playlist: bool = False  # of ``per_chapter``: a playlist, and the cover as a file
    acx: bool = False  # the form that ACX asks for: ``ane.books.acx``
    narrator: str = ""
    language: str = ""  # BCP 47 tag; "": English
    about: Mapping[str, str] = field(default_factory=dict)  # by the names of ``ane.books.document.ABOUT``

    def __post_init__(self) -> None:
        if self.acx and (self.path.suffix.lower() != ".mp3" or self.loudness is not None or not self.per_chapter):
            raise UserError(
                "acx needs an output .mp3, a file for each chapter, and no loudness, because it sets the level itself",
                "acx",
            )
        if self.acx and not has_pyav():
            raise UserError(f"acx needs PyAV: {INSTALL}", "acx")
        if self.playlist and not (self.per_chapter or self.is_epub):
            raise UserError("playlist has no effect on one file: add per_chapter=True, or leave it out", "playlist")
        if self.loudness is not None and not MIN_LOUDNESS <= self.loudness <= MAX_LOUDNESS:
            raise UserError(
                f"loudness must be from {MIN_LOUDNESS:g} to {MAX_LOUDNESS:g} LUFS, got {self.loudness:g}", "loudness"
            )
        if self.is_epub:
            for name in ("playlist", "per_chapter", "srt", "vtt", "json"):
                if getattr(self, name):
                    raise UserError(f"{name} has no effect on an EPUB, which has chapters, text and times inside", name)
            check_output_file(self.path)
        else:
            check_output(self.path)
        for suffix in self.companions:
            check_output_file(self.path.with_suffix(suffix))

    @property
    def digest(self) -> str:
        """Of all but the path: the same options of the same job have it from any folder."""
        return digest_of(self.content() | {"path": ""})

    def content(self) -> dict[str, Any]:
        """The options as JSON has them."""
        return {**asdict(self), "cover": self.cover and digest_of(self.cover.data.hex())}

    @property
    def is_epub(self) -> bool:
        return self.path.suffix.lower() == EPUB

    @property
    def companions(self) -> list[str]:
        """Suffixes of the files beside the sound."""
        return [f".{name}" for name in ("srt", "vtt", "json") if getattr(self, name)]

    def paths(self, titles: Sequence[str], numbers: Collection[int]) -> list[Path]:
        """The files of sound of the chapters with these numbers, of a book whose chapters have these titles."""
        return (
            [self.chapter_path(number, len(titles), titles[number - 1]) for number in numbers]
            if self.per_chapter
            else [self.path]
        )

    def beside(self, titles: Sequence[str], numbers: Collection[int]) -> list[Path]:
        """The files beside the sound."""
        subtitles = [
            path.with_suffix(suffix)
            for path in self.paths(titles, numbers)
            for suffix in self.companions
            if suffix != ".json"
        ]
        return subtitles + [self.path.with_suffix(".json")] * self.json + self.of_folder

    @property
    def of_folder(self) -> list[Path]:
        """The playlist of a folder of chapters, and its cover, which players find by the playlist's name."""
        if not self.playlist:
            return []
        cover = [IMAGE_SUFFIXES[self.cover.media_type]] if self.cover else []
        return [self.path.with_suffix(suffix) for suffix in (".m3u8", *cover)]

    def chapter_path(self, number: int, count: int, title: str) -> Path:
        """The file of a chapter. The title keeps no character that a file name cannot have."""
        clean = FORBIDDEN.sub(" ", title)[:MAX_NAME].encode("utf-8", "replace")[:MAX_BYTES].decode("utf-8", "ignore")
        clean = " ".join((clean.strip(" .") or "untitled").split())
        return self.path.with_name(f"{self.path.stem} {number:0{max(2, len(str(count)))}} {clean}{self.path.suffix}")


def check_replaced(
    store: JobStore, options: OutputOptions, titles: Sequence[str], numbers: Collection[int], force: bool
) -> None:
    """Refuse outputs, before hours of work, in whose place a file is that this job did not write or that was changed.

    Args:
        titles, numbers: The chapters, as ``OutputOptions.paths`` takes them.
        force: Whether such files are replaced.

    Raises:
        UserError: an output that is refused, that cannot be written, or that is the same file as another output.
    """
    ownership = FileOwnership(store, force)
    paths = [*options.paths(titles, numbers), *options.beside(titles, numbers)]
    check_apart([], [("output", path) for path in paths])
    for path in paths:
        check_output_file(path)
        ownership.check(path)


def write_book_files(store: JobStore, options: OutputOptions, prune: bool = True, force: bool = False) -> WrittenBook:
    """Write the files of a job in which every chunk has a sound; files that are up to date are left as they are.

    Several processes may call it: one writes, the others wait.

    Args:
        prune: whether the sounds that are not in the plan are deleted then.
        force: whether files of other origin are replaced.

    Raises:
        UserError: the job is not finished, a file cannot be written, or one that this job did not write is in the way.
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
            check_replaced(store, options, titles, numbers, force)  # again: hours may have passed
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
        # by their names, since a job is beside its output, and both may have been moved or be named from elsewhere
        return replace(
            book,
            files=[str(folder / Path(file).name) for file in book.files],
            former=[str(folder / Path(file).name) for file in book.former],
        )


def with_former_companions(
    options: OutputOptions, titles: Sequence[str], numbers: Collection[int], ownership: FileOwnership
) -> OutputOptions:
    """The options with the subtitles and times that an earlier run wrote: they would not fit the new sound. A kind of
    which a file was changed since, or is the user's, is left as it is.
    """
    if options.is_epub:
        return options
    there = [
        file
        for file in replace(options, srt=True, vtt=True, json=True).beside(titles, numbers)
        if file.exists() and file not in options.of_folder
    ]
    others = {file.suffix for file in there if not ownership.is_own(file)}
    made: dict[str, Any] = {file.suffix[1:]: True for file in there if file.suffix not in others}
    return replace(options, **made)


def _write(store: JobStore, timeline: BookTimeline, options: OutputOptions, ownership: FileOwnership) -> WrittenBook:
    files, titles = list[str](), store.fact("chapters")
    timeline = acx.with_room(timeline) if options.acx else timeline
    if options.word_times or options.is_epub:
        timeline = with_words(timeline, store, estimated=options.word_times)
    parts = timeline.parts() if options.per_chapter or options.is_epub else [timeline]
    sounds = SoundFiles(store, options.loudness, options.acx, parts)

    @contextmanager
    def written(path: Path) -> Iterator[Path]:
        with completed(path, ownership) as target:
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
    if options.json:
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
    """An extended M3U of chapters: the seconds and the title of each, and its file in the same folder."""
    entries = [
        f"#EXTINF:{math.ceil(part.samples / part.rate)},{' '.join(part.chapters[0].title.split())}\n{path.name}"
        for part, path in zip(parts, paths, strict=True)
    ]
    return "\n".join(("#EXTM3U", *entries)) + "\n"


def epub_facts(store: JobStore, options: OutputOptions) -> EpubFacts:
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
    """The tags of a file by FFmpeg's names. Players of audiobooks take the composer for the narrator."""
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
    # a name of a file that is not UTF-8 reaches Python as lone surrogates, which no tag can hold
    return {name: value.encode("utf-8", "replace").decode("utf-8") for name, value in tags.items()}
