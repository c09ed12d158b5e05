"""Time of the English normaliser and of the splitter as the text grows: it must grow as the text does.

Times are of this process alone (CPU time), the text is that of ``benchmarks.long_texts`` with numbers, dates, amounts
and abbreviations in it. ``python -m tests.text.fuzz`` looks for texts that take more time.
"""

import argparse
import time
import timeit
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from typing import Any

from ane.bench.records import BenchRow, Spread
from ane.commands.arguments import counts
from ane.text import normalise_english, split
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult
from benchmarks.long_texts import CHARACTERS_PER_MINUTE, drawn_text

STEPS: dict[str, Callable[[str], object]] = {"normaliser": normalise_english, "splitter": split}
EXTRAS = ("On 3 May 2024, Dr. Smith paid $1,250.75 for 3.5 kg at 10:30 a.m.", "\"It is 21°C in the U.S.,\" he said.",
          "See chapter XIV (p. 12).")


def mixed_text(characters: int) -> str:
    """Paragraphs of drawn sentences, each with a sentence of ``EXTRAS``."""
    paragraphs = drawn_text(min(60, characters / CHARACTERS_PER_MINUTE + 1)).split("\n\n")
    mixed = [f"{paragraph} {extra}" for paragraph, extra in zip(paragraphs, cycle(EXTRAS), strict=False)]
    return "\n\n".join(islice(cycle(mixed), characters // min(map(len, mixed)) + 1))[:characters]


def measure(options: argparse.Namespace) -> BenchmarkResult:
    rows = []
    for characters in options.characters:
        text = mixed_text(characters)
        for name, step in STEPS.items():
            step(text[:1000])       # imports what it needs
            spread = Spread.of(timeit.repeat(partial(step, text), timer=time.process_time, number=1,
                                             repeat=options.rounds))
            rows.append(BenchRow(name, "text", "s", {"characters": characters}, spread,
                                 {"us_per_character": spread.median / characters * 1e6}))
    return BenchmarkResult(rows, {"rounds": options.rounds}, (),
                           [BenchmarkPlot("Time of reading text", x="characters")])


def add_options(add: Callable[..., Any]) -> None:
    add("--characters", type=counts, default=[62500, 125000, 250000, 500000, 1000000], metavar="N,…",
        help="of the text (default: 62500,125000,250000,500000,1000000)")


BENCHMARK = Benchmark(measure, "time of the normaliser and the splitter as the text grows", add_options,
                      "--characters 1000,2000 --rounds 1", uses=("rounds",))
