"""Energy that the chip uses while a function runs, from powermetrics; macOS only.

powermetrics needs root. Its figures are estimates for CPU, GPU and Neural Engine together and for every running
program, and are not comparable between devices (powermetrics(1)).
"""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

INTERVAL_MS = 200
EXIT_SECONDS = 10.0     # limit for powermetrics to exit
COMMAND = ("sudo", "-n", "/usr/bin/powermetrics", "--samplers", "cpu_power", "-i", str(INTERVAL_MS))
SAMPLE = re.compile(r"\(([\d.]+)ms elapsed\).*?^Combined Power \(CPU \+ GPU \+ ANE\): *([\d.]+) *mW",
                    re.DOTALL | re.MULTILINE)
ADVICE = ("energy is measured with powermetrics, which needs root: run `sudo -v` just before `ane bench`, or add the "
         "line `%admin ALL=(root) NOPASSWD: /usr/bin/powermetrics` with `sudo visudo`")

T = TypeVar("T")


def reason_unavailable() -> str | None:
    """Why energy cannot be measured, and what to do about it; None: it can."""
    if sys.platform != "darwin":
        return "energy is measured on macOS only"
    try:
        tried = subprocess.run((*COMMAND, "-n", "1"), capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ADVICE
    return None if tried.returncode == 0 else ADVICE


def measure_joules(work: Callable[[], T]) -> tuple[T, float | None]:
    """Result of ``work``, and the joules that the chip used meanwhile; None when no sample was taken."""
    process = subprocess.Popen((*COMMAND, "-b", "1"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    printed: list[bytes] = []
    finished = threading.Event()

    def collect() -> None:
        """Read until the work has finished. powermetrics then ends at its next line: only root may send it a signal."""
        with process.stdout:
            while not finished.is_set() and (piece := os.read(process.stdout.fileno(), 2**16)):
                printed.append(piece)

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    started = time.perf_counter()
    try:
        result = work()
    finally:
        seconds = time.perf_counter() - started
        finished.set()
        reader.join(EXIT_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS)
    watts = mean_watts(b"".join(printed).decode(errors="replace"))
    return result, None if watts is None else watts * seconds


def mean_watts(printed: str) -> float | None:
    """Mean power of all samples that powermetrics printed, each weighted by its duration; None without samples."""
    samples = [(float(elapsed), float(milliwatts)) for elapsed, milliwatts in SAMPLE.findall(printed)]
    total = sum(elapsed for elapsed, _ in samples)
    return sum(elapsed * milliwatts for elapsed, milliwatts in samples) / total / 1000 if total else None
