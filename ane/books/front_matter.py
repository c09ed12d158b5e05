"""Find front matter that no markup identifies: text under titles such as "Contents", and copyright pages."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ane.books.document import BookChapter, Document
from ane.text.blocks import HEADING, ITEM, LeftOutPart, TextBlock, left_out_part
from ane.text.omissions import Omission, is_front_title

LONGEST_ENTRY = 90  # maximum characters of a line in a table of contents
SENTENCE = re.compile(r"[.!?…,;:—–-][\"'”’)\]]*$")
NUMBERED = re.compile(r"(?i)(?:chapter|part|book|volume|canto|act|scene|letter|section|[ivxlc]{1,8}\b|\d{1,3}\b)\W")
PAGE_AT_END = re.compile(r"[\s.·…_]\s{0,9}(?:\d{1,4}|[ivxlc]{1,7})$")
# words that copyright pages contain
LEGAL = re.compile(
    r"(?i)©|\(c\)\s?\d{4}|\bcopyright|all rights reserved|\bISBN\b|\bpublish(?:ed|ers?|ing)\b|\bprint(?:ed|ing)\b|"
    r"library of congress|catalogu?ing|\bedition\b|no part of this|\breproduc|\bpermission|\btrademark|"
    r"work of fiction|any resemblance|\b(?:cover|jacket|book) (?:design|art|photo|illustration)|\btypeset|\bwww\."
)
# text that makes a page without a title a copyright page
RIGHTS = re.compile(
    r"(?i)©\s?(?:\d{4}|by\b|[A-Z])|copyright\s+(?:©|\(c\)|\d{4}|by\s)|^all rights reserved|"
    r"\bISBN(?:-1[03])?:?\s?[\dX–-]{10,}"
)
LONGEST_RIGHTS = 5000  # maximum characters of a copyright page
LONGEST_NOTICE = 1500  # maximum characters of prose on a page with a title such as "Copyright"
NEAR_BEGINNING = 60  # number of blocks at the start of a text that may be about copyright
LONGEST_TITLE_PAGE = 8  # maximum blocks of a title page
FIRST_CHAPTERS = 3  # number of chapters at the start of a book that may begin with the title page
BYLINE = re.compile(r"(?i:written by|by)(?: [A-Z][\w.’'-]*){1,5}")
# lines that belong to a title page, apart from title, authors, publisher and series
IMPRINT = re.compile(
    r"(?i)\b(?:press|publish(?:ers?|ing)|edition|ltd|inc|verlag)\b|(?:&|\band) (?:sons?|co|company|brothers)\b|"
    r"\b(?:books|a (?:novel|memoir|romance|thriller|mystery))\W*$|^\W*\d{4}\W*$|©"
)
PLACES = re.compile(r"(?:[A-Z][\w.’'-]*|and|[·•|/&,–—-])(?:[ ,]+(?:[A-Z][\w.’'-]*|and|of|de|[·•|/&–—-]))*")  # cities
# headings of pages that only list titles, such as a table of contents
OF_LISTS = re.compile(r"(?i)(?:table of )?contents|list of .*|also by.*|.*books by.*|by the same author")
# titles above front matter that is prose, which ends where its chapter ends
OF_PROSE = re.compile(r"(?i)index|colophon|transcriber.*|the full project gutenberg.*")


def without_front_matter(
    chapters: Sequence[BookChapter], rules: Mapping[str, Omission], omitted: Counter[str], left_out: list[LeftOutPart]
) -> list[BookChapter]:
    """Remove front matter from chapters, such as a copyright page, if a rule omits it.

    A table of contents that consists of headings is removed too. If the text below the heading "Contents" is not a
    list, such as a prologue without a heading, it becomes a separate chapter. If no chapter would be left, return all
    chapters.
    """
    if "front-matter" not in rules:
        return list(chapters)
    titles = {
        part.strip()
        for chapter in chapters
        for title in [chapter.title.casefold()]
        for part in (title, re.split(r"[.:—–]", title, maxsplit=1)[-1])
    }
    last = {chapter.title: number for number, chapter in enumerate(chapters)}
    body: list[BookChapter] = []
    front: list[BookChapter] = []
    for number, chapter in enumerate(chapters):
        if is_front_title(chapter.title):
            end = front_blocks(chapter, titles)
            front.append(BookChapter(chapter.title, chapter.blocks[:end]))
            rest = chapter.blocks[end:]
            if any(block.text for block in rest):
                body.append(BookChapter(rest[0].text.replace("\n", " ") if rest[0].kind == HEADING else "", rest))
        elif last[chapter.title] > number and all(block.kind == HEADING for block in chapter.blocks):
            front.append(chapter)  # a heading without text, whose title is repeated below: an entry of the contents
        else:
            body.append(chapter)
    if not body:
        return list(chapters)
    named = len(left_out)
    body = without_rights(body, left_out) or body
    omitted["front-matter"] += len(left_out) - named
    omitted["front-matter"] += len(front)
    left_out += [left_out_part("front-matter", chapter.blocks[1:], chapter.title) for chapter in front]
    return body


def without_title_page(document: Document, title: str, author: str, spoken: bool = False) -> Document:
    """Remove the title page at the start of a document. A title page has the title and an author.

    Args:
        title: Title of the book.
        author: Authors of the book. "" means that only a line such as "by Ann Writer" names an author.
        spoken: Whether credits speak the title, so that a title without an author is removed too.
    """
    about = [document.about.get("publisher", ""), document.about.get("series", "").partition(" #")[0]]
    for number, chapter in enumerate(document.chapters[:FIRST_CHAPTERS]):
        if length := title_page_length(chapter.blocks, title, author, spoken, about):
            page, rest = chapter.blocks[:length], chapter.blocks[length:]
            heading = rest[0].text.replace("\n", " ") if rest and rest[0].kind == HEADING else chapter.title
            kept = [BookChapter(heading, rest)] if any(block.text for block in rest) else []
            chapters = [*document.chapters[:number], *kept, *document.chapters[number + 1 :]]
            if not chapters:
                break
            omitted = Counter(document.omitted) + Counter({"front-matter": 1})
            left_out = [*document.left_out, left_out_part("front-matter", page)]
            return replace(document, chapters=chapters, omitted=dict(omitted), left_out=left_out)
        if any(block.kind != HEADING and not is_entry(block.text) for block in chapter.blocks):
            break  # after prose, a chapter that has the book's title is the title story of a collection
    return document


def title_page_length(
    blocks: Sequence[TextBlock], title: str, author: str, spoken: bool = False, about: Sequence[str] = ()
) -> int:
    """Return how many blocks at the start of a chapter are a title page. For ``spoken``, see ``without_title_page``.

    Args:
        about: The publisher and the series of the book. "" stands for an unknown one.
    """
    titles = {plain_line(part) for part in (title, *re.split("[:—–]", title))} - {""}
    authors = {plain_line(part) for part in (author, *re.split("[,;&]| and ", author))} - {""}
    known = [plain for plain in map(plain_line, about) if plain]

    def is_imprint(block: TextBlock) -> bool:
        lines = block.text.split("\n")
        return is_entry(lines[0]) and any(
            IMPRINT.search(line[:LONGEST_ENTRY])
            or any(f" {name} " in f" {plain_line(line[:LONGEST_ENTRY])} " for name in known)
            for line in lines
        )

    end, found = 0, set[str]()
    for number, block in enumerate(blocks[:LONGEST_TITLE_PAGE], 1):
        kinds = [
            "title" if plain_line(line) in titles else "author"
            for line in block.text.split("\n")
            if plain_line(line) in titles | authors or BYLINE.fullmatch(line)
        ]
        if kinds:
            end, found = number, {*found, *kinds}
        elif not is_imprint(block) and (not is_entry(block.text) or (block.kind == HEADING and found)):
            break
    if "title" not in found or not (spoken or "author" in found):
        return 0
    tail = next((n for n in range(end, len(blocks)) if blocks[n].kind == HEADING), len(blocks))
    printed = False  # a city may follow only a line about the publisher, the series or the like
    for number in range(end, min(tail, end + LONGEST_TITLE_PAGE)):
        if is_imprint(blocks[number]):
            end, printed = number + 1, True
        elif not PLACES.fullmatch(blocks[number].text[:LONGEST_ENTRY]):
            break
        elif printed:
            end = number + 1
    return end


def plain_line(line: str) -> str:
    """Return the words of a line in lower case, without "by" before a name."""
    return re.sub(r"^(?:written )?by ", "", " ".join(re.findall(r"\w+", line.casefold())))


def front_length(title: str, blocks: Sequence[TextBlock], titles: Collection[str]) -> int:
    """Return how many blocks at the start of an EPUB's part are front matter.

    Front matter ends at the next heading, or at prose that is too long for a notice. Only an index, a list of contents
    and a copyright page may continue over smaller headings.

    Args:
        title: Title of the part, from the contents or from its first heading. "" means that the part has no title.
        blocks: The blocks of the part, including its heading.
        titles: The titles of all chapters, in lower case.
    """
    titled = is_front_title(title)
    if not titled and (title or not is_rights_page(blocks[: next_heading(blocks, 0)])):
        return 0 if title or not is_rights_page(blocks) else len(blocks)
    title = title.strip(" .:")
    leading = next((number for number, block in enumerate(blocks) if block.kind != HEADING), len(blocks))
    top = next((number for number in range(leading) if is_front_title(blocks[number].text)), 0)
    start, end = top + (leading > 0), next_heading(blocks, top + 1)
    notice = start - 1 + front_blocks(BookChapter(title, [TextBlock(HEADING, title), *blocks[start:end]]), titles)
    if titled and prose_length(blocks[notice:end]) > LONGEST_NOTICE:
        return notice
    level = blocks[top].level if leading else 1
    last = {block.text.casefold(): number for number, block in enumerate(blocks) if block.kind == HEADING}
    listed = entry_titles(blocks[start:end])
    above: list[int] = []  # the last headings, while no text follows them
    while end < len(blocks):
        heading, section = blocks[end], blocks[end + 1 : next_heading(blocks, end + 1)]
        name = heading.text.casefold()
        again = not section and (last[name] > end or name in titles)
        if is_front_title(heading.text) or not (
            again or (heading.level > level and name not in listed and continues(title, section))
        ):
            break
        above = [] if section else [*above, end]
        listed |= entry_titles(section)
        end += 1 + len(section)
    while above and end < len(blocks) and blocks[above[-1]].level < blocks[end].level:
        end = above.pop()  # a title such as "Part One", above its first chapter
    return end


def prose_length(blocks: Sequence[TextBlock]) -> int:
    """Count the characters in blocks that are neither lists of titles nor about copyright."""
    return sum(len(block.text) for block in blocks if not (is_listing(block) or LEGAL.search(block.text)))


def next_heading(blocks: Sequence[TextBlock], start: int) -> int:
    """Return the index of the first heading at or after ``start``, or the number of blocks if there is none."""
    return next((number for number in range(start, len(blocks)) if blocks[number].kind == HEADING), len(blocks))


def entry_titles(blocks: Sequence[TextBlock]) -> set[str]:
    """Return the titles in a table of contents, in lower case and without page numbers."""
    return {
        PAGE_AT_END.sub("", line[-LONGEST_ENTRY:]).rstrip(" .·…_").casefold()
        for block in blocks
        for line in block.text.split("\n")
    }


def continues(title: str, section: Sequence[TextBlock]) -> bool:
    """Return whether ``section``, which follows a smaller heading, still belongs to the front matter ``title``."""
    if OF_PROSE.fullmatch(title):
        return True
    if OF_LISTS.match(title):
        return all(map(is_listing, section)) and (
            len(section) != 1 or section[0].kind == ITEM or PAGE_AT_END.search(section[0].text[-12:]) is not None
        )
    return is_rights_page(section)


def is_rights_page(blocks: Sequence[TextBlock]) -> bool:
    """Return whether blocks are a copyright page and nothing else."""
    texts = [block.text for block in blocks if block.text]
    return (
        sum(map(len, texts)) <= LONGEST_RIGHTS
        and any(map(RIGHTS.search, texts))
        and all(LEGAL.search(block.text) or is_listing(block) for block in blocks if block.text)
    )


def without_rights(chapters: Sequence[BookChapter], left_out: list[LeftOutPart]) -> list[BookChapter]:
    """Remove untitled paragraphs about copyright that are near the beginning. Record them in ``left_out``."""
    result: list[BookChapter] = []
    seen = 0
    for chapter in chapters:
        runs: list[list[TextBlock]] = []
        blocks: list[TextBlock] = []
        for block in chapter.blocks if seen < NEAR_BEGINNING else ():
            legal = block.kind != HEADING and LEGAL.search(block.text)
            runs += [[]] if legal and not (runs and blocks and blocks[-1] is runs[-1][-1]) else []
            blocks.append(block)
            if legal:
                runs[-1].append(block)
        rights = [run for run in runs if any(RIGHTS.search(block.text) for block in run)]
        left_out += [left_out_part("front-matter", run) for run in rights]
        removed = {id(block) for run in rights for block in run}
        seen += len(chapter.blocks)
        result.append(
            BookChapter(chapter.title, [block for block in chapter.blocks if id(block) not in removed])
            if removed
            else chapter
        )
    return [chapter for chapter in result if chapter.has_text]


def front_blocks(chapter: BookChapter, titles: Collection[str]) -> int:
    """Return how many blocks at the start of a chapter are front matter, including the title.

    Args:
        titles: The titles of all chapters, in lower case.
    """
    blocks, lists = chapter.blocks, OF_LISTS.match(chapter.title) is not None
    if OF_PROSE.fullmatch(chapter.title):
        return len(blocks)
    for number, block in enumerate(blocks[1:], 1):
        legal = LEGAL.search(block.text) is not None
        if block.kind == HEADING or not (is_listing(block) or legal) or (legal and lists):
            above = blocks[number - 1].text
            titled = (
                block.kind != HEADING
                and number > 1
                and blocks[number - 1].kind != ITEM
                and not (
                    above.casefold() in titles
                    or "\n" in above
                    or PAGE_AT_END.search(above[-12:])
                    or NUMBERED.match(above)
                    or LEGAL.search(above)
                )
            )
            return number - titled  # the block above the first prose is its title
    return len(blocks)


def is_listing(block: TextBlock) -> bool:
    """Return whether a block consists of titles, with or without page numbers, instead of sentences."""
    if block.kind == ITEM and len(block.text) <= LONGEST_ENTRY:
        return True
    return are_entries(block.text.split("\n"))


def are_entries(lines: Sequence[str]) -> bool:
    """Return whether all lines look like entries in a table of contents.

    Every line except the first may start with a small letter, because a long entry may continue on the next line.
    """
    return all(is_entry(line.strip()) for line in lines) and not lines[0].strip()[:1].islower()


def is_entry(line: str) -> bool:
    """Return whether a line looks like an entry in a table of contents."""
    if PAGE_AT_END.search(line[-12:]):
        return True
    return len(line) <= LONGEST_ENTRY and (NUMBERED.match(line) is not None or not SENTENCE.search(line))
