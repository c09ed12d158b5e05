"""Write a spoken book as EPUB 3 with media overlays (https://www.w3.org/TR/epub-33/#sec-media-overlays).

The pages contain the spoken text: headings, paragraphs, list items, quotations and scene breaks. Each chapter has one
page, one sound file and one overlay, which lists the start and end of every sentence or word in the sound.
"""

import re
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from itertools import accumulate, groupby, pairwise
from pathlib import Path

from ane.audio.media import CoverImage, cover_size, has_pyav
from ane.books.assembly import BookTimeline, TimedChunk
from ane.books.plan import PlannedBlock, PlannedChunk
from ane.speech.words import WORDS
from ane.text import splitter
from ane.text.blocks import HEADING, ITEM, PARAGRAPH, QUOTATION, SCENE_BREAK
from ane.text.passages import without_commands

EPUB = ".epub"
CONTAINER = """<?xml version="1.0" encoding="utf-8"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="EPUB/package.opf" media-type="application/oebps-package+xml"/></rootfiles></container>
"""
ACTIVE = "spoken"  # CSS class of the text that is being spoken
STYLE = f".{ACTIVE} {{ background-color: #fe8; color: #000; }}\nhr {{ width: 30%; }}\n"
XHTML = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"{language}><head>
<title>{title}</title><link rel="stylesheet" type="text/css" href="style.css"/></head><body>
{body}
</body></html>
"""
SMIL = """<?xml version="1.0" encoding="utf-8"?>
<smil xmlns="http://www.w3.org/ns/SMIL" version="3.0"><body>
{}
</body></smil>
"""
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z]{4})?(-(?:[A-Za-z]{2}|\d{3}))?")
ELEMENTS = {PARAGRAPH: "p", ITEM: "li", QUOTATION: "blockquote"}


@dataclass(frozen=True)
class EpubFacts:
    """The facts about a book that its EPUB states.

    Attributes:
        plan: Digest of the book's plan. The EPUB's identifier is made from it.
        by_word: Whether reading programs mark each word while it is spoken. If not, they mark each sentence. They mark
            a chunk without word times as a whole.
        about: Facts about the book. The keys are names of ``ane.books.document.ABOUT``.
    """

    title: str
    author: str
    language: str
    cover: CoverImage | None
    plan: str
    blocks: Sequence[PlannedBlock] = ()
    by_word: bool = False
    narrator: str = ""
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass
class OverlaidChapter:
    """A chapter's page in an EPUB, and the times at which a reading program marks the spans on this page.

    Attributes:
        clips: For each marked span, its id, its start and its end. Both times are seconds from the beginning of the
            chapter's sound.
    """

    name: str
    title: str
    page: str = ""
    clips: list[tuple[str, float, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(end - start for _, start, end in self.clips)

    def overlay(self, sound: str) -> str:
        return SMIL.format(
            "\n".join(
                f'<par id="p-{name}"><text src="{self.name}.xhtml#{name}"/>'
                f'<audio src="{sound}" clipBegin="{start:.3f}s" clipEnd="{end:.3f}s"/></par>'
                for name, start, end in self.clips
            )
        )


def write_epub(
    target: Path, timeline: BookTimeline, facts: EpubFacts, write_sound: Callable[[BookTimeline, Path], None]
) -> None:
    """Write the book to ``target``. Each chapter's sound is first a temporary file in the same folder.

    Args:
        write_sound: Function that writes the sound of a timeline to a file, in the format of the file's suffix.
    """
    suffix, sound_type = (".m4a", "audio/mp4") if has_pyav() else (".mp3", "audio/mpeg")
    chapters = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("mimetype"), "application/epub+zip")  # EPUB requires it first, uncompressed
        archive.writestr("META-INF/container.xml", CONTAINER)
        for number, part in enumerate(timeline.parts(), 1):
            chapter = overlaid_chapter(f"chapter-{number:03}", part, facts)
            chapters.append(chapter)
            archive.writestr(f"EPUB/{chapter.name}.xhtml", chapter.page)
            if chapter.clips:
                sound = target.with_name(f"{chapter.name}{suffix}")
                write_sound(part, sound)
                archive.write(sound, f"EPUB/{sound.name}", zipfile.ZIP_STORED)
                sound.unlink()
                archive.writestr(f"EPUB/{chapter.name}.smil", chapter.overlay(sound.name))
        archive.writestr("EPUB/style.css", STYLE)
        archive.writestr("EPUB/nav.xhtml", navigation(chapters, facts))
        cover = facts.cover if facts.cover and (cover_size(facts.cover) or not has_pyav()) else None
        if cover:
            archive.writestr(f"EPUB/cover.{cover.media_type.rpartition('/')[2]}", cover.data)
        archive.writestr("EPUB/package.opf", package(chapters, facts, cover, suffix, sound_type))


def overlaid_chapter(name: str, part: BookTimeline, facts: EpubFacts) -> OverlaidChapter:
    """Make the page of a chapter, and the time spans of its words or sentences.

    Each time span ends where the next one starts, to avoid gaps in playback.
    """
    [timed_chapter] = part.chapters
    chapter = OverlaidChapter(name, xml_text(timed_chapter.title))
    marked: dict[int, str] = {}  # number of a chunk → its text as XHTML
    starts: list[tuple[str, float]] = []
    for timed in timed_chapter.chunks:
        spans, voice = [], timed.chunk.voice
        title = f' title="{xml_text(voice)}"' if voice else ""
        for text, start in marked_parts(part, timed, facts.by_word):
            identifier = f"t{len(starts) + 1}"
            spans.append(
                f'<span id="{identifier}"{title}>{xml_text(text)}</span>' if timed.end > timed.start else xml_text(text)
            )
            starts += [(identifier, round(start, 3))] * (timed.end > timed.start)
        marked[timed.chunk.number] = " ".join(spans)
    chapter.clips = [
        (identifier, start, end)
        for (identifier, start), (_, end) in pairwise([*starts, ("", round(part.seconds(timed_chapter.end), 3))])
        if end > start
    ]
    body = "\n".join(elements([timed.chunk for timed in timed_chapter.chunks], marked, facts))
    chapter.page = XHTML.format(language=language_attribute(facts.language, "en"), title=chapter.title, body=body)
    return chapter


def marked_parts(part: BookTimeline, timed: TimedChunk, by_word: bool) -> Iterator[tuple[str, float]]:
    """Yield the words or sentences of a chunk, with their starts in seconds.

    A reading program marks these parts one after another.
    """
    text, begin, words = without_commands(timed.chunk.text), part.seconds(timed.start), timed.words
    written = WORDS.findall(text)
    if not words or written != [word.word for word in words]:
        yield " ".join(written), begin
        return
    sentences = (
        [[word] for word in written]
        if by_word
        else [WORDS.findall(splitter.join(run)) for run in splitter.cut_after(splitter.words(text), splitter.SENTENCE)]
    )
    for first, last in pairwise([0, *accumulate(map(len, sentences))]):
        yield " ".join(written[first:last]), begin + words[first].start


def elements(chunks: Sequence[PlannedChunk], marked: Mapping[int, str], facts: EpubFacts) -> Iterator[str]:
    """Yield the HTML elements of a page. If the job does not store blocks, each chunk becomes an element."""
    firsts = {block.first: block for block in facts.blocks if block.kind != SCENE_BREAK}
    breaks = {block.first for block in facts.blocks if block.kind == SCENE_BREAK}
    blocks: list[list[PlannedChunk]] = []
    for chunk in chunks:
        if chunk.number in firsts or not firsts or not blocks:
            blocks.append([])
        blocks[-1].append(chunk)

    markup: list[tuple[bool, str]] = []  # for each element, whether it is a list item
    for block in blocks:
        first = block[0]
        if first.number in breaks and first is not chunks[0]:
            markup.append((False, "<hr/>"))
        level = firsts[first.number].level if first.number in firsts else 0
        element = f"h{min(level or 2, 6)}" if first.kind == HEADING else ELEMENTS.get(first.kind, "p")
        inner = " ".join(marked[chunk.number] for chunk in block)
        inner = f"<p>{inner}</p>" if element == "blockquote" else inner
        language = language_attribute(first.language) if first.language != facts.language else ""
        markup.append((element == "li", f"<{element}{language}>{inner}</{element}>"))
    for listed, run in groupby(markup, key=lambda pair: pair[0]):
        inner = "\n".join(element for _, element in run)
        yield f"<ul>\n{inner}\n</ul>" if listed else inner


def navigation(chapters: Sequence[OverlaidChapter], facts: EpubFacts) -> str:
    entries = "\n".join(f'<li><a href="{chapter.name}.xhtml">{chapter.title}</a></li>' for chapter in chapters)
    return XHTML.format(
        language=language_attribute(facts.language, "en"),
        title=xml_text(facts.title or "untitled"),
        body=f'<nav epub:type="toc"><ol>\n{entries}\n</ol></nav>',
    )


def package(
    chapters: Sequence[OverlaidChapter], facts: EpubFacts, cover: CoverImage | None, suffix: str, sound_type: str
) -> str:
    """Return the package document: the metadata of the book, the list of its files, and their reading order."""
    spoken = [chapter for chapter in chapters if chapter.clips]
    properties = [
        ("dcterms:modified", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")),
        ("schema:accessMode", "textual"),
        ("schema:accessMode", "auditory"),
        ("schema:accessibilityFeature", "synchronizedAudioText"),
        ("schema:accessibilityHazard", "none"),
        ("media:active-class", ACTIVE),
        ("media:duration", f"{sum(one.seconds for one in spoken):.3f}s"),
    ]
    about = [
        f'<dc:identifier id="id">urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, facts.plan)}</dc:identifier>',
        f"<dc:title>{xml_text(facts.title or 'untitled')}</dc:title>",
        f"<dc:language>{known_language(facts.language, 'en')}</dc:language>",
        *([f"<dc:creator>{xml_text(facts.author)}</dc:creator>"] if facts.author else []),
        *optional_metadata(facts),
        *(f'<meta property="{name}">{value}</meta>' for name, value in properties),
        *(f'<meta property="media:duration" refines="#{one.name}-smil">{one.seconds:.3f}s</meta>' for one in spoken),
    ]
    files = [
        '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>',
        '<item id="style" href="style.css" media-type="text/css"/>',
    ]
    if cover:
        files.append(
            f'<item id="cover" href="cover.{cover.media_type.rpartition("/")[2]}" '
            f'media-type="{cover.media_type}" properties="cover-image"/>'
        )
    for one in chapters:
        overlay = f' media-overlay="{one.name}-smil"' if one.clips else ""
        files.append(f'<item id="{one.name}" href="{one.name}.xhtml" media-type="application/xhtml+xml"{overlay}/>')
    for one in spoken:
        files += [
            f'<item id="{one.name}-smil" href="{one.name}.smil" media-type="application/smil+xml"/>',
            f'<item id="{one.name}-sound" href="{one.name}{suffix}" media-type="{sound_type}"/>',
        ]
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">',
        '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">',
        *about,
        "</metadata>",
        "<manifest>",
        *files,
        "</manifest>",
        "<spine>",
        *(f'<itemref idref="{one.name}"/>' for one in chapters),
        "</spine>",
        "</package>",
    ]
    return "\n".join(lines) + "\n"


def optional_metadata(facts: EpubFacts) -> Iterator[str]:
    """Yield the metadata elements that only some books have."""
    for name in ("date", "publisher", "description"):
        if name in facts.about:
            yield f"<dc:{name}>{xml_text(facts.about[name])}</dc:{name}>"
    if facts.narrator:
        yield f'<dc:contributor id="narrator">{xml_text(facts.narrator)}</dc:contributor>'
        yield '<meta property="role" refines="#narrator" scheme="marc:relators">nrt</meta>'
        yield f'<meta property="media:narrator">{xml_text(facts.narrator)}</meta>'
    series, _, position = facts.about.get("series", "").partition(" #")
    if series:
        yield f'<meta property="belongs-to-collection" id="series">{xml_text(series)}</meta>'
        yield '<meta property="collection-type" refines="#series">series</meta>'
        if position:
            yield f'<meta property="group-position" refines="#series">{xml_text(position)}</meta>'


def xml_text(text: str) -> str:
    """Escape a text for XML, and remove characters that XML forbids."""
    return escape(NOT_XML.sub("", text))


def known_language(language: str, default: str = "") -> str:
    """Return the subtags of a language tag that every reading program understands.

    If there are none, return ``default``.
    """
    tag = LANGUAGE.match(language.replace("_", "-"))
    return tag[0] if tag else default


def language_attribute(language: str, default: str = "") -> str:
    tag = known_language(language, default)
    return f' lang="{tag}" xml:lang="{tag}"' if tag else ""
