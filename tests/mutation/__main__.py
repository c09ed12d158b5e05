"""`python -m tests.mutation --modules A,B --seed N --sample K`: do the tests notice random small changes of the code?

Draws K mutants of the modules, runs each module's tests on them, and writes a JSON file with a diff of each mutant that
survived. A survivor that changes no behaviour can be marked by hand: give its "equivalent" the reason. A later run with
the same --output keeps these remarks. (mutmut runs every mutant of a module and has no seeded sample, hence this tool.)
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.mutation.mutants import Mutant, find_mutants
from tests.mutation.trials import TrialError, Workspace, file_of, find_tests


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    add = parser.add_argument
    add("--modules", required=True, metavar="A,B", help="dotted names")
    add("--seed", type=int, default=0)
    add("--sample", type=int, default=200, metavar="K", help="mutants to draw (%(default)s)")
    add("--root", type=Path, default=Path(__file__).parents[2], metavar="DIR", help="the tree (%(default)s)")
    add("-o", "--output", type=Path, metavar="FILE", help="JSON")
    options = parser.parse_args(arguments)
    try:
        mutants = draw(options.root, options.modules.split(","), options.seed, options.sample)
        results = run(options.root, mutants, remarks(options.output))
    except (TrialError, OSError, SyntaxError) as error:
        parser.exit(1, f"error: {error}\n")
    summary = {"modules": options.modules.split(","), "seed": options.seed, **score(results), "mutants": results}
    if options.output:
        options.output.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(score(results)) + "\n")
    return 0


def draw(root: Path, modules: list[str], seed: int, count: int) -> list[Mutant]:
    """A random sample of all mutants of the modules, in the order of modules and lines."""
    every = []
    for module in modules:
        find_tests(root, module)      # raises before any test runs
        every += find_mutants(module, (root / file_of(module)).read_text(encoding="utf-8"))
    chosen = random.Random(seed).sample(range(len(every)), min(count, len(every)))
    return [every[index] for index in sorted(chosen)]


def remarks(output: Path | None) -> dict[str, str]:
    """Reasons why survivors of an earlier run are equivalent, by key."""
    if output is None or not output.exists():
        return {}
    return {result["key"]: result["equivalent"] for result in json.loads(output.read_text(encoding="utf-8"))["mutants"]
            if result.get("equivalent")}


def run(root: Path, mutants: list[Mutant], equivalent: dict[str, str]) -> list[dict[str, Any]]:
    results = []
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(root, Path(folder) / "tree")
        for number, mutant in enumerate(mutants, 1):
            workspace.limit(mutant.module)
            started = time.monotonic()
            result = {"key": mutant.key, "change": mutant.change, "verdict": workspace.verdict(mutant),
                      "seconds": round(time.monotonic() - started, 1)}
            if result["verdict"] == "survived":
                result |= {"equivalent": equivalent.get(mutant.key, ""), "diff": mutant.diff}
            results.append(result)
            sys.stderr.write(f"{number}/{len(mutants)} {mutant.key} {mutant.change}: {result['verdict']}\n")
    return results


def score(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, and the share of non-equivalent mutants that were killed or did not end."""
    verdicts = Counter(result["verdict"] for result in results)
    equivalent = sum(bool(result.get("equivalent")) for result in results)
    score = (verdicts["killed"] + verdicts["timeout"]) / max(1, len(results) - equivalent)
    return {"sample": len(results), **verdicts, "equivalent": equivalent, "score": round(score, 3)}


if __name__ == "__main__":
    sys.exit(main())
