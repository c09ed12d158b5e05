"""report.html: tables and plots of results in one self-contained page."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from ane.bench.records import BenchRow
from ane.bench.report import table_cells
from ane.system.files import replacing

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums }
th, td { padding: .2em .7em; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% }
.failed { color: #a00 }
"""


def write_page(path: Path, results: Sequence[Path], failed: Sequence[str], skipped: Mapping[str, str]) -> None:
    """Write the page of ``results``: JSON files with their plots beside them. Replaces an existing page."""
    html = Element("html", lang="en")
    head, body = SubElement(html, "head"), SubElement(html, "body")
    SubElement(head, "meta", charset="utf-8")
    add(head, "title", "tortoise-ane: benchmarks")
    add(head, "style", STYLE)
    add(body, "h1", "tortoise-ane: benchmarks")
    for name in failed:
        add(body, "p", f"{name} failed", {"class": "failed"})
    for name, why in skipped.items():
        add(body, "p", f"{name} was skipped: {why}")
    for result in results:
        add_result(body, result)
    with replacing(path) as staging:
        staging.write_bytes(b"<!DOCTYPE html>\n" + tostring(html, encoding="utf-8", method="html"))


def add_result(body: Element, path: Path) -> None:
    """A result's machine, settings, table, notes and plots."""
    document = json.loads(path.read_text(encoding="utf-8"))
    add(body, "h2", document["benchmark"])
    add(body, "p", machine_text(document["machine"]))
    if document.get("settings"):
        add(body, "p", ", ".join(f"{name}: {value}" for name, value in document["settings"].items()
                                 if value not in (None, [])))
    add_table(body, *table_cells([BenchRow.read(row) for row in document["rows"]]))
    for note in document["notes"]:
        add(body, "p", note)
    for name in document.get("plots", []):
        picture = base64.b64encode(path.with_name(name).read_bytes()).decode()
        SubElement(body, "img", src=f"data:image/png;base64,{picture}", alt=name)


def machine_text(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    memory = f"{machine['memory_bytes'] / 1e9:.1f} GB" if machine["memory_bytes"] else "unknown memory"
    return (f"{machine['chip']}, {machine['cores']} cores, {memory}; {machine['os']}; Python {machine['python']}, "
            f"{versions}; commit {machine['commit']}; {machine['date']}; load {machine['load_average']}")


def add_table(body: Element, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    element = SubElement(body, "table")
    for tag, lines in (("th", [headings]), ("td", rows)):
        for cells in lines:
            line = SubElement(element, "tr")
            for cell in cells:
                add(line, tag, cell)


def add(parent: Element, tag: str, text: str, attributes: Mapping[str, str] | None = None) -> None:
    SubElement(parent, tag, dict(attributes or {})).text = text
