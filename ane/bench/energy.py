"""Energy of the chip while something runs, from powermetrics; macOS only.

powermetrics runs as root alone. Its figures are estimates of the CPU, the GPU and the Neural Engine together and of all
that runs, not to be compared between devices (powermetrics(1)).
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
PATIENCE = 10.0     # seconds for powermetrics to end
COMMAND = ("sudo", "-n", "/usr/bin/powermetrics", "--samplers", "cpu_power", "-i", str(INTERVAL_MS))
SAMPLE = re.compile(r"\(([\d.]+)ms elapsed\).*?^Combined Power \(CPU \+ GPU \+ ANE\): *([\d.]+) *mW",
                    re.DOTALL | re.MULTILINE)
ALLOW = ("energy is measured by powermetrics, which only root may run: `sudo -v` just before `ane bench`, or add by "
         "`sudo visudo` the line `%admin ALL=(root) NOPASSWD: /usr/bin/powermetrics`")

T = TypeVar("T")


def why_not() -> str | None:
    """Why energy cannot be measured, with what to do about it; None: it can."""
    if sys.platform != "darwin":
        return "energy is measured on macOS only"
    try:
        tried = subprocess.run((*COMMAND, "-n", "1"), capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ALLOW
    return None if tried.returncode == 0 else ALLOW


def during(work: Callable[[], T]) -> tuple[T, float | None]:
    """What ``work`` gives, and the joules of the chip meanwhile; None when too little was sampled."""
    process = subprocess.Popen((*COMMAND, "-b", "1"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    printed: list[bytes] = []
    over = threading.Event()

    def listen() -> None:
        """Until it is over; powermetrics then ends at its next line, for nobody but root may send it a signal."""
        with process.stdout:
            while not over.is_set() and (piece := os.read(process.stdout.fileno(), 2**16)):
                printed.append(piece)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    started = time.perf_counter()
    try:
        result = work()
    finally:
        seconds = time.perf_counter() - started
        over.set()
        listener.join(PATIENCE)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
    watts = mean_watts(b"".join(printed).decode(errors="replace"))
    return result, None if watts is None else watts * seconds


def mean_watts(printed: str) -> float | None:
    """Mean power over all samples that powermetrics printed, each weighted by how long it took; None: there is none."""
    samples = [(float(elapsed), float(milliwatts)) for elapsed, milliwatts in SAMPLE.findall(printed)]
    total = sum(elapsed for elapsed, _ in samples)
    return sum(elapsed * milliwatts for elapsed, milliwatts in samples) / total / 1000 if total else None
