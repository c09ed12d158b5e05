"""The most memory that speaking takes at the official size, from a bundle in half precision.

    python -m benchmarks.memory              writes random weights that never stop: 6.2 GB of temporary files
    python -m benchmarks.memory --checkpoints DIR    imports official files (or those of benchmarks.checkpoints)
    python -m benchmarks.memory --bundle NAME        speaks with a bundle that is there already

Each step is a process of its own, `ane import` and `ane say`, and its peak is what the kernel counted for it. The
resident set includes pages of the bundle's files, which the system can drop at will; the part that it cannot is stated
beside it where the system tells (Linux). A child's count starts from its parent's, so this module stays small: it does
not import torch, nor make weights itself.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ane.system.errors import UserError
from benchmarks import report

SAMPLE_EVERY = 0.02      # seconds
SENTENCE = "The train leaves at nine."


@dataclass(frozen=True)
class Run:
    """What a process cost.

    Attributes:
        seconds: wall time.
        peak_gb: its largest resident set, in 10^9 bytes.
        private_gb: the largest part of it seen that no file backs; None where the system does not tell.
        output: what it printed.
    """

    seconds: float
    peak_gb: float
    private_gb: float | None
    output: str


def run(*command: str) -> Run:
    """Run a command to its end. Raises UserError when it fails; its own message goes to standard error."""
    with tempfile.TemporaryFile("w+") as printed:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=printed)
        private = 0.0
        while True:
            private = max(private, private_memory(process.pid))
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(SAMPLE_EVERY)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise UserError(f"status {process.returncode} from: {' '.join(command)}")
        printed.seek(0)
        unit = 1 if sys.platform == "darwin" else 1024      # of ru_maxrss
        return Run(seconds, usage.ru_maxrss * unit / 1e9, private or None, printed.read())


def private_memory(pid: int) -> float:
    """Resident GB that no file backs, now; 0 where there is no /proc or the process has ended."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) * 1024 / 1e9 if found else 0.0


def ane(*arguments: str) -> Run:
    return run(sys.executable, "-m", "ane", *arguments)


def prepared(options: argparse.Namespace, workspace: Path) -> tuple[str, Run | None]:
    """The bundle to speak with, and what importing it cost when it had to be imported."""
    if options.bundle:
        return options.bundle, None
    checkpoints = options.checkpoints
    if checkpoints is None:
        checkpoints = workspace / "checkpoints"
        run(sys.executable, "-m", "benchmarks.checkpoints", str(checkpoints), "--no-stop")
    bundle = str(workspace / "bundle")
    return bundle, ane("import", str(checkpoints), bundle, "--precision", options.precision)


def speak(options: argparse.Namespace, bundle: str, workspace: Path) -> Run:
    """`ane say` with all lanes and guidance, but few candidates and steps: the peak is in how long a chunk is."""
    threads = ["--threads", str(options.threads)] if options.threads else []
    voice = ["--voice", options.voice] if options.voice else []
    return ane("say", options.text, "--bundle", bundle, *voice, "--seed", "0", "--json",
               "--backend", options.backend, "--candidates", str(options.candidates), "--steps", str(options.steps),
               "--guidance", "2",
               "--max-codes", str(options.max_codes), "-o", str(workspace / "speech.wav"), *threads)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--checkpoints", type=Path, metavar="DIR", help="official files to import")
    source.add_argument("--bundle", metavar="NAME|PATH", help="a bundle to speak with as it is")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), default="bf16",
                        help="what the import stores (default bf16)")
    parser.add_argument("--text", default=SENTENCE, help=f"default: {SENTENCE}")
    parser.add_argument("--voice", help="default: the bundle's own; random of official files")
    parser.add_argument("--backend", default="torch:cpu", help="default torch:cpu")
    parser.add_argument("--candidates", type=int, default=8, help="default 8, as many as lanes")
    parser.add_argument("--steps", type=int, default=2, help="diffusion steps (default 2)")
    parser.add_argument("--max-codes", type=int, default=500, help="default 500, 23 s of audio: the longest chunk")
    parser.add_argument("--threads", type=int, help="CPU threads (default: the engine's choice)")
    parser.add_argument("--target-gb", type=float, default=3.0, help="what the peak is held against (default 3)")
    parser.add_argument("--workspace", type=Path, metavar="DIR", help="for temporary files (default: the system's)")
    parser.add_argument("--output", type=Path, metavar="FILE.json",
                        help="where the result goes (default: benchmarks/results/, dated)")
    return parser


def show(imported: Run | None, said: Run, told: dict, target: float) -> report.Shown:
    rows = [(name, report.figure(cost.seconds), report.figure(cost.peak_gb),
             None if cost.private_gb is None else report.figure(cost.private_gb))
            for name, cost in (("ane import", imported), ("ane say", said)) if cost]
    rows += [(f"  {stage}", report.figure(seconds), None, None) for stage, seconds in told["spent"].items()]
    verdict = "within" if said.peak_gb <= target else "ABOVE"
    return report.print_table(
        f"Speaking {told['seconds']:.2f} s of audio, {told['codes']} codes in all, on {told['backend']}: "
        f"peak {said.peak_gb:.2f} GB, {verdict} the {report.figure(target)} GB aimed at",
        ("process, stage", "seconds", "peak GB", "of it private"), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    output = options.output or report.default_output("memory")
    with tempfile.TemporaryDirectory(dir=options.workspace) as workspace:
        bundle, imported = prepared(options, Path(workspace))
        said = speak(options, bundle, Path(workspace))
    told = json.loads(said.output)
    shown = show(imported, said, told, options.target_gb)
    results = [{"name": name, "seconds": run.seconds, "private_gb": run.private_gb, **report.shared(figures)}
               for name, run, figures in (("ane import", imported, figures_of(imported)),
                                          ("ane say", said, figures_of(said, told))) if run]
    settings = {"precision": options.precision if imported else None, "backend": told["backend"],
                "candidates": options.candidates, "steps": options.steps, "max_codes": options.max_codes}
    report.publish(
        output, "memory", settings, results, [shown],
        {"": lambda path: report.bars(path, "Peak of memory", "GB", memory_parts(results))},
        target_gb=options.target_gb,
        speech={key: told[key] for key in ("seconds", "codes", "spent", "real_time_factor", "backend", "trained")})


def figures_of(run: Run | None, told: dict | None = None) -> report.Figures:
    """The peak of a process; with what `ane say` told, what it spoke with."""
    peak = report.Spread.of([run.peak_gb]) if run else None
    if told is None:
        return report.Figures(peak_rss_gb=peak)
    of_speech = report.Figures.of([told | {"stages": told["spent"], "first_audio": told["first_sound"]}])
    return replace(of_speech, peak_rss_gb=peak)


def memory_parts(results: Sequence[dict]) -> dict[str, dict[str, float]]:
    """What files back and what they do not, of each process; the whole where the system does not tell."""
    parts = {}
    for row in results:
        peak, private = row["peak_rss_gb"].median, row["private_gb"]
        parts[row["name"]] = {"resident": peak} if private is None else {"private": private, "files": peak - private}
    return parts


if __name__ == "__main__":
    report.run(main)
