"""Lint: checks a function against rules of the Neural Engine, most of which are community findings.

The sources conflict, and none is Apple's compiler, so each warning names its source. Only ``MLComputePlan`` on a Mac
(`ane plan`) shows where a function really runs.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ane.backends.mil.package import Package
from converters.proof.lint_checks import LintedFunction
from converters.proof.lint_rules import NOTE, REFUSED, RULES, WARNING


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
