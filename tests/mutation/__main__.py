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
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.mutation.mutants import Mutant, find_mutants
from tests.mutation.trials import TrialError, Workspace, file_of, find_tests


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    add = parser.add_argument
    add("--modules", required=True, metavar="A,B", help="dotted names of modules or packages")
    add("--seed", type=int, default=0)
    add("--sample", type=int, default=200, metavar="K", help="mutants to draw (%(default)s)")
    add("--root", type=Path, default=Path(__file__).parents[2], metavar="DIR", help="the tree (%(default)s)")
    add("-o", "--output", type=Path, metavar="FILE", help="JSON")
    add("--resume", action="store_true", help="keep the verdicts that FILE has")
    options = parser.parse_args(arguments)
    modules = [module for name in options.modules.split(",") for module in modules_of(options.root, name)]

    def save(results: list[dict[str, Any]]) -> None:
        """After each mutant: what a run that is ended has done is kept."""
        summary = {"modules": options.modules.split(","), "seed": options.seed, **score(results), "mutants": results}
        if options.output:
            options.output.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    try:
        mutants = draw(options.root, modules, options.seed, options.sample)
        results = run(options.root, mutants, remarks(options.output), save,
                      earlier(options.output) if options.resume else {})
    except (TrialError, OSError, SyntaxError) as error:
        parser.exit(1, f"error: {error}\n")
    sys.stdout.write(json.dumps(score(results)) + "\n")
    return 0


def modules_of(root: Path, name: str) -> list[str]:
    """The module of that name, or the modules of that package."""
    folder = root / name.replace(".", "/")
    return [f"{name}.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem != "__init__"] or [name]


def draw(root: Path, modules: list[str], seed: int, count: int) -> list[Mutant]:
    """A random sample of all mutants of the modules, in random order: what an ended run did is a sample too."""
    every = []
    for module in modules:
        find_tests(root, module)      # raises before any test runs
        every += find_mutants(module, (root / file_of(module)).read_text(encoding="utf-8"))
    chosen = random.Random(seed).sample(range(len(every)), min(count, len(every)))
    return [every[index] for index in chosen]


def remarks(output: Path | None) -> dict[str, str]:
    """Reasons why survivors of an earlier run are equivalent, by key."""
    return {key: result["equivalent"] for key, result in earlier(output).items() if result.get("equivalent")}


def earlier(output: Path | None) -> dict[str, dict[str, Any]]:
    """The results of an earlier run, by key."""
    if output is None or not output.exists():
        return {}
    return {result["key"]: result for result in json.loads(output.read_text(encoding="utf-8"))["mutants"]}


def run(root: Path, mutants: list[Mutant], equivalent: dict[str, str],
        save: Callable[[list[dict[str, Any]]], None] = lambda results: None,
        done: Mapping[str, dict[str, Any]] = MappingProxyType({})) -> list[dict[str, Any]]:
    results = [done[mutant.key] for mutant in mutants if mutant.key in done]
    mutants = [mutant for mutant in mutants if mutant.key not in done]
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
            save(results)
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
