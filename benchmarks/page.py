"""report.html: tables and plots of results on one page that needs nothing beside it."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from ane.system.files import replacing

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums }
caption { text-align: left; font-weight: 600; padding-bottom: .3em }
th, td { padding: .2em .7em; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% }
.failed { color: #a00 }
"""


def write_page(path: Path, results: Sequence[Path], failed: Sequence[str], left_out: Mapping[str, str]) -> None:
    """Write the page of results, JSON files with their plots beside them; replaces a page of that name."""
    html = Element("html", lang="en")
    head, body = SubElement(html, "head"), SubElement(html, "body")
    SubElement(head, "meta", charset="utf-8")
    add(head, "title", "tortoise-ane: benchmarks")
    add(head, "style", STYLE)
    add(body, "h1", "tortoise-ane: benchmarks")
    for name in failed:
        add(body, "p", f"{name} failed", {"class": "failed"})
    for name, why in left_out.items():
        add(body, "p", f"{name} was left out: {why}")
    for result in results:
        add_result(body, result)
    with replacing(path) as staging:
        staging.write_bytes(b"<!DOCTYPE html>\n" + tostring(html, encoding="utf-8", method="html"))


def add_result(body: Element, path: Path) -> None:
    """A result's machine, settings, tables and plots."""
    document = json.loads(path.read_text(encoding="utf-8"))
    add(body, "h2", document["benchmark"])
    add(body, "p", described(document["machine"]))
    if document.get("settings"):
        add(body, "p", ", ".join(f"{name}: {value}" for name, value in document["settings"].items()
                                 if value not in (None, [])))
    for table in document.get("tables", []):
        add_table(body, table)
    for name in document.get("plots", []):
        picture = base64.b64encode(path.with_name(name).read_bytes()).decode()
        SubElement(body, "img", src=f"data:image/png;base64,{picture}", alt=name)


def described(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (f"{machine['chip']}, {machine['cores']} cores, {machine['memory_gb']} GB; {machine['system']}; Python "
            f"{machine['python']}, {versions}; commit {machine['commit']}; {machine['date']}; load "
            f"{machine['load_average']}")


def add_table(body: Element, table: Mapping[str, Any]) -> None:
    element = SubElement(body, "table")
    add(element, "caption", table["title"])
    for tag, rows in (("th", [table["columns"]]), ("td", table["rows"])):
        for row in rows:
            line = SubElement(element, "tr")
            for cell in row:
                add(line, tag, cell)


def add(parent: Element, tag: str, text: str, attributes: Mapping[str, str] | None = None) -> None:
    SubElement(parent, tag, dict(attributes or {})).text = text
