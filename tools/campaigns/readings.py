"""Compare the English normaliser with NVIDIA's NeMo-text-processing, and with a file of readings.

    python3 -m venv /tmp/nemo && /tmp/nemo/bin/pip install nemo_text_processing
    python -m tools.campaigns readings --oracle /tmp/nemo/bin/python [--tsv FILE] [--count 20] [-o FILE]

``CLASSES`` has templates from which inputs of every class are drawn. Two readings count as equal if they differ only in
capitals, punctuation, hyphens, the word "and" and spaces between letters. ``readings.tsv`` has a verdict on every kind
of difference: ``ours`` is right, ``theirs`` is right, or it is a ``choice``. A line of FILE has a class, an input and
its reading, separated by tabs. The exit status is 1 if a difference has no verdict, or if less than 95 % of FILE's
lines are equal or a choice.
"""

import argparse
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ane.system.files import write_json
from ane.text import normalise_english
from tests.tables import rows

RESULT = Path(__file__).parent / "results" / "readings.json"
ENOUGH = 0.95
CLASSES = {  # class → template: # is a digit, ? a digit from 1 to 9, and braces contain alternatives
    "cardinal": "{?|?#|?##|?,###|-?#|?##,###|1?## apples}",
    "ordinal": "{1st|2nd|3rd|?4th|1?th|21st|?00th|1,000th}",
    "date": "{Jan. 1?|july 2?, 201?|1? {March|Aug} 20?#|2024-0?-1?|0?/1?/200?|the 1?th of May|19?0s|SEPT. ?}",
    "time": "{?:{1|4}5 pm|1{0|1|2}:3# a.m.|0?:00|1?:{1|5}0|? p.m.|2{0|2}:30}",
    "money": "{$?|$?.##|£?#|€?##|$?.? million|¥?##|-$?|$?##,###|₹?#|a $?# note}",
    "measure": "{?# kg|?.? km|?# MPH|?#°C|?# %|?## m²|? mg/kg|?# KB|?#cm}",
    "telephone": "{555-?##-####|(?##) 555-####|+1 ?##-555-####|1-800-555-####}",
    "electronic": "{bob##@example.com|example.org/page?|www.example.net|a.b@mail.co.uk}",
    "fraction": "{1/?|?/4|? 1/2|3/?|?/1#}",
    "range": "{?-1?|?#–9#|19?#-200?|{1|2|5}pm-{7|9}pm|$?-$1#}",
    "roman": "{Chapter {II|IV|IX|XIV|XXI}|Henry {II|VIII}|World War II|Louis XIV|PART {V|XL}}",
    "address": "{1?## Oak St|?## Elm Ave|?# N {Main|Pine} Rd|Austin, TX 7####|12 S 1st St}",
    "serial": "{B?A?C|t-?#|MIG-2?|C2?|F-1?|x?##}",
}
ORACLE = """
import json, sys
from nemo_text_processing.text_normalization.normalize import Normalizer
normaliser = Normalizer(input_case="cased", lang="en")
print("READINGS" + json.dumps([normaliser.normalize(text, punct_post_process=True) for text in json.load(sys.stdin)]))
"""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a kind of difference: the class and the inputs it applies to, who is right, and why."""

    kind: str
    pattern: re.Pattern[str]
    right: str
    reason: str

    def covers(self, kind: str, text: str) -> bool:
        return self.kind in ("*", kind) and self.pattern.search(text) is not None


def drawn(template: str, rng: random.Random) -> str:
    """Draw an input from a template of ``CLASSES``."""
    while found := re.search(r"\{([^{}]*)\}", template):
        template = template[: found.start()] + rng.choice(found[1].split("|")) + template[found.end() :]
    return re.sub(r"[#?]", lambda sign: rng.choice("0123456789" if sign[0] == "#" else "123456789"), template)


def inputs(count: int) -> list[tuple[str, str]]:
    rng = random.Random(1)
    return [
        (kind, text)
        for kind, template in CLASSES.items()
        for text in sorted({drawn(template, rng) for _ in range(count)})
    ]


def words(reading: str) -> str:
    """Reduce a reading to letters and apostrophes. Join single letters, and drop the word "and"."""
    text = re.sub(r"[^\w' ]", " ", reading.lower().replace("’", "'").replace("_", " "))
    text = re.sub(r"\band\b|(?<!\w)'|'(?!\w)", " ", text)
    return " ".join(re.sub(r"\b([a-z])\b\s*(?=[a-z]\b)", r"\1", text).split())


def compared(readings: Iterable[tuple[str, str, str]], verdicts: list[Verdict]) -> dict[str, object]:
    """Compare the normaliser with given readings (class, input, reading). Count who is right where they differ."""
    counts: Counter[str] = Counter()
    by_class: dict[str, Counter[str]] = {}
    theirs, unjudged = [], []
    for kind, text, reading in readings:
        ours = normalise_english(text)
        found = next((verdict.right for verdict in verdicts if verdict.covers(kind, text)), "unjudged")
        result = "equal" if words(ours) == words(reading) else found
        counts[result] += 1
        by_class.setdefault(kind, Counter())[result] += 1
        if result in ("theirs", "unjudged"):
            (theirs if result == "theirs" else unjudged).append({"class": kind, "input": text, "ours": ours})
    good = sum(counts.values()) - counts["theirs"] - counts["unjudged"]
    return {
        "lines": sum(counts.values()),
        "share_right_or_choice": round(good / max(1, sum(counts.values())), 4),
        "counts": dict(counts),
        "by_class": {kind: dict(each) for kind, each in by_class.items()},
        "theirs_right": theirs,
        "unjudged": unjudged,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="readings", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--oracle", help="Python interpreter that has nemo_text_processing installed")
    parser.add_argument("--tsv", type=Path, help="file whose lines are CLASS, INPUT and READING")
    parser.add_argument("--count", type=int, default=20, help="number of inputs to draw from each template")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    verdicts = [
        Verdict(kind, re.compile(pattern), right, reason)
        for kind, pattern, right, reason in rows(__file__, "readings.tsv", "judged")
    ]
    result: dict[str, object] = {}
    if options.oracle:
        drawn_inputs = inputs(options.count)
        asked = json.dumps([text for _, text in drawn_inputs])
        answer = subprocess.run([options.oracle, "-c", ORACLE], input=asked, capture_output=True, text=True, check=True)
        readings = json.loads(answer.stdout.partition("READINGS")[2])
        result["oracle"] = compared(
            ((*each, reading) for each, reading in zip(drawn_inputs, readings, strict=True)), verdicts
        )
    if options.tsv:
        lines = [
            line.split("\t")
            for line in options.tsv.read_text(encoding="utf-8").split("\n")
            if line and not line.startswith("# ")
        ]
        found = compared(((line[0], line[1], line[2]) for line in lines if len(line) > 2), verdicts)
        result["file"] = {
            **found,
            "theirs_right": len(found.pop("theirs_right")),  # type: ignore[arg-type]
            "unjudged": len(found["unjudged"]),
        }  # type: ignore[arg-type]
        sys.stderr.writelines(f"not judged: {each}\n" for each in found["unjudged"])  # type: ignore[attr-defined]
    write_json(options.output, result)
    sys.stdout.write(f"{json.dumps(result, indent=1)}\n")
    return (
        1
        if any(
            part["unjudged"] or part["share_right_or_choice"] < ENOUGH  # type: ignore[index]
            for part in result.values()
        )
        else 0
    )
