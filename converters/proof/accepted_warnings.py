"""Lint warnings that published packages may have, and why. A bundle records them beside the parity."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ane.backends.mil import Package
from converters.proof.lint import WarningSummary, lint, summarise
from converters.proof.lint_rules import REFUSED

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
