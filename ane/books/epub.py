"""Read EPUB 2 and 3 as chapters: first the package document, then the contents, then the text files in their order.

The spine is the list of text files in reading order. The contents are the table of contents.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from ane.audio.media import CoverImage
from ane.books.archive import BookArchive, UnreadablePartError, resolve
from ane.books.document import ABOUT, MAX_TITLE, BookChapter, Document, split_at_headings
from ane.books.epub_metadata import read_metadata
from ane.books.front_matter import LONGEST_NOTICE, front_length, prose_length, without_title_page
from ane.books.linked_notes import linked_notes
from ane.system.errors import UserError
from ane.text.blocks import HEADING, LeftOutPart, TextBlock, first_words, left_out_part
from ane.text.html_blocks import AnchorMark, BlockReader
from ane.text.omissions import OMISSIONS, TABLES, Omission, counted_omissions, is_front_title
from ane.text.tags import tokenize

CONTAINER = "META-INF/container.xml"
ENCRYPTION = "META-INF/encryption.xml"
FONT_OBFUSCATION = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
READABLE = ("application/xhtml+xml", "text/html", "text/x-oeb1-document", "application/xml", "text/xml")
IMAGES = ("image/jpeg", "image/png")
DIVIDED_FILE = re.compile(r"(.+_split_)\d+\.\w+")  # names of the files into which Calibre divides a long file
FRAGMENT_LINK = re.compile(r"""(?i)href\s{0,9}=\s{0,9}["'][^"'<>]{0,500}#""")
PROSE_TYPES = ("index", "colophon", "errata")  # front matter that may be long, by its type in the guide
CONTENTS_DEPTH = 2  # levels of the contents whose entries start a chapter


@dataclass(frozen=True)
class ManifestItem:
    """A file of the book, as the manifest lists it.

    Attributes:
        path: Path of the file in the archive.
        fallback: Id of the file to use if a reader does not support this one, or "".
    """

    path: str
    media_type: str
    properties: frozenset[str]
    fallback: str


@dataclass(frozen=True)
class ContentsEntry:
    """An entry of the table of contents: the title of a chapter, and the place where the chapter starts."""

    path: str
    fragment: str
    title: str


@dataclass
class PackageDocument:
    """The facts that a package document (.opf) states about a book.

    Attributes:
        contents_id: Id of the NCX file.
        items: The files of the book, by id.
        spine: For each file in reading order, its id, and whether the file belongs to the main text.
        front: Limits for files that the guide calls front matter, by path. If a file has more characters of prose than
            its limit, the file is not front matter.
        readable: The results of ``readable_path`` so far, by id.
    """

    metadata: Mapping[str, list[str]] = field(default_factory=dict)
    language: str = ""
    cover_id: str = ""
    contents_id: str = ""
    items: dict[str, ManifestItem] = field(default_factory=dict)
    spine: list[tuple[str, bool]] = field(default_factory=list)
    front: dict[str, float] = field(default_factory=dict)
    readable: dict[str, str | None] = field(default_factory=dict)


def read_epub(archive: BookArchive, rules: Mapping[str, Omission]) -> Document:
    """Read a book, leaving out the text that ``rules`` omit. Raises UserError if it is damaged, protected or empty."""
    refuse_protected(archive)
    package = read_package(archive, package_path(archive))
    reader = SpineReader(archive, package, rules)
    for entry in contents(archive, package):
        reader.entries.setdefault(entry.path, []).append(entry)
    reader.find_notes()
    navigation = {item.path for item in package.items.values() if "nav" in item.properties}
    done, refused = set[str](), list[UserError]()
    for identifier, in_main_text in package.spine:
        path = readable_path(package, identifier) if identifier in package.items else None
        if path in done or (path is None and identifier in package.items):
            continue
        done.add(path or "")
        if path is None:
            refused.append(
                UserError(f"it is damaged, because its manifest lacks {identifier[:100]!r}: download it again")
            )
            reader.left_out.append(LeftOutPart("unreadable", identifier[:100], "its manifest lacks it"))
        elif "footnotes" in rules and not in_main_text:
            reader.leave_out(path, "auxiliary")
        elif (
            ("navigation" in rules and path in navigation) or ("front-matter" in rules and path in package.front)
        ) and reader.leave_out(path, "front-matter", package.front.get(path, LONGEST_NOTICE)):
            continue
        else:
            try:
                reader.read_file(path)
            except UnreadablePartError as error:
                refused.append(error)
                titles = ", ".join(repr(entry.title) for entry in reader.entries.get(path, []) if entry.title)
                reader.left_out.append(LeftOutPart("unreadable", f"{path} ({titles})" if titles else path, str(error)))
    if refused and not reader.chapters:
        raise refused[0]
    reader.omitted["unreadable"] += len(refused)
    title, authors = package.metadata["title"], package.metadata["creator"]
    about = {name: package.metadata[name][0] for name in ABOUT if package.metadata.get(name)}
    document = Document(
        reader.chapters,
        "".join(title[:1]),
        " & ".join(authors),
        package.language,
        cover_of(archive, package),
        counted_omissions(reader.omitted),
        reader.omitted[TABLES],
        reader.left_out,
        about,
    )
    titled = {"front-matter", "title-page"} <= rules.keys()
    return without_title_page(document, document.title, document.author) if titled else document


@dataclass
class SpineReader:
    """A reader that collects the chapters of a book. ``read_file`` reads the next text file of the spine.

    If the table of contents does not list a file, the file becomes a separate chapter, because the file before it may
    be left out.
    """

    archive: BookArchive
    package: PackageDocument
    rules: Mapping[str, Omission]
    entries: dict[str, list[ContentsEntry]] = field(default_factory=dict)
    chapters: list[BookChapter] = field(default_factory=list)
    omitted: Counter[str] = field(default_factory=Counter)
    left_out: list[LeftOutPart] = field(default_factory=list)
    notes: dict[str, set[int]] = field(default_factory=dict)  # the notes without markup in each file
    _before: str = ""  # path of the last file with chapters, or "" after front matter

    @cached_property
    def _titles(self) -> frozenset[str]:
        """The titles in the contents, in lower case."""
        return frozenset(entry.title.casefold() for entries in self.entries.values() for entry in entries)

    def find_notes(self) -> None:
        """Find the footnotes without markup, which a file links to and which link back."""
        readers: dict[str, BlockReader] = {}
        for identifier, in_main_text in self.package.spine:
            path = readable_path(self.package, identifier)
            if path and in_main_text and path not in readers and "footnotes" in self.rules:
                with suppress(UserError):  # ``read_file`` reports a damaged file
                    if FRAGMENT_LINK.search(markup := self.archive.text(path, "a part of the text")):
                        readers[path] = BlockReader(self.rules)
                        readers[path].read(markup)
        self.notes = linked_notes(readers)

    def read_file(self, path: str) -> None:
        """Add the text of a file to the chapters. Record front matter in ``left_out`` instead."""
        starts = {entry.fragment: entry.title for entry in reversed(self.entries.get(path, []))}
        reader, items = self._items(path, self.rules, starts)
        self.omitted += reader.omitted
        self.left_out += [part if part.title or part.words else replace(part, title=path) for part in reader.left_out]
        parts = [part for part in divided(items, starts) if part.has_text]
        for part in parts:
            for number, chapter in enumerate(self._spoken(part)):
                if part is parts[0] and not (number or part.title or chapter.title) and self._continues(path):
                    self.chapters[-1].blocks += chapter.blocks
                else:
                    self.chapters.append(
                        BookChapter(
                            chapter.title or (first_words(chapter.blocks) if self.entries else ""), chapter.blocks
                        )
                    )
                self._before = path

    def _spoken(self, part: BookChapter) -> Iterator[BookChapter]:
        """Yield a part of a file as chapters.

        If the part begins with front matter, record it in ``left_out`` instead.
        """
        first = part.blocks[0]
        opens = first.kind == HEADING
        title = part.title or (first.text.replace("\n", " ")[:MAX_TITLE] if opens else "")
        front = 0
        if "front-matter" in self.rules and (is_front_title(title) or not title):
            front = front_length(title, part.blocks, self._titles)
            title = title if front else ""
        if not front:
            yield BookChapter(title, part.blocks)
            return
        self.omitted["front-matter"] += 1
        self.left_out.append(left_out_part("front-matter", part.blocks[opens:front], title))
        self._before = ""
        for below in split_at_headings(part.blocks[front:]):
            yield from self._spoken(BookChapter("", below.blocks))

    def leave_out(self, path: str, kind: str, longest: float = math.inf) -> bool:
        """Record that a file is left out, unless it has more than ``longest`` characters of prose.

        Return whether it is left out.
        """
        try:
            _, items = self._items(path, {}, {})
        except UserError:
            items = []  # a file that is left out may be damaged
        blocks = [item for item in items if isinstance(item, TextBlock)]
        if prose_length(blocks) > longest:
            return False
        part = left_out_part(kind, blocks, path)
        if part.length:
            self.omitted[kind] += 1
            self.left_out.append(part)
        return True

    def _items(
        self, path: str, rules: Mapping[str, Omission], anchors: Collection[str]
    ) -> tuple[BlockReader, list[TextBlock | AnchorMark]]:
        reader = BlockReader(
            rules, {fragment for fragment in anchors if fragment}, self.package.language, self.notes.get(path, ())
        )
        try:
            return reader, reader.read(self.archive.text(path, "a part of the text"))
        except UnreadablePartError:
            raise
        except UserError as error:
            raise UserError(str(error) if path in str(error) else f"{path!r} in it: {error}") from error

    def _continues(self, path: str) -> bool:
        """Return whether a file without a title continues the chapter before it.

        The file continues the chapter if a program divided one large file into both. In a book without a table of
        contents, every file without a title continues a chapter that has a title.
        """
        names = [piece[1] for name in (self._before, path) if (piece := DIVIDED_FILE.fullmatch(name))]
        one_file = len(names) == 2 and names[0] == names[1]
        return bool(self._before) and (one_file or (not self.entries and bool(self.chapters[-1].title)))


def divided(items: Sequence[TextBlock | AnchorMark], starts: Mapping[str, str]) -> list[BookChapter]:
    """Divide a file into parts.

    A part starts where an entry in the table of contents points, or at the headings directly above.
    """
    parts = [BookChapter(starts.get("", ""))]
    for item in items:
        if not isinstance(item, AnchorMark):
            parts[-1].blocks.append(item)
        elif any(block.text and (parts[-1].title or block.kind != HEADING) for block in parts[-1].blocks):
            parts.append(BookChapter(starts[item.id]))
        else:
            parts[-1].title = parts[-1].title or starts[item.id]
    return parts


def refuse_protected(archive: BookArchive) -> None:
    """Raise UserError if a book has digital rights management. Obfuscated fonts are allowed."""
    if ENCRYPTION not in archive.names:
        return
    for token in tokenize(archive.text(ENCRYPTION, "the list of encrypted files")):
        if (
            token.value == "encryptionmethod"
            and token.kind == "start"
            and token.attributes.get("algorithm") not in FONT_OBFUSCATION
        ):
            raise UserError("it is protected (DRM): ane reads only books without protection")


def package_path(archive: BookArchive) -> str:
    """Return the path of the package document. Raises UserError if the container file does not name it."""
    for token in tokenize(archive.text(CONTAINER, "which names its package document")):
        if token.kind == "start" and token.value == "rootfile" and token.attributes.get("full-path"):
            return resolve("", token.attributes["full-path"])[0]
    raise UserError(f"{CONTAINER!r} in it names no package document: it is incomplete, download it again")


def read_package(archive: BookArchive, path: str) -> PackageDocument:
    """Read the package document. Raises UserError if its spine lists no text."""
    markup = archive.text(path, "its package document")
    metadata = read_metadata(markup)
    package = PackageDocument(metadata, "".join(metadata["language"][:1])[:35])
    for token in tokenize(markup):
        attributes = token.attributes
        if token.kind != "start":
            continue
        if token.value == "item" and attributes.get("id") and attributes.get("href"):
            package.items[attributes["id"]] = ManifestItem(
                resolve(path, attributes["href"])[0],
                attributes.get("media-type", "").lower(),
                frozenset(attributes.get("properties", "").split()),
                attributes.get("fallback", ""),
            )
        elif token.value == "spine":
            package.contents_id = attributes.get("toc", "")
        elif token.value == "itemref":
            package.spine.append((attributes.get("idref", ""), attributes.get("linear", "yes").lower() != "no"))
        elif token.value == "meta" and attributes.get("name") == "cover":
            package.cover_id = attributes.get("content", "")
        elif token.value == "reference" and attributes.get("type", "").lower() in OMISSIONS["front-matter"].types:
            whole = attributes["type"].lower() in PROSE_TYPES
            package.front[resolve(path, attributes.get("href", ""))[0]] = math.inf if whole else LONGEST_NOTICE
    if not package.spine:
        raise UserError(f"{path!r} in it lists no text, because its spine is empty: download it again")
    return package


def readable_path(package: PackageDocument, identifier: str) -> str | None:
    """Return the path of the text for an entry of the reading order (spine), or ``None`` for an image or other data."""
    seen: list[str] = []
    while identifier in package.items and identifier not in package.readable:
        item = package.items[identifier]
        package.readable[identifier] = item.path if item.media_type in READABLE else None
        seen.append(identifier)
        identifier = item.fallback if item.media_type not in READABLE else identifier
    path = package.readable.get(identifier)
    package.readable.update(dict.fromkeys(seen, path))  # so that each chain of fallbacks is followed once
    return path


def contents(archive: BookArchive, package: PackageDocument) -> list[ContentsEntry]:
    """Read the table of contents down to ``CONTENTS_DEPTH``: the navigation document, or the NCX if there is none."""
    for item in package.items.values():
        if "nav" in item.properties and item.path in archive.names:
            return _entries(archive, item.path, "ol", "a", "href")
    ncx = package.items.get(package.contents_id)
    if ncx is not None and ncx.path in archive.names:
        return _entries(archive, ncx.path, "navpoint", "content", "src")
    return []


def _entries(archive: BookArchive, path: str, level: str, link: str, target: str) -> list[ContentsEntry]:
    """Read the entries in a navigation document (``<ol> <a href>``) or in an NCX (``<navPoint> <content src/>``)."""
    entries: list[ContentsEntry] = []
    depth, title, href = 0, "", ""
    active = link != "a"  # Whether the token belongs to the contents. In an NCX, every token does.
    for token in tokenize(archive.text(path, "its table of contents")):
        if token.value in ("nav", "pagelist", "navlist") and token.kind != "text":
            toc = token.value == "nav" and "toc" in token.attributes.get("epub:type", "toc").split()
            active = toc if token.kind == "start" else link != "a"
        elif token.kind == "text":
            title = (title + token.value[:MAX_TITLE])[: 2 * MAX_TITLE]
        elif token.value == level:
            depth += 1 if token.kind == "start" else -1
            title = ""
        elif token.value == link:
            if token.kind == "start":
                href = token.attributes.get(target, "")
                title = "" if link == "a" else title
            elif active and 0 < depth <= CONTENTS_DEPTH and href:
                entries.append(ContentsEntry(*resolve(path, href), " ".join(title.split())[:MAX_TITLE]))
    return entries


def cover_of(archive: BookArchive, package: PackageDocument) -> CoverImage | None:
    """Return the cover if it is a readable JPEG or PNG. Otherwise, return ``None``, because a book needs no cover."""
    items = [item for item in package.items.values() if "cover-image" in item.properties]
    named = package.items.get(package.cover_id)
    for item in [*items, *([named] if named else [])]:
        if item.media_type in IMAGES and item.path in archive.names:
            try:
                return CoverImage(archive.read(item.path, "its cover"), item.media_type)
            except UserError:
                return None
    return None
