"""report.html: tables and plots of results in one self-contained page."""

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ane.bench.records import BenchRow
from ane.bench.report import table_cells
from ane.system.files import replacing

HEAD = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>tortoise-ane: benchmarks</title><style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums }
th, td { padding: .2em .7em; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% }
.failed { color: #a00 }
</style><h1>tortoise-ane: benchmarks</h1>
"""


def write_page(path: Path, results: Sequence[Path], failed: Sequence[str], skipped: Mapping[str, str]) -> None:
    """Write the page of ``results``: JSON files with their plots beside them. Replaces an existing page."""
    lines = [*(f'<p class="failed">{escape(name)} failed</p>' for name in failed),
             *(f"<p>{escape(f'{name} was skipped: {why}')}</p>" for name, why in skipped.items()),
             *map(result_html, results)]
    with replacing(path) as staging:
        staging.write_text(HEAD + "\n".join(lines), encoding="utf-8")


def result_html(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    settings = [f"{name}: {value}" for name, value in document["settings"].items() if value not in (None, [])]
    headings, rows = table_cells([BenchRow.read(row) for row in document["rows"]])
    table = "".join(f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>\n"
                    for tag, cells in (("th", headings), *(("td", row) for row in rows)))
    pictures = [f'<img src="data:image/png;base64,{base64.b64encode(path.with_name(name).read_bytes()).decode()}" '
                f'alt="{escape(name)}">' for name in document["plots"]]
    texts = [machine_text(document["machine"]), ", ".join(settings)]
    return "\n".join([f"<h2>{escape(document['benchmark'])}</h2>", *(f"<p>{escape(text)}</p>" for text in texts),
                      f"<table>{table}</table>", *(f"<p>{escape(note)}</p>" for note in document["notes"]), *pictures])


def machine_text(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    memory = f"{machine['memory_bytes'] / 1e9:.1f} GB" if machine["memory_bytes"] else "unknown memory"
    return (f"{machine['chip']}, {machine['cores']} cores, {memory}; {machine['os']}; Python {machine['python']}, "
            f"{versions}; commit {machine['commit']}; {machine['date']}; load {machine['load_average']}")
