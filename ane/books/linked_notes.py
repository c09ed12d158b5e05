"""Find footnotes and endnotes without markup. A mark in the text links to the note, and the note links back."""

import re
from collections.abc import Iterator, Mapping

from ane.books.archive import resolve
from ane.system.errors import UserError
from ane.text.html_blocks import BlockReader, FragmentLink
from ane.text.omissions import NOTE_MARK

BACK = re.compile(r"(?i)[\W_]{1,9}|(?:go )?back|return")  # texts of links from a note to its mark, such as "↩"
BEFORE_BACK = re.compile(r"(?i)\W*(?:(?:foot|end)?note)?\W*")  # text before a note's number that links back


def linked_notes(readers: Mapping[str, BlockReader]) -> dict[str, set[int]]:
    """Return the numbers of the elements that are notes, by the path of their file.

    An element is a note if it begins with a link to the place of its mark, or has a link such as "↩" to this place. The
    mark follows other text. So an entry in a table of contents is not a mark, and an element with a heading is not a
    note.

    Args:
        readers: The readers that have read the files, by path.
    """
    backs = {
        (path, note, *target)
        for path, reader in readers.items()
        for link, target in _targets(path, reader, readers)
        if BACK.fullmatch(link.text) or (NOTE_MARK.fullmatch(link.text.rstrip(" .:")) and _begins(link))
        for note in link.inside
    }
    notes: dict[str, set[int]] = {path: set() for path in readers}
    for path, reader in readers.items():
        for link, (file, note) in _targets(path, reader, readers):
            mark = NOTE_MARK.fullmatch(link.text) and not _begins(link)
            if mark and (file, note, path, link.inside[0]) in backs and note not in readers[file].titled:
                notes[file].add(note)
    return notes


def _begins(link: FragmentLink) -> bool:
    return BEFORE_BACK.fullmatch(link.before) is not None


def _targets(
    path: str, reader: BlockReader, readers: Mapping[str, BlockReader]
) -> Iterator[tuple[FragmentLink, tuple[str, int]]]:
    """Yield the links of a file, each with the file and the number of the element to which it leads."""
    for link in reader.links:
        try:
            file, fragment = resolve(path, link.href)
        except UserError:  # a link to another website
            continue
        number = readers[file].targets.get(fragment) if file in readers else None
        if number and link.inside:
            yield link, (file, number)
