"""Peak memory of `ane import` and of `ane say`, each in its own process.

Without --bundle or --checkpoints, random weights of the official sizes are written and imported first: 6.2 GB of
temporary files. The resident set includes pages of memory-mapped files, which the system can evict; the private
part, which it cannot, is added where the system reports it (Linux).
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ane.bench.records import BenchRow, Spread
from ane.commands.arguments import positive
from ane.system.errors import UserError
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult, model_name

SAMPLING_INTERVAL = 0.02      # seconds
SENTENCE = "The train leaves at nine."


@dataclass(frozen=True)
class ProcessCost:
    """Cost of a command.

    Attributes:
        seconds: wall time. peak_bytes: its largest resident set.
        private_bytes: the largest anonymous part (not backed by files) seen; None where the system does not report it.
        output: its standard output.
    """

    seconds: float
    peak_bytes: int
    private_bytes: int | None
    output: str

    def row(self, name: str, **settings: Any) -> BenchRow:
        figures = {} if self.private_bytes is None else {"private_gb": self.private_bytes / 1e9}
        return BenchRow(name, "process", "s", settings, Spread.of([self.seconds]), figures, self.peak_bytes)


def run_command(*command: str) -> ProcessCost:
    """Run a command and measure it. Raises UserError when it fails; its message is on standard error."""
    with tempfile.TemporaryFile("w+") as printed:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=printed)
        private = 0
        while True:
            private = max(private, private_bytes(process.pid))
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(SAMPLING_INTERVAL)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise UserError(f"status {process.returncode} from: {' '.join(command)}")
        printed.seek(0)
        unit = 1 if sys.platform == "darwin" else 1024      # of ru_maxrss
        return ProcessCost(seconds, usage.ru_maxrss * unit, private or None, printed.read())


def run_ane(*arguments: str) -> ProcessCost:
    return run_command(sys.executable, "-m", "ane", *arguments)


def private_bytes(pid: int) -> int:
    """Current anonymous resident bytes of a process; 0 without /proc or after its end."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def random_checkpoints(folder: Path, *flags: str) -> Path:
    """Random weights of the official sizes, written by another process."""
    run_command(sys.executable, "-m", "benchmarks", "checkpoints", str(folder / "checkpoints"), *flags)
    return folder / "checkpoints"


def measure(options: argparse.Namespace) -> BenchmarkResult:
    """Speaks with all lanes and guidance, but few candidates and steps: the peak depends on the longest chunk."""
    rows = []
    with tempfile.TemporaryDirectory(dir=options.workspace) as folder:
        bundle, workspace = options.bundle, Path(folder)
        if not bundle:
            source = options.checkpoints or random_checkpoints(workspace, "--no-stop")
            bundle = str(workspace / "bundle")
            imported = run_ane("import", str(source), "-o", bundle, "--precision", options.precision)
            rows.append(imported.row("ane import"))
        voice = ["--voice", options.voice] if options.voice else []
        spoken = run_ane("say", options.text, "--bundle", bundle, *voice, "--seed", "0", "--json", "--backend",
                         options.backend, "--candidates", str(options.candidates), "--steps", str(options.steps),
                         "--guidance", "2", "--max-codes", str(options.max_codes), "--threads", str(options.threads),
                         "-o", str(workspace / "speech.wav"))
    stated = json.loads(spoken.output)
    rows.append(spoken.row("ane say"))
    settings = {"model": model_name(options), "backend": stated["backend"], "candidates": options.candidates,
                "steps": options.steps, "max_codes": options.max_codes, "threads": options.threads}
    speech = {key: stated[key] for key in ("seconds", "codes", "seconds_by_phase", "real_time_factor", "backend")}
    return BenchmarkResult(rows, settings, (), [BenchmarkPlot("Time of import and speech")], {"speech": speech})


def add_options(add: Callable[..., Any]) -> None:
    add("--precision", choices=("fp32", "fp16", "bf16"), default="bf16", help="what the import stores (default: bf16)")
    add("--text", default=SENTENCE, help="(default: %(default)s)")
    add("--voice", help="(default: the bundle's own; random for official files)")
    add("--backend", default="torch:cpu", help="(default: torch:cpu)")
    add("--candidates", type=positive, default=16, metavar="N", help="(default: 16, as many as lanes)")
    add("--steps", type=positive, default=2, metavar="N", help="diffusion steps (default: 2)")
    add("--max-codes", type=positive, default=500, metavar="N", help="(default: 500, 23 s of audio: the longest chunk)")
    add("--workspace", type=Path, metavar="DIR", help="for temporary files (default: the system's)")


BENCHMARK = Benchmark(measure, "peak memory of import and speech", add_options,
                      "--candidates 2 --max-codes 20", uses=("checkpoints", "threads"))
