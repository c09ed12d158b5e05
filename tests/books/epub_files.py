"""EPUB files for tests, made of their parts."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

CONTAINER = '<?xml version="1.0"?><container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
XHTML = ('<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml" '
         'xmlns:epub="http://www.idpf.org/2007/ops"><head><title>never spoken</title></head><body>{}</body></html>')


def package(documents: list[str], more: str = "", spine: str | None = None, guide: str = "") -> str:
    items = "".join(f'<item id="d{n}" href="{name}" media-type="application/xhtml+xml"/>'
                    for n, name in enumerate(documents))
    order = "".join(f'<itemref idref="d{n}"/>' for n in range(len(documents))) if spine is None else spine
    return ('<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">'
            '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>The Turtle</dc:title>'
            '<dc:creator>A. Writer</dc:creator><dc:language>en</dc:language>'
            '<meta name="cover" content="cover"/></metadata>'
            f'<manifest>{items}{more}</manifest><spine toc="ncx">{order}</spine>{guide}</package>')


def write_archive(path: Path, files: Mapping[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_book(path: Path, documents: Mapping[str, str], more_items: str = "", files: Mapping[str, str | bytes] = {},
               **options: str) -> Path:
    """A book of documents, name → the inside of its body (or a whole file, if it begins with "<?" or "<!")."""
    whole = {f"OEBPS/{name}": body if body.startswith(("<?", "<!")) else XHTML.format(body)
             for name, body in documents.items()}
    return write_archive(path, {"mimetype": "application/epub+zip", "META-INF/container.xml": CONTAINER,
                                "OEBPS/book.opf": package(list(documents), more_items, **options), **whole, **files})
