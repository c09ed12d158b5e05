"""Sorted tables in compressed text files, read in a few milliseconds: entries are searched, not parsed."""

import gzip
from functools import cache
from pathlib import Path

DATA = Path(__file__).parent / "data"


class SortedTable:
    """A gzip file of lines "KEY, tab, VALUE", sorted by the bytes of the keys. Values may have tabs."""

    def __init__(self, path: Path):
        self.lines = gzip.decompress(path.read_bytes())

    def get(self, key: str) -> str | None:
        wanted = key.encode()
        low, high = 0, len(self.lines)              # both at the beginning of a line
        while low < high:
            start = self.lines.rfind(b"\n", low, (low + high) // 2) + 1 or low
            tab, end = self.lines.index(b"\t", start), self.lines.index(b"\n", start)
            found = self.lines[start:tab]
            if found == wanted:
                return self.lines[tab + 1:end].decode()
            low, high = (end + 1, high) if found < wanted else (low, start)
        return None


@cache
def table(name: str) -> SortedTable:
    """The table in ``data``, kept once read."""
    return SortedTable(DATA / f"{name}.tsv.gz")
