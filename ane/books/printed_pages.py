"""Remove page numbers and running heads from plain text that was made from printed pages."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

REPEATED = 3  # minimum number of equal running heads, or of page numbers that count up
LONGEST_HEAD = 60  # maximum characters of a running head
NUMBER = re.compile(r"\d{1,4}")
OUTER_NUMBER = re.compile(r"^\d{1,4}\s+|\s+\d{1,4}$")
SENTENCE_END = re.compile(r"[.!?:…—][\"'”’)\]]*$")


def without_printed_pages(text: str, omitted: Counter[str]) -> str:
    """Remove page numbers and running heads from a text, and join the sentences that a page number or head interrupts.

    A line that is only a number may be a chapter's title. The function therefore removes page numbers only if at least
    one in five interrupts a sentence. The function removes running heads only if at least one interrupts a sentence.
    """
    lines = [line.strip() for line in text.split("\n")]
    filled = [number for number, line in enumerate(lines) if line]
    keys = [OUTER_NUMBER.sub("", lines[number]) if len(lines[number]) <= LONGEST_HEAD else "" for number in filled]
    counts = Counter(keys)
    candidates = [
        NUMBER.fullmatch(lines[number]) is not None
        or (counts[key] >= REPEATED and any(map(str.isalpha, key)) and not SENTENCE_END.search(key))
        for number, key in zip(filled, keys, strict=True)
    ]
    runs = candidate_runs(candidates)
    interrupting = {run for run in runs if interrupts(lines, filled, *run)}
    heads = {keys[at] for run in interrupting for at in range(*run)} - {""}
    removed = set[int]()
    numbers = [at for run in runs for at in range(*run) if NUMBER.fullmatch(lines[filled[at]])]
    counting = are_page_numbers([int(lines[filled[at]]) for at in numbers]) and 5 * sum(
        any(NUMBER.fullmatch(lines[filled[at]]) for at in range(*run)) for run in interrupting
    ) >= len(numbers)
    for run in runs:
        for at in range(*run):
            number = NUMBER.fullmatch(lines[filled[at]]) is not None
            if number and counting:
                omitted["page-numbers"] += 1
            elif not number and keys[at] in heads:
                omitted["running-heads"] += 1
            else:
                continue
            removed.add(at)
    if not removed:
        return text
    return "\n".join(kept_lines(text.split("\n"), filled, removed, interrupting))


def candidate_runs(candidates: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the start and end index of every run of successive ``True`` values."""
    runs: list[tuple[int, int]] = []
    for at, candidate in enumerate(candidates):
        if candidate and runs and runs[-1][1] == at:
            runs[-1] = runs[-1][0], at + 1
        elif candidate:
            runs.append((at, at + 1))
    return runs


def interrupts(lines: Sequence[str], filled: Sequence[int], start: int, end: int) -> bool:
    """Return whether a sentence starts above the lines from ``start`` to ``end`` and continues below them."""
    if start == 0 or end == len(filled):
        return False
    above, below = lines[filled[start - 1]], lines[filled[end]]
    return not SENTENCE_END.search(above) and below[:1].islower()


def are_page_numbers(numbers: Sequence[int]) -> bool:
    """Return whether most of the numbers are one or two larger than the number before."""
    steps = sum(0 < after - before <= 2 for before, after in pairwise(numbers))
    return len(numbers) >= REPEATED and 3 * steps >= 2 * (len(numbers) - 1)


def kept_lines(
    lines: Sequence[str], filled: Sequence[int], removed: set[int], interrupting: set[tuple[int, int]]
) -> list[str]:
    """Return the lines that are not removed.

    If removed lines interrupt a sentence, remove empty lines around them too.
    """
    dropped = {filled[at] for at in removed}
    for start, end in interrupting:
        if removed.issuperset(range(start, end)):
            dropped.update(range(filled[start - 1] + 1, filled[end]))
    return [line for number, line in enumerate(lines) if number not in dropped]
