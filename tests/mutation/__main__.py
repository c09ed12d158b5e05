"""`python -m tests.mutation --modules A,B --seed N --sample K`: do the tests notice random small changes of the code?

Draws K mutants of the modules, runs on each the tests that execute its line, and writes a JSON file with a diff of each
mutant that survived. The tree must stand still meanwhile: --root is best a clone. Which test executes which line is
recorded first, under coverage, and kept beside --output. A survivor that changes no behaviour can be marked by hand:
give its "equivalent" the reason; later runs with the same --output keep it. After tests were written, --again runs the
survivors without such a reason once more. (mutmut runs every mutant of a module and has no seeded sample, hence this.)
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import Any, TypeVar

from tests.mutation.mutants import Mutant, find_mutants
from tests.mutation.recording import ExecutedLines
from tests.mutation.trials import TrialError, Workspace, file_of

Task, Answer = TypeVar("Task"), TypeVar("Answer")
Results = dict[str, dict[str, Any]]         # by key of the mutant


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    add = parser.add_argument
    add("--modules", required=True, metavar="A,B", help="dotted names of modules or packages")
    add("--tests", default="tests", metavar="A,B", help="folders or files whose tests may notice them (%(default)s)")
    add("--seed", type=int, default=0)
    add("--sample", type=int, default=200, metavar="K", help="mutants to draw (%(default)s)")
    add("--seconds", type=float, default=60.0, metavar="S", help="of tests for each, the quickest first (%(default)g)")
    add("--jobs", type=int, default=2, metavar="N", help="trials at once (%(default)s)")
    add("--root", type=Path, default=Path(__file__).parents[2], metavar="DIR", help="the tree (%(default)s)")
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="JSON")
    add("--resume", action="store_true", help="keep the verdicts that FILE has")
    add("--again", action="store_true", help="the same, and run survivors that are not marked equivalent once more")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    modules = [module for name in options.modules.split(",") for module in modules_of(root, name)]
    before = earlier(options.output)
    results = {key: result for key, result in before.items() if options.resume or (options.again
               and (result["verdict"] != "survived" or result["equivalent"]))}
    try:
        mutants = draw(root, modules, options.seed, options.sample)
        recording = ExecutedLines(root, options.output.with_suffix(".lines.json"), options.tests.split(","),
                                  options.seconds)
        with workspaces(root, options.jobs) as pool:
            for name, tests in pool(Workspace.record, recording.missing):
                recording.add(name, tests)
                say(f"{name}: {len(tests)} tests recorded, {len(recording.missing)} files left")
            waiting = [mutant for mutant in mutants if mutant.key not in results]
            for mutant, result in pool(lambda space, mutant: trial(space, mutant, recording), waiting):
                results[mutant.key] = with_history(result, before.get(mutant.key, {}), options.again)
                ordered = [results[mutant.key] for mutant in mutants if mutant.key in results]
                summary = {"modules": options.modules.split(","), "seed": options.seed, **score(ordered)}
                # after each mutant: what a run that is ended has done is a sample too
                options.output.write_text(json.dumps(summary | {"mutants": ordered}, indent=1, ensure_ascii=False)
                                          + "\n", encoding="utf-8")
                say(f"{len(ordered)}/{len(mutants)} {mutant.key} {mutant.change}: {result['verdict']}, "
                    f"{result['seconds']} s")
    except (TrialError, OSError, SyntaxError) as error:
        parser.exit(1, f"error: {error}\n")
    sys.stdout.write(json.dumps(score(list(results.values()))) + "\n")
    return 0


def say(line: str) -> None:
    sys.stderr.write(line + "\n")


def modules_of(root: Path, name: str) -> list[str]:
    """The module of that name, or the modules of that package."""
    folder = root / name.replace(".", "/")
    return [f"{name}.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem != "__init__"] or [name]


def draw(root: Path, modules: list[str], seed: int, count: int) -> list[Mutant]:
    """A random sample of all mutants of the modules, in random order."""
    every = [mutant for module in modules
             for mutant in find_mutants(module, (root / file_of(module)).read_text(encoding="utf-8"))]
    chosen = random.Random(seed).sample(range(len(every)), min(count, len(every)))
    return [every[index] for index in chosen]


def earlier(output: Path) -> Results:
    """The results of an earlier run."""
    if not output.exists():
        return {}
    return {result["key"]: result for result in json.loads(output.read_text(encoding="utf-8"))["mutants"]}


@contextmanager
def workspaces(root: Path, jobs: int) -> Iterator[Callable[..., Iterator[tuple[Any, Any]]]]:
    """A function that calls another with a workspace and each task, ``jobs`` at once: (task, answer) as they end."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as threads:
        free: Queue[Workspace] = Queue()
        lock = Lock()
        for number in range(jobs):
            free.put(Workspace(root, Path(folder) / str(number), lock))

        def call(work: Callable[[Workspace, Task], Answer], task: Task) -> Answer:
            space = free.get()
            try:
                return work(space, task)
            finally:
                free.put(space)

        def pool(work: Callable[[Workspace, Task], Answer], tasks: list[Task]) -> Iterator[tuple[Task, Answer]]:
            running = {threads.submit(call, work, task): task for task in tasks}
            for future in as_completed(running):
                yield running[future], future.result()

        yield pool


def trial(workspace: Workspace, mutant: Mutant, recording: ExecutedLines) -> dict[str, Any]:
    started = time.monotonic()
    verdict, test = workspace.verdict(mutant, recording)
    result = {"key": mutant.key, "change": mutant.change, "verdict": verdict,
              "seconds": round(time.monotonic() - started, 1)}
    return result | ({"equivalent": "", "diff": mutant.diff} if verdict == "survived" else {"by": test})


def with_history(result: dict[str, Any], before: dict[str, Any], again: bool) -> dict[str, Any]:
    """With the earlier run's remark; a mutant that survived the tests before ``again`` is "new" when it is killed."""
    if result["verdict"] == "survived":
        return result | {"equivalent": before.get("equivalent", "")}
    return result | ({"new": True} if before.get("new") or (again and before.get("verdict") == "survived") else {})


def score(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, and the share of non-equivalent mutants that were killed or did not end: now, and by the first tests."""
    verdicts = Counter(result["verdict"] for result in results)
    equivalent = sum(bool(result.get("equivalent")) for result in results)
    noticed, new = verdicts["killed"] + verdicts["timeout"], sum(result.get("new", False) for result in results)
    share = {name: round(count / max(1, len(results) - equivalent), 3)
             for name, count in (("first_score", noticed - new), ("score", noticed))}
    return {"sample": len(results), **verdicts, "equivalent": equivalent, **share}


if __name__ == "__main__":
    sys.exit(main())
