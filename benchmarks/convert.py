"""Time and memory of `ane convert`, network by network, and the parity that it records.

Without --bundle, random weights of the official sizes are imported first: 8 GB of temporary files. Each network is
converted by its own process, which builds its functions and compares each with the PyTorch reference.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ane.bench.records import BenchRow
from ane.bundles.bundle import Bundle
from ane.commands.arguments import comma_separated
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult, model_name
from benchmarks.memory import random_checkpoints, run_ane

# one bucket of each kind and two numbers of lanes: further ones would take similar time
SHORT = ("--lanes", "1,16", *(part for bucket in (
    "prefill=64", "step=4352", "condition=128", "denoise=576", "sample=320", "steps=5", "clvp_text=128")
    for part in ("--buckets", bucket)))
NETWORKS = ("autoregressive", "diffusion", "clvp", "univnet", "hifigan", "conditioning_encoder", "contextual_embedder",
            "rlg_auto", "rlg_diffuser")


def measure(options: argparse.Namespace) -> BenchmarkResult:
    with tempfile.TemporaryDirectory(dir=options.workspace) as folder:
        workspace, bundle = Path(folder), options.bundle
        if not bundle:
            checkpoints, bundle = random_checkpoints(workspace), str(workspace / "bundle")
            run_ane("import", str(checkpoints), "-o", bundle, "--precision", "fp16")
            shutil.rmtree(checkpoints)
        flags = ["--to", options.to, *(SHORT if options.to == "coreml" and not options.all_buckets else ())]
        rows = [converted(bundle, network, flags, workspace) for network in options.networks]
    settings = {"model": model_name(options) if options.bundle else "official sizes, random", "to": options.to,
                "all_buckets": options.all_buckets}
    return BenchmarkResult(rows, settings, (), [BenchmarkPlot("Conversion")])


def converted(bundle: str, network: str, flags: Sequence[str], workspace: Path) -> BenchRow:
    """The row of one network: seconds; number of functions, size and lowest parity in dB of its package."""
    output = workspace / f"converted-{network}"
    cost = run_ane("convert", bundle, *flags, "--networks", network, "-o", str(output))
    made = Bundle(output)
    package = next(each for each in [*made.packages, *made.onnx_packages] if each.network == network)
    size = sum(path.stat().st_size for path in (output / package.path).rglob("*") if path.is_file())
    parity: dict[str, float] = {}
    for record in package.functions.values():
        for name, reached in record.parity.items():
            parity[f"{name}_db"] = min(parity.get(f"{name}_db", reached), reached)
    row = cost.row("ane convert", network=network, precision=package.precision)
    shutil.rmtree(output)
    figures = {"functions": len(package.functions), "size_mb": size / 1e6, **parity}
    return BenchRow(row.competitor, network, row.unit, row.settings, row.value, figures, row.peak_bytes)


def add_options(add: Callable[..., Any]) -> None:
    add("--to", choices=("coreml", "onnx"), default="coreml", help="(default: coreml)")
    add("--networks", type=comma_separated, default=list(NETWORKS), metavar="NETWORK,…",
        help="(default: all that speaking uses)")
    add("--all-buckets", action="store_true", help="every function that `ane convert` makes by default; hours")
    add("--workspace", type=Path, metavar="DIR", help="for temporary files (default: the system's)")


BENCHMARK = Benchmark(measure, "time and memory of conversion", add_options, "--networks univnet",
                      uses=())
