"""Search with hypothesis for texts that slow the normaliser or the splitter. None may take 20 times as long as prose.

    python -m tools.campaigns texts [--characters 1000000] [-o FILE.json]

A drawn text is repeated to ``LENGTH`` characters, because work that grows faster than the text shows in long texts. The
time of a text is the CPU time of this process. A high time is measured twice, and the lower time counts. The exit
status is 1 if a text is too slow.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from ane.system.files import write_json
from ane.text import normalise_english, split
from benchmarks.memory import CHARACTERS_PER_MINUTE, drawn_text
from tests.text.test_english import FRAGMENTS

STEPS: dict[str, Callable[[str], object]] = {"normaliser": normalise_english, "splitter": split}
EXTRAS = (
    "On 3 May 2024, Dr. Smith paid $1,250.75 for 3.5 kg at 10:30 a.m.",
    '"It is 21°C in the U.S.," he said.',
    "See chapter XIV (p. 12).",
)
LENGTH = 4000  # number of characters to which a drawn text is repeated
MOST = 20  # maximum ratio of a text's time to the time of prose
RESULT = Path(__file__).parent / "results" / "texts.json"
PIECES = st.one_of(
    st.text(min_size=1, max_size=40),
    st.text("aA1.,'-\" \n:/$", min_size=1, max_size=12),
    st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=12).map("".join),
)


@dataclass
class SlowestTexts:
    """The slowest text for each step of the work. Its time is a multiple of the time for equally long prose."""

    prose: dict[str, float]
    ratios: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STEPS, 0.0))
    texts: dict[str, str] = field(default_factory=dict)
    characters: int = 0
    count: int = 0

    def try_piece(self, piece: str) -> float:
        """Repeat a text and measure it. Return the highest ratio of its time to prose's, over all steps."""
        text = (piece * (LENGTH // len(piece) + 1))[:LENGTH]
        self.characters, self.count = self.characters + len(text), self.count + 1
        highest = 0.0
        for name, step in STEPS.items():
            ratio = seconds(step, text) / self.prose[name]
            if ratio > max(MOST / 2, self.ratios[name]):  # another process may have disturbed it
                ratio = min(ratio, seconds(step, text) / self.prose[name])
            if ratio > self.ratios[name]:
                self.ratios[name], self.texts[name] = ratio, piece
            highest = max(highest, ratio)
        return highest


def mixed_text(characters: int) -> str:
    """Make paragraphs of drawn sentences, each with one sentence of ``EXTRAS``."""
    paragraphs = drawn_text(min(60, characters / CHARACTERS_PER_MINUTE + 1)).split("\n\n")
    mixed = [f"{paragraph} {extra}" for paragraph, extra in zip(paragraphs, cycle(EXTRAS), strict=False)]
    return "\n\n".join(islice(cycle(mixed), characters // min(map(len, mixed)) + 1))[:characters]


def seconds(step: Callable[[str], object], text: str) -> float:
    began = time.process_time()
    step(text)
    return time.process_time() - began


def fuzz(characters: int) -> dict[str, Any]:
    prose = mixed_text(LENGTH)
    split(prose)
    slowest = SlowestTexts({name: sorted(seconds(step, prose) for _ in range(15))[7] for name, step in STEPS.items()})

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=-(-characters // LENGTH),
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.target],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(PIECES)
    def look(piece: str) -> None:
        hypothesis.target(slowest.try_piece(piece))

    while slowest.characters < characters:
        look()
    return {
        "characters": slowest.characters,
        "texts": slowest.count,
        "length_of_a_text": LENGTH,
        "prose_us_per_character": {name: value / LENGTH * 1e6 for name, value in slowest.prose.items()},
        "slowest_relative_to_prose": slowest.ratios,
        "its_piece": slowest.texts,
        "allowed": MOST,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--characters", type=int, default=1_000_000)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    result = fuzz(options.characters)
    write_json(options.output, result)
    sys.stdout.write(
        f"{result['characters']} characters in {result['texts']} texts; the slowest relative to prose: "
        f"{result['slowest_relative_to_prose']}; {options.output}\n"
    )
    return 1 if max(result["slowest_relative_to_prose"].values()) > MOST else 0
