"""What the lint still says of a package that is published, and why it stays. A bundle keeps it beside the parity."""

from pathlib import Path
from typing import Any

from ane.backends.mil import Package
from converters.proof.lint import REFUSED, Summary, lint, summarised

# Graphs that must break no rule that the Neural Engine refuses to bend.
STRICT = frozenset({"autoregressive", "diffusion"})

REASONS = {
    "fp32": "asked for: an fp32 package, or --wide",
    "dimension": "a vocoder's samples: it runs on the GPU or the CPU",
    "singleton-width": "one column by nature (a latent, a single lane, numbers of a step): a few kB a call",
    "kernel-width": "the network's own kernels",
    "dilation": "the network's own dilations",
    "upsample": "the network's own strides",
    "odd-stride": "the network's own strides",
    "width-slice": "queries in blocks, or the crop of a chunk: values stay far below 4094 there",
    "reflection": "the network's own border",
    "int8": "asked for: --precision 8bit; an M1 gains a smaller file",
    "too-light": "a small network is called seldom, or runs elsewhere as well",
    "unaligned-width": "the length is the model's own; padding to 64 bytes is the engine's",
    "too-heavy": "asked for: more functions or larger buckets than the default",
}


def remaining(package: Path) -> list[dict[str, Any]]:
    """One entry for each rule that functions of the package break: rule, how often, where, an example, why it stays."""
    opened = Package(package)
    found: dict[str, dict[str, Any]] = {}
    for function in sorted(opened.functions):
        for summary in summarised(lint(opened, function)):
            entry = found.setdefault(summary.rule, _entry(summary))
            entry["count"] += summary.count
            entry["functions"].append(function)
    return list(found.values())


def refused(package: Path) -> list[str]:
    """What a decoder or denoiser must never have, in words; empty for a clean package."""
    return [f"{entry['rule']}: {entry['example']}" for entry in remaining(package) if entry["severity"] == REFUSED]


def _entry(summary: Summary) -> dict[str, Any]:
    example = summary.example
    return {"rule": summary.rule, "severity": summary.severity, "count": 0, "functions": [],
            "example": f"{example.op} {example.name}: {example.what}", "why": example.why, "source": example.source,
            "stays": REASONS.get(summary.rule, "not looked at yet")}
