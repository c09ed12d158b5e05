"""From a finished job to the files that people keep: one for the book, or one a chapter, with subtitles and times."""

import math
import os
import re
import shutil
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ane.audio.loudness import LoudnessMeter, PeakLimiter
from ane.books.assembly import (
    BookTimeline,
    TimedChunk,
    late_cues,
    measure_book,
    planned_blocks,
    sound_of_book,
    time_book,
)
from ane.books.captions import WordsOf, no_words, srt, times, vtt
from ane.books.document import CoverImage
from ane.books.epub_writer import EPUB, EpubFacts, write_epub
from ane.books.media_writer import ChapterMark, check_media_output, writing_media
from ane.books.narration import EDGE, POLL, leases_renewed
from ane.books.plan import digest_of
from ane.books.store import JobStore
from ane.speech.words import WORDS, SpokenWord, shared_time
from ane.system.errors import UserError
from ane.system.files import check_output_file, flush, write_json
from ane.text.passages import without_commands

CEILING = -3.0              # dBTP
MIN_LOUDNESS, MAX_LOUDNESS = -40.0, -5.0        # LUFS
TEMPLATE = "{book} {number} {title}"
FIELDS = ("book", "number", "title")
FORBIDDEN = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]+')       # in names of files, on some system
IMAGE_SUFFIXES = {"image/jpeg": ".jpg", "image/png": ".png"}
MAX_NAME = 120              # characters of a title in a file name
MAX_BYTES = 210             # of it: a name has 255 at most on most systems, and the rest of the name needs some


@dataclass(frozen=True)
class OutputOptions:
    """What is written.

    Attributes:
        path: of the book; its suffix is the format. Subtitles and times are beside it, with their own suffixes; an
            EPUB has its text and times inside, and none beside it.
        per_chapter: one file a chapter, named by ``template`` in the folder of ``path``.
        template: with {book} (the stem of ``path``), {number} and {title}.
        srt, vtt, json: whether to write these. word_times: whether they state when each word is heard.
        loudness: LUFS; None: as spoken.
        title, author, cover: tags.
        playlist: of ``per_chapter``: whether to write a playlist, and the cover as a file.

    Raises:
        UserError: a template or a loudness that cannot be used.
    """

    path: Path
    per_chapter: bool = False
    template: str = TEMPLATE
    srt: bool = False
    vtt: bool = False
    json: bool = False
    word_times: bool = False
    loudness: float | None = None
    title: str = ""
    author: str = ""
    cover: CoverImage | None = None
    playlist: bool = False

    def __post_init__(self) -> None:
        if self.playlist and (not self.per_chapter or self.is_epub):
            raise UserError("playlist has no effect without per_chapter: add it, or leave playlist out", "playlist")
        if self.loudness is not None and not MIN_LOUDNESS <= self.loudness <= MAX_LOUDNESS:
            raise UserError(f"loudness must be from {MIN_LOUDNESS:g} to {MAX_LOUDNESS:g} LUFS, got {self.loudness:g}",
                            "loudness")
        unknown = [name for name in re.findall(r"\{([^{}]*)\}", self.template) if name not in FIELDS]
        if unknown or ("{number}" not in self.template and "{title}" not in self.template):
            raise UserError(f"template must have {{number}} or {{title}}, and may have {{book}}; got {self.template!r}",
                            "template")
        if self.is_epub:
            for name in ("per_chapter", "srt", "vtt", "json"):
                if getattr(self, name):
                    raise UserError(f"{name} has no effect on an EPUB, which has chapters, text and times inside", name)
            check_output_file(self.path)
        else:
            check_media_output(self.path)
        for suffix in self.companions:
            check_output_file(self.path.with_suffix(suffix))

    @property
    def is_epub(self) -> bool:
        return self.path.suffix.lower() == EPUB

    @property
    def companions(self) -> list[str]:
        """Suffixes of the files beside the sound."""
        return [f".{name}" for name in ("srt", "vtt", "json") if getattr(self, name)]

    def paths(self, titles: Sequence[str]) -> list[Path]:
        """The files of sound of a book with these chapters. Raises UserError when two have the same name."""
        if not self.per_chapter:
            return [self.path]
        paths = [self.chapter_path(number, len(titles), title) for number, title in enumerate(titles, 1)]
        # on a Mac, names that differ by capitals or by how an accent is encoded are the same
        name, count = Counter(unicodedata.normalize("NFC", path.name).casefold() for path in paths).most_common(1)[0]
        if count > 1:
            same = next(path.name for path in paths if unicodedata.normalize("NFC", path.name).casefold() == name)
            raise UserError(f"template gives two chapters the name {same!r}: add {{number}}")
        return paths

    def beside(self, titles: Sequence[str]) -> list[Path]:
        """The files beside the sound."""
        subtitles = [path.with_suffix(suffix) for path in self.paths(titles) for suffix in self.companions
                     if suffix != ".json"]
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
        clean = clean.strip(" .") or "untitled"
        name = self.template
        for part, value in (("book", self.path.stem), ("number", f"{number:0{max(2, len(str(count)))}}"),
                             ("title", " ".join(clean.split()))):
            name = name.replace(f"{{{part}}}", value)
        return self.path.parent / f"{name}{self.path.suffix}"


@dataclass(frozen=True)
class WrittenBook:
    """What was written: the files, seconds of sound, and loudness and true peak of the sound before its encoding.

    ``former``: files that earlier runs wrote and this one did not, which may not belong to the sound any more.
    ``notes``: subtitles that begin late.
    """

    files: list[str]
    seconds: float
    loudness: float | None = None
    true_peak: float | None = None
    former: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_replaced(store: JobStore, options: OutputOptions, titles: Sequence[str], sources: Sequence[Path],
                   force: bool) -> None:
    """Raise UserError, before hours of work, for a file that would be lost: one of ``sources``, or one beside the
    sound that this job did not write, unless ``force``. ``titles``: of the chapters."""
    files = [file for file, _ in (store.fact("written") or {}).get("files", [])]
    own = {os.path.abspath(file) for file in [*files, *(store.fact("outputs") or [])]}
    beside = options.beside(titles)
    for path in [*options.paths(titles), *beside]:
        check_output_file(path)
        if any(os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source)
               for source in sources):
            raise UserError(f"{path} is what is read: choose another output")
        if path in beside and os.path.exists(path) and os.path.abspath(path) not in own and not force:
            raise UserError(f"{path} exists, and this job did not write it: move it, choose another output, or add "
                            "force=True to replace it")


def write_book_files(store: JobStore, options: OutputOptions, prune: bool = True) -> WrittenBook:
    """Write the files of a job in which every chunk has a sound; files that are up to date are left as they are.

    Several processes may call it: one writes, the others wait.

    Args:
        prune: whether the sounds that are not in the plan are deleted then.

    Raises:
        UserError: the job is not finished, or a file cannot be written.
    """
    with leases_renewed(store):
        while not store.claim_output():
            time.sleep(POLL)
        chunks = store.chunks()
        blocks = planned_blocks(store)
        timeline = time_book(chunks, store.fact("chapters"), blocks)
        titles = [chapter.title for chapter in timeline.chapters]
        written = store.fact("written") or {}
        before = [file for file, _ in written.get("files", [])] + written.get("book", {}).get("former", [])
        options = with_former_companions(options, titles, before)
        wanted = digest_of([store.fact("plan"), [chunk.take for chunk in chunks],
                            {**asdict(options), "cover": options.cover and digest_of(options.cover.data.hex())},
                            *([store.fact("text")] if options.is_epub or any(block.cue for block in blocks) else [])])
        if written.get("digest") == wanted and all(_is_unchanged(*file) for file in written["files"]):
            return WrittenBook(**written["book"])
        store.set_fact("outputs", [os.path.abspath(path) for path in options.beside(titles)])
        book = _write(store, timeline, options)
        book = replace(book, former=[file for file in before if file not in book.files and os.path.exists(file)],
                       notes=late_cues(timeline, blocks))
        if prune:
            store.prune()
        store.set_fact("written", {"digest": wanted, "book": asdict(book),
                                   "files": [[file, os.path.getsize(file)] for file in book.files]})
        return book


def with_former_companions(options: OutputOptions, titles: Sequence[str], before: Sequence[str]) -> OutputOptions:
    """The options with the subtitles and times that an earlier run wrote: they would not fit the new sound."""
    if options.is_epub:
        return options
    kept = [file for file in replace(options, srt=True, vtt=True, json=True).beside(titles)
            if str(file) in before and file.exists()]
    made: dict[str, Any] = {file.suffix[1:]: True for file in kept if file not in options.of_folder}
    return replace(options, **made)


@contextmanager
def completed(store: JobStore, path: Path) -> Iterator[Path]:
    """Yield a path in the job's folder; the file that the block writes there becomes ``path`` when it is on disk.

    Whoever has the lease on the output removes what an interrupted run left.
    """
    folder = store.path / f"writing-{store.owner.rpartition(':')[2]}"
    path = Path(os.path.realpath(path)) if os.path.islink(path) else path       # a link stays, as with ``replacing``
    try:
        for left in store.path.glob("writing*"):
            shutil.rmtree(left, ignore_errors=True)
        folder.mkdir()
        target = folder / path.name
        yield target
        flush(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        store.publish(target, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; what was spoken is kept") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_unchanged(file: str, size: int) -> bool:
    return os.path.isfile(file) and os.path.getsize(file) == size


def _write(store: JobStore, timeline: BookTimeline, options: OutputOptions) -> WrittenBook:
    gain = 1.0
    if options.loudness is not None:
        before = measure_book(store, timeline)
        gain = 10 ** ((options.loudness - before.loudness) / 20) if np.isfinite(before.loudness) else 1.0
    words_of = timed_words(store, timeline.rate) if options.word_times else no_words
    after = LoudnessMeter(timeline.rate)

    def write_sound(part: BookTimeline, path: Path, tags: Mapping[str, str] | None = None,
                    marks: Sequence[ChapterMark] = (), cover: CoverImage | None = None) -> None:
        with writing_media(path, part.rate, tags or {}, marks, cover) as append:
            for piece in _levelled(sound_of_book(store, part), part.rate, gain, options.loudness is not None):
                append(piece)
                if options.loudness is not None:
                    after.feed(piece)

    if options.is_epub:
        with completed(store, options.path) as target:
            write_epub(target, timeline, epub_facts(store, options), words_of if options.word_times else
                       lambda timed: words_in_time(store, timed), write_sound)
        return _written_book([str(options.path)], timeline, options, after)
    files: list[str] = []
    content: list[dict[str, Any]] = []
    parts = timeline.parts() if options.per_chapter else [timeline]
    paths = options.paths([chapter.title for chapter in timeline.chapters])
    for number, (part, path) in enumerate(zip(parts, paths, strict=True), 1):
        marks = [ChapterMark(chapter.title, part.seconds(chapter.start), part.seconds(chapter.end))
                 for chapter in part.chapters]
        tags = _tags(options, part, number, len(parts))
        with completed(store, path) as target:
            write_sound(part, target, tags, marks, options.cover)
        files += [str(path), *_write_subtitles(store, part, path, options, words_of)]
        content += [{"file": path.name, **chapter} for chapter in times(part, words_of)]
    for path in options.of_folder:
        with completed(store, path) as target:
            target.write_bytes(options.cover.data if options.cover and path.suffix != ".m3u8" else
                               playlist(parts, paths).encode("utf-8", "replace"))
        files.append(str(path))
    if options.json:
        path = options.path.with_suffix(".json")
        with completed(store, path) as target:
            write_json(target, {"title": options.title, "author": options.author, "sample_rate": timeline.rate,
                              "seconds": timeline.samples / timeline.rate, "chapters": content})
        files.append(str(path))
    return _written_book(files, timeline, options, after)


def playlist(parts: Sequence[BookTimeline], paths: Sequence[Path]) -> str:
    """An extended M3U of chapters: the seconds and the title of each, and its file in the same folder."""
    entries = [f"#EXTINF:{math.ceil(part.samples / part.rate)},{' '.join(part.chapters[0].title.split())}\n{path.name}"
               for part, path in zip(parts, paths, strict=True)]
    return "\n".join(("#EXTM3U", *entries)) + "\n"


def _written_book(files: list[str], timeline: BookTimeline, options: OutputOptions,
                  after: LoudnessMeter) -> WrittenBook:
    measured = (after.loudness, after.true_peak) if options.loudness is not None else (None, None)
    return WrittenBook(files, timeline.samples / timeline.rate, *measured)


def epub_facts(store: JobStore, options: OutputOptions) -> EpubFacts:
    text = store.fact("text") or {"language": ""}
    return EpubFacts(options.title, options.author, text["language"], options.cover, store.fact("plan"),
                     planned_blocks(store), options.word_times)


def words_in_time(store: JobStore, timed: TimedChunk) -> list[SpokenWord]:
    """The words of a chunk as they are heard in the book; none if they were not timed."""
    return [replace(word, start=word.start / timed.speed, end=word.end / timed.speed)
            for word in store.words(timed.chunk.key)]


def timed_words(store: JobStore, rate: int) -> WordsOf:
    """The words of a chunk; of one that was spoken before they were asked for, in proportion to their letters."""
    def words_of(timed: TimedChunk) -> Sequence[SpokenWord]:
        seconds = (timed.end - timed.start) / rate
        return words_in_time(store, timed) or list(shared_time(
            WORDS.findall(without_commands(timed.chunk.text)), (min(EDGE, seconds), max(0.0, seconds - EDGE))))

    return words_of


def _levelled(pieces: Iterator[np.ndarray], rate: int, gain: float, levelled: bool) -> Iterator[np.ndarray]:
    """The pieces with the gain of the book, peaks limited to ``CEILING``."""
    if not levelled:
        yield from pieces
        return
    limiter = PeakLimiter(rate, gain, 10 ** (CEILING / 20))
    for piece in pieces:
        yield limiter.feed(piece)
    yield limiter.finish()


def _tags(options: OutputOptions, part: BookTimeline, number: int, count: int) -> dict[str, str]:
    tags = {"title": options.title, "artist": options.author, "album": options.title, "album_artist": options.author,
            "genre": "Audiobook"}
    if options.per_chapter:
        tags |= {"title": part.chapters[0].title, "track": f"{number}/{count}"}
    # a name of a file that is not UTF-8 reaches Python as lone surrogates, which no tag can hold
    return {name: value.encode("utf-8", "replace").decode("utf-8") for name, value in tags.items()}


def _write_subtitles(store: JobStore, part: BookTimeline, path: Path, options: OutputOptions,
                     words_of: WordsOf) -> list[str]:
    files = []
    for suffix, wanted, render in ((".srt", options.srt, srt), (".vtt", options.vtt, vtt)):
        if wanted:
            subtitles = path.with_suffix(suffix)
            with completed(store, subtitles) as target:
                target.write_text(render(part, words_of), encoding="utf-8")
            files.append(str(subtitles))
    return files
