"""Make EPUB and PDF files for tests."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

CONTAINER = '<?xml version="1.0"?><container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
XHTML = (
    '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml" '
    'xmlns:epub="http://www.idpf.org/2007/ops"><head><title>never spoken</title></head><body>{}</body></html>'
)


def package(documents: list[str], more: str = "", spine: str | None = None, guide: str = "", metadata: str = "") -> str:
    items = "".join(
        f'<item id="d{n}" href="{name}" media-type="application/xhtml+xml"/>' for n, name in enumerate(documents)
    )
    order = "".join(f'<itemref idref="d{n}"/>' for n in range(len(documents))) if spine is None else spine
    return (
        '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">'
        '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>The Turtle</dc:title>'
        "<dc:creator>A. Writer</dc:creator><dc:language>en</dc:language>"
        f'<meta name="cover" content="cover"/>{metadata}</metadata>'
        f'<manifest>{items}{more}</manifest><spine toc="ncx">{order}</spine>{guide}</package>'
    )


def write_archive(path: Path, files: Mapping[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_book(
    path: Path,
    documents: Mapping[str, str],
    more_items: str = "",
    files: Mapping[str, str | bytes] = {},
    **options: str,
) -> Path:
    """A book of documents, name → the inside of its body (or a whole file, if it begins with "<?" or "<!")."""
    whole = {
        f"OEBPS/{name}": body if body.startswith(("<?", "<!")) else XHTML.format(body)
        for name, body in documents.items()
    }
    return write_archive(
        path,
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": CONTAINER,
            "OEBPS/book.opf": package(list(documents), more_items, **options),
            **whole,
            **files,
        },
    )


def write_docx(path, body: str, **more: str):
    parts = {
        "[Content_Types].xml": "<Types/>",
        "word/document.xml": f"<w:document><w:body>{body}</w:body>",
        "_rels/.rels": f'<Relationships><Relationship Type="{OFFICE}" Target="word/document.xml"/>',
    }
    return write_archive(
        path, parts | {name if "/" in name else f"word/{name}.xml": content for name, content in more.items()}
    )


def paragraph(inside: str, style: str = "") -> str:
    return f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr>{inside}</w:p>'


def run(text: str) -> str:
    return f"<w:r><w:t>{text}</w:t></w:r>"


Line = tuple[float, float, float, str]  # left, distance from the lower edge, size of letters (all in points), text


def write_pdf(path: Path, pages: Sequence[Sequence[Line]], title: str = "The Turtle", more: str = "") -> Path:
    """A PDF of A5 pages. ``more``: entries of its trailer."""
    kids = " ".join(f"{5 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {len(pages)} /Kids [{kids}] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Times-Roman /Encoding /WinAnsiEncoding >>",
        f"<< /Title ({title}) /Author (A. Writer) >>",
    ]
    for number, lines in enumerate(pages):
        content = "".join(
            f"BT /F {size} Tf {left} {bottom} Td ({escaped(text)}) Tj ET\n" for left, bottom, size, text in lines
        )
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 420 595] /Contents {6 + 2 * number} 0 R "
            "/Resources << /Font << /F 3 0 R >> >> >>",
            f"<< /Length {len(content)} >>\nstream\n{content}endstream",
        ]
    data, offsets = "%PDF-1.7\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    data += (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
        f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info 4 0 R {more}>>\nstartxref\n{len(data)}\n%%EOF\n"
    )
    path.write_bytes(data.encode("cp1252"))
    return path


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
