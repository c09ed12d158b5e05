"""Feed damaged and hostile inputs to every function that reads data from others.

    python -m tools.campaigns fuzz --minutes 3                  all kinds alternately, added to results/fuzz.json
    python -m tools.campaigns fuzz --minutes 10 --only voices   one kind

The campaign changes good inputs: it alters, removes, repeats and swaps bytes and parts of text, replaces values in
JSON, and damages files in archives. The reader must accept each input, or reject it with a UserError of one line,
within ``SECONDS`` of CPU time and with at most ``MEMORY`` more memory than the process had. Every kind of input has its
own process, for some seconds at a time. If a process dies, the campaign records a failure with the last input. One of
every ``TRACED`` inputs is traced. If it reaches a new line of code, it joins the good inputs. Figures are written after
each turn, and added to the figures of earlier runs. ``--fresh`` starts with none.
"""

import argparse
import base64
import json
import mmap
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

from ane.system.errors import UserError
from tools.campaigns.fuzz_inputs import InputKind, kinds

RESULTS = Path(__file__).parent / "results" / "fuzz.json"
ROOT = Path(__file__).parents[2]
SECONDS: float = 5  # maximum seconds of CPU time for an input
TICK: float = 1  # seconds of CPU time between two looks at the time of an input
MEMORY = 1 << 30  # maximum bytes of memory for an input
# maximum seconds of CPU time for a batch, and maximum minutes of elapsed time, because the machine does other work too
HANGS = 60
BATCH = 64  # number of inputs between two checks of the time
TRACED = 64  # one of so many inputs is traced
KEPT = 5  # maximum number of failures stored with their inputs, per kind
CORPUS = 2000  # maximum number of inputs to change
TURN = 5.0  # seconds that a kind of weight 1 runs at a time

Lines = set[tuple[str, int]]


class TooSlowError(Exception):
    """Reading an input took longer than ``SECONDS``."""


def stored(name: str, data: bytes) -> dict[str, str]:
    """Return an input in the form in which the results store it."""
    return {"file": name, "base64": base64.b64encode(data).decode()}


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def lines_of(sources: tuple[str, ...]) -> Lines:
    """Return the lines of code in the functions of these files."""
    found: Lines = set()

    def add(file: str, code: CodeType, within: bool) -> None:
        if within:
            found.update((file, line) for *_, line in code.co_lines() if line and line > code.co_firstlineno)
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                add(file, inner, bool(inner.co_flags & 2))  # CO_NEWLOCALS: a function, not a class

    for source in sources:
        path = str(ROOT / source)
        add(path, compile(Path(path).read_bytes(), path, "exec"), False)
    return found


def traced(read: Callable[[], object], files: set[str], reached: Lines) -> None:
    """Run ``read``, and add the lines that it reaches to ``reached``."""

    def note(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return note

    sys.settrace(note)
    try:
        read()
    finally:
        sys.settrace(None)


class Attack:
    """A feeder of inputs of one kind. It runs in a separate process."""

    def __init__(self, kind: InputKind, last: mmap.mmap, corpus: list[tuple[str, bytes]], seed: int):
        self.kind, self.last, self.corpus, self.rng = kind, last, corpus, random.Random(seed)
        self.files = {str(ROOT / source) for source in kind.sources}
        self.count = self.refused = self.bytes = self._ticks = self._ticked = 0
        self.reached: Lines = set()
        self.failures: dict[str, dict[str, Any]] = {}
        self._limit = peak() + MEMORY

    def run(self, seconds: float) -> dict[str, Any]:
        """Feed inputs for some seconds, and return the figures."""
        signal.signal(signal.SIGPROF, self._tick)
        signal.setitimer(signal.ITIMER_PROF, TICK, TICK)
        space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (space + 2 * MEMORY, space + 2 * MEMORY))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            # both limits end the process, even inside a library, and the next batch sets them again
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + HANGS, resource.RLIM_INFINITY))
            signal.alarm(60 * HANGS)
            for number in range(BATCH):
                self.feed(trace=self.count % TRACED == 0 or (number == 0 and len(self.corpus) < 8))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        return {
            "inputs": self.count,
            "refused": self.refused,
            "bytes": self.bytes,
            "seconds": time.process_time(),
            "failures": list(self.failures.values()),
            "corpus": self.corpus,
            "reached": self.reached,
        }

    def _tick(self, *_: object) -> None:
        """Count ``TICK`` of CPU time. This replaces a timer for each input, which would cost more."""
        self._ticks = self._ticks + 1 if self.count == self._ticked else 0
        self._ticked = self.count
        if self._ticks * TICK > SECONDS:
            raise TooSlowError

    def feed(self, trace: bool) -> None:
        name, data = self.kind.input(self.corpus, self.rng)
        self.last.seek(0)
        self.last.write(f"{name}\n{len(data)}\n".encode() + data[: len(self.last) - 100])
        self.count, self.bytes = self.count + 1, self.bytes + len(data)
        wrong, began, reached = "", time.process_time(), len(self.reached)
        try:
            if trace:
                traced(lambda: self.kind.read(name, data), self.files, self.reached)
            else:
                self.kind.read(name, data)
        except UserError as error:
            self.refused += 1
            wrong = "its error has several lines" if "\n" in str(error) else ""
        except TooSlowError:
            wrong = f"it takes more than {SECONDS:g} s"
        except BaseException as error:  # a panic in Rust code is not an Exception
            where = traceback.extract_tb(error.__traceback__)[-1]
            wrong = f"{type(error).__name__} in {Path(where.filename).name}, line {where.lineno}: {str(error)[:200]}"
        if len(self.reached) > reached and len(self.corpus) < CORPUS:
            self.corpus.append((name, data))
        if peak() > self._limit:
            wrong, self._limit = wrong or f"it takes more than {MEMORY >> 20} MB", peak() + MEMORY
        if not trace and time.process_time() - began > SECONDS:
            wrong = wrong or f"it takes more than {SECONDS:g} s"
        if wrong and len(self.failures) < KEPT:
            self.failures.setdefault(wrong.partition(":")[0], {"wrong": wrong, **stored(name, data)})


def turn(kind: InputKind, corpus: list[tuple[str, bytes]], folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Feed inputs in a forked process, and return its figures. If it dies, return a failure with its last input."""
    result, last = folder / "result", mmap.mmap(-1, 1 << 20)
    child = os.fork()
    if not child:
        errors = os.fdopen(os.dup(2), "w")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # decoders print complaints
        try:
            attack = Attack(kind, last, corpus, seed)
            result.write_bytes(pickle.dumps(attack.run(seconds)))
        except BaseException:
            traceback.print_exc(file=errors)  # a fault of this program
            errors.flush()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        return pickle.loads(result.read_bytes())
    name, length, data = (last[:] if last[0] else b"nothing yet\n0\n").split(b"\n", 2)
    return {
        "inputs": 1,
        "refused": 0,
        "bytes": 0,
        "seconds": 0,
        "corpus": corpus,
        "reached": set(),
        "failures": [
            {"wrong": f"the process ended with status {status}", **stored(name.decode(), data[: int(length)])}
        ],
    }


def merged(before: dict[str, Any], found: dict[str, Any], reached: int, lines: int) -> dict[str, Any]:
    """Add the figures of a turn to the earlier figures of the same kind."""
    failures = {failure["wrong"]: failure for failure in [*found["failures"], *before.get("failures", [])]}
    return {
        **{name: round(before.get(name, 0) + found[name]) for name in ("inputs", "refused", "bytes", "seconds")},
        "lines": lines,
        "lines_reached": max(reached, before.get("lines_reached", 0)),
        "failures": list(failures.values())[:KEPT],
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools.campaigns fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--only", metavar="KIND")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="start without the figures of earlier runs")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    totals = {} if args.fresh or not args.output.exists() else json.loads(args.output.read_text())["kinds"]
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    until, seed = time.monotonic() + 60 * args.minutes, args.seed + sum(each["inputs"] for each in totals.values())
    with tempfile.TemporaryDirectory(dir=memory) as root, patch.dict(os.environ, ANE_HOME=f"{root}/home"):
        known = kinds(Path(root))
        if args.only not in (None, *known):
            parser.error(f"--only {args.only}: choose from {', '.join(known)}")
        chosen = {name: kind for name, kind in known.items() if args.only in (None, name)}
        corpora = {name: list(kind.inputs) for name, kind in chosen.items()}
        lines = {name: lines_of(tuple(kind.sources)) for name, kind in chosen.items()}
        reached: dict[str, Lines] = {name: set() for name in chosen}
        seconds = min(TURN, 60 * args.minutes / sum(kind.weight for kind in chosen.values()))
        while time.monotonic() < until:
            for name, kind in chosen.items():
                seed += 1
                found = turn(kind, corpora[name], Path(root), seconds * kind.weight, seed)
                corpora[name] = found["corpus"]
                reached[name] |= found["reached"] & lines[name]
                totals[name] = merged(totals.get(name, {}), found, len(reached[name]), len(lines[name]))
                write(args.output, totals)
    for name, each in totals.items():
        sys.stdout.write(f"{name}: {each['inputs']} inputs, {each['refused']} refused\n")
        sys.stdout.writelines(f"  {failure['wrong']} ({failure['file']})\n" for failure in each["failures"])
    return 1 if any(each["failures"] for each in totals.values()) else 0


def write(output: Path, totals: dict[str, Any]) -> None:
    result = {
        "seconds_allowed": SECONDS,
        "megabytes_allowed": MEMORY >> 20,
        "inputs": sum(each["inputs"] for each in totals.values()),
        "cpu_seconds": sum(each["seconds"] for each in totals.values()),
        "kinds": totals,
    }
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
