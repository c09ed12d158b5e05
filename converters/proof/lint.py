"""Lint: checks a function against rules of the Neural Engine, most of which are community findings.

The sources conflict, and none is Apple's compiler, so each warning names its source. Only ``MLComputePlan`` on a Mac
(`ane plan`) shows where a function really runs. A bundle records the warnings of its packages beside their parity.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ane.backends.mil.package import Package
from converters.proof.lint_rules import NOTE, REFUSED, RULES, WARNING, LintedFunction

# Networks whose graphs must not violate a rule of severity "refused"
STRICT = frozenset({"autoregressive", "diffusion", "encoder", "decoder"})

UNEXPLAINED = "not examined yet"
# rule → why its violations are accepted
REASONS = {
    "fp32": "requested: an fp32 package, or --wide",
    "dimension": "a vocoder's samples: it runs on the GPU or the CPU",
    "singleton-width": "inherently one column (a latent, a single lane, a step's coefficients): a few kB a call",
    "kernel-width": "the network's own kernels",
    "dilation": "the network's own dilations",
    "upsample": "the network's own strides",
    "odd-stride": "the network's own strides",
    "width-slice": "queries in blocks, or a cropped margin: values stay far below 4094 there",
    "reflection": "the network's own padding",
    "int8": "requested: --precision 8bit; on an M1 only the file is smaller",
    "state-width": "requested: --buckets step of another length",
    "4-bit-palette": "requested: --precision 4bit; to be checked with `ane verify --against coreml`",
    "branches": "the network's own concatenations",
    "large-value": "the bucket's own length; it is counted in the estimates of `ane plan`",
    "moved-width": "the network's own rearrangement",
    "groups": "the network's own groups",
    "too-light": "a small network is called rarely, or also runs on the CPU",
    "unaligned-width": "the length is the model's own; the engine pads it to 64 bytes",
    "too-heavy": "requested: more functions or larger buckets than the default",
}


@dataclass(frozen=True)
class LintWarning:
    """One violation of a rule."""

    rule: str
    severity: str
    op: str
    name: str
    what: str
    why: str
    source: str
    wasted: int = 0
    until: int | None = None


@dataclass(frozen=True)
class WarningSummary:
    """All violations of a rule: their number, by type of op, with one example; ``wasted`` bytes of padding in total."""

    rule: str
    severity: str
    count: int
    ops: dict[str, int]
    example: LintWarning
    wasted: int


def lint(package: Package, function: str | None = None) -> list[LintWarning]:
    """All warnings about a function, refused ones first. Raises UserError when the package has no such function."""
    linted = LintedFunction(package, package.function(function))
    found = [LintWarning(rule.id, rule.severity, *violation[:3], rule.text, rule.source, violation.wasted, rule.until)
             for rule in RULES for violation in rule.check(linted)]
    return sorted(found, key=lambda warning: (REFUSED, WARNING, NOTE).index(warning.severity))


def for_generations(warnings: Iterable[LintWarning], generations: Iterable[int]) -> list[LintWarning]:
    """The warnings that apply to at least one of these generations of chips."""
    oldest = min(generations)
    return [warning for warning in warnings if warning.until is None or oldest <= warning.until]


def summarise(warnings: Iterable[LintWarning]) -> list[WarningSummary]:
    """One summary for each violated rule, in order; the example is the most wasteful violation."""
    by_rule: dict[str, list[LintWarning]] = {}
    for warning in warnings:
        by_rule.setdefault(warning.rule, []).append(warning)
    summaries = []
    for rule, group in by_rule.items():
        ops = Counter(warning.op for warning in group)
        example = max(group, key=lambda warning: warning.wasted)        # the first, where nothing is wasted
        wasted = sum(warning.wasted for warning in group)
        summaries.append(WarningSummary(rule, group[0].severity, len(group), dict(ops), example, wasted))
    return summaries


def warnings_of(package: Path) -> list[dict[str, Any]]:
    """One entry for each rule that a package's functions violate: rule, count, functions, an example, why accepted."""
    opened = Package(package)
    found: dict[str, dict[str, Any]] = {}
    for function in sorted(opened.functions):
        for summary in summarise(lint(opened, function)):
            entry = found.setdefault(summary.rule, _entry(summary))
            entry["count"] += summary.count
            entry["functions"].append(function)
    return list(found.values())


def refusals(warnings: Sequence[dict[str, Any]]) -> list[str]:
    """The entries that no ``STRICT`` network may have, as text."""
    return [f"{entry['rule']}: {entry['example']}" for entry in warnings if entry["severity"] == REFUSED]


def _entry(summary: WarningSummary) -> dict[str, Any]:
    example = summary.example
    return {"rule": summary.rule, "severity": summary.severity, "count": 0, "functions": [],
            "example": f"{example.op} {example.name}: {example.what}", "why": example.why, "source": example.source,
            "accepted": REASONS.get(summary.rule, UNEXPLAINED)}
