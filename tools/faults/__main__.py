"""Test whether the checks of `ane verify --layers` notice a fault in one operation: ``python -m tools.faults``.

The campaign draws faults of eleven kinds from the functions of a bundle's Core ML packages, and writes each fault into
a copy of its package. It verifies the copy on the interpreter (``mil``) and on Core AI (``coreai``). A fault counts as
found if its function is below its threshold, or if an operation gives other values than in the same function converted
again. It counts as named if the first such operation is the faulty one. The result is a JSON file.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ane.backends.mil.package import Package
from ane.bundles.bundle import Bundle
from ane.bundles.package_records import PackageRecord
from converters import blocks
from converters.conversion import convert
from converters.coreml.coreml_package import CoreMLOptions
from converters.function_table import THRESHOLDS
from converters.proof.elements import LayerComparison
from converters.proof.parity import called_by_probe, reference_backend
from converters.proof.verify import FLOAT32_NOISE, FunctionCheck, PackageRunner, UnverifiedBundle, runner_named
from tests.random_model import write_random_bundle
from tools.faults.faults import Fault, FaultFinder, draw, write_faulty

RUNNERS = ("mil", "coreai")
TINY = (95.0, None)  # required dB. The tiny random denoiser reaches 98 in float32, and other networks must reach 100
TWO_GROUPS = 1_200  # bytes of the chip's memory, so that the tiny decoder's steps compute their heads in groups
BUCKETS = {
    "prefill": (32,),
    "step": (64,),
    "condition": (32,),
    "denoise": (64,),
    "clvp_text": (32,),
    "clvp_speech": (32,),
    "univnet": (14,),
    "hifigan": (14,),
}
# maximum difference in dB between two runners of the same faulty function. SNRs above ``FLOAT32_NOISE`` count as equal
AGREE = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__)
    add = parser.add_argument
    add("--bundle", type=Path, metavar="DIR", help="bundle with Core ML packages (default: tiny random networks)")
    add("--runners", default=",".join(RUNNERS), metavar="A,B", help="runners of `ane verify --against` (%(default)s)")
    add("--seed", type=int, default=0)
    add("--sample", type=int, default=100, metavar="K", help="number of faults to draw (%(default)s)")
    add("-o", "--output", type=Path, metavar="FILE", help="JSON")
    options = parser.parse_args(arguments)
    if not options.bundle:
        blocks.ON_CHIP, THRESHOLDS["fp32"] = TWO_GROUPS, TINY
    with tempfile.TemporaryDirectory() as folder:
        return campaign(UnverifiedBundle(options.bundle or random_packages(Path(folder))), options)


def random_packages(folder: Path) -> Path:
    """Make a bundle of random weights, with a package of each network and a small bucket of each kind of function."""
    write_random_bundle(folder / "plain")
    options = CoreMLOptions("fp32", lanes=(2,), buckets=BUCKETS)
    return convert(Bundle(folder / "plain"), folder / "random", [options]).path


def campaign(model: Bundle, options: argparse.Namespace) -> int:
    runners = [runner_named(name) for name in options.runners.split(",")]
    results = [run(model, *drawn, runners) for drawn in drawn_faults(model, options.seed, options.sample)]
    summary = {"bundle": model.name, "seed": options.seed, **score(results), "faults": results}
    if options.output:
        options.output.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(score(results)) + "\n")
    return 0


def smallest_functions(package: PackageRecord) -> list[str]:
    """Return the name of the function with the smallest bucket, for each kind of function."""
    chosen: dict[str, str] = {}
    for name, record in package.functions.items():
        known = package.functions.get(chosen.get(record.kind, ""))
        if known is None or list(record.bucket.values()) < list(known.bucket.values()):
            chosen[record.kind] = name
    return list(chosen.values())


def drawn_faults(model: Bundle, seed: int, count: int) -> list[tuple[PackageRecord, Fault]]:
    found: dict[str, list[Fault]] = {}
    records = {}
    for record in model.packages:
        package = Package(model.path / record.path)
        for name in smallest_functions(record):
            records[name] = record
            for kind, faults in FaultFinder(package, name).find().items():
                found.setdefault(kind, []).extend(faults)
    return [(records[fault.function], fault) for fault in draw(found, seed, count)]


def run(model: Bundle, record: PackageRecord, fault: Fault, runners: Sequence[PackageRunner]) -> dict[str, Any]:
    """Write one fault into a package, and verify the package on each runner."""
    started = time.monotonic()
    result: dict[str, Any] = {
        "kind": fault.kind,
        "network": record.network,
        "function": fault.function,
        "value": fault.value,
        "change": fault.change,
    }
    needed = set(called_by_probe(record, fault.function))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(record.path).name
        write_faulty(model.path / record.path, fault, needed, path)
        # an absolute path leaves the bundle's own folder unchanged
        faulty = replace(
            record,
            path=str(path),
            files=[],
            functions={name: function for name, function in record.functions.items() if name in needed},
        )
        reference = reference_backend(model)
        checks = {}
        for runner in runners:
            checks[runner.name] = runner.check(model, faulty, fault.function, reference, layers=LayerComparison())
            runner.unload(path)
    result["runners"] = {
        name: verdict(check, fault, Package(model.path / record.path)) for name, check in checks.items()
    }
    result["agree"] = agree(list(result["runners"].values()))
    result["seconds"] = round(time.monotonic() - started, 1)
    sys.stderr.write(f"{fault.kind}, {fault.function}, {fault.value}: {result['runners']}\n")
    return result


def agree(verdicts: Sequence[dict[str, Any]]) -> bool:
    """Return whether all runners found and named the same, with outputs equally far from the reference."""
    snrs = [FLOAT32_NOISE if one["snr"] is None else min(one["snr"], FLOAT32_NOISE) for one in verdicts]
    return (
        len({(one["found"], one["named"], one["problem"]) for one in verdicts}) == 1 and max(snrs) - min(snrs) <= AGREE
    )


def verdict(check: FunctionCheck, fault: Fault, package: Package) -> dict[str, Any]:
    """Return the facts that one runner noticed about a fault."""
    difference = check.difference
    operation = next(
        (op.name for op in package.function(fault.function).ops if difference and difference.name in op.outputs),
        difference and difference.name,
    )
    return {
        "snr": check.snr,
        "required": check.required,
        "passed": check.passed,
        "problem": check.problem,
        "drift": check.drift and check.drift.name,
        "difference": operation,
        "found": not check.passed or difference is not None,
        "named": operation == fault.value,
    }


def score(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Count the faults that each runner found, named and saw below the threshold, and on which all runners agree."""
    names = list(results[0]["runners"]) if results else []
    counts = {
        name: {key: sum(bool(result["runners"][name][key]) for result in results) for key in ("found", "named")}
        | {"below threshold": sum(not result["runners"][name]["passed"] for result in results)}
        for name in names
    }
    return {"sample": len(results), **counts, "agree": sum(result["agree"] for result in results)}


if __name__ == "__main__":
    sys.exit(main())
