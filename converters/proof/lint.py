"""Lint: checks functions against rules of the Neural Engine, most of which are community findings.

The sources conflict, and none is Apple's compiler, so each rule names its source. Only ``MLComputePlan`` on a Mac
(`ane plan`) shows where a function really runs. A bundle records the rules that its packages break beside their parity.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ane.backends.mil.package import Package
from converters.proof.lint_rules import REFUSED, RULES, WARNING, LintedFunction, LintRule, Violation

# Networks whose graphs must not violate a rule of severity "refused"
STRICT = frozenset({"autoregressive", "diffusion", "encoder", "decoder"})


@dataclass
class BrokenRule:
    """A rule that functions of a package break.

    Attributes:
        example: the first violation. ops: number of violations by type of op.
    """

    rule: LintRule
    example: Violation
    functions: list[str] = field(default_factory=list)
    ops: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return self.ops.total()

    def add(self, function: str, violation: Violation) -> None:
        if function not in self.functions:
            self.functions.append(function)
        self.ops[violation.op] += 1

    def record(self) -> dict[str, Any]:
        """As bundle.json states it."""
        return {"rule": self.rule.id, "severity": self.rule.severity, "count": self.count, "functions": self.functions,
                "example": str(self.example), "why": self.rule.text, "source": self.rule.source,
                "accepted": self.rule.accepted}


def lint(package: Package, functions: Iterable[str] | None = None, generation: int = 1) -> list[BrokenRule]:
    """The rules that functions of a package break (default: all functions), refusals first.

    ``generation``: the oldest chip whose rules apply, 1 for an M1. Raises UserError when there is no such function.
    """
    found: dict[str, BrokenRule] = {}
    for name in sorted(package.functions) if functions is None else functions:
        linted = LintedFunction(package, package.function(name))
        for rule in RULES:
            if rule.until is None or generation <= rule.until:
                for violation in rule.check(linted):
                    found.setdefault(rule.id, BrokenRule(rule, violation)).add(name, violation)
    return sorted(found.values(), key=lambda broken: (REFUSED, WARNING).index(broken.rule.severity))
