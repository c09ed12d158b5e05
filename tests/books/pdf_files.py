"""PDF files for tests: lines of text at given places."""

from collections.abc import Sequence
from pathlib import Path

Line = tuple[float, float, float, str]      # left, distance from the lower edge, size of the letters, text


def write_pdf(path: Path, pages: Sequence[Sequence[Line]], title: str = "The Turtle", more: str = "") -> Path:
    """A PDF of A5 pages. ``more``: entries of its trailer."""
    kids = " ".join(f"{5 + 2 * number} 0 R" for number in range(len(pages)))
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Count {len(pages)} /Kids [{kids}] >>",
               "<< /Type /Font /Subtype /Type1 /BaseFont /Times-Roman /Encoding /WinAnsiEncoding >>",
               f"<< /Title ({title}) /Author (A. Writer) >>"]
    for number, lines in enumerate(pages):
        content = "".join(f"BT /F {size} Tf {left} {bottom} Td ({escaped(text)}) Tj ET\n"
                          for left, bottom, size, text in lines)
        objects += [f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 420 595] /Contents {6 + 2 * number} 0 R "
                    "/Resources << /Font << /F 3 0 R >> >> >>",
                    f"<< /Length {len(content)} >>\nstream\n{content}endstream"]
    data, offsets = "%PDF-1.7\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    data += (f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
             f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info 4 0 R {more}>>\nstartxref\n{len(data)}\n%%EOF\n")
    path.write_bytes(data.encode("cp1252"))
    return path


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
