"""Measure how much memory `ane say -f` and `ane read` need for texts of different lengths.

Each command runs in a separate process. The text has sentences of random words, so that lengths of text, codes and
sound vary as in a book. The peak is the largest resident set, which includes pages of memory-mapped files that the
system can evict. On Linux, a row also has the private memory, which the system cannot evict.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import soundfile

from ane.bench.records import BenchRow, Spread
from ane.bundles import open_model
from ane.commands.arguments import comma_separated, counts
from ane.system.errors import UserError
from ane.system.machine import peak_memory_bytes
from benchmarks.harness import Benchmark, BenchmarkResult, check_names, model_name
from training.text import held_out_sentences

SAMPLING_INTERVAL = 0.02  # seconds between two readings of the memory
CHARACTERS_PER_MINUTE = 900  # approximate speed of the model `demo`
SENTENCES_PER_PARAGRAPH = 6
COMMANDS = ("say", "read")


def drawn_text(minutes: float, seed: int = 0) -> str:
    """Make a text for about ``minutes`` of speech. A sentence has 4 to 16 random words from the held-out sentences."""
    rng = random.Random(seed)
    words = sorted({word.strip(".,?!;:").lower() for sentence in held_out_sentences() for word in sentence.split()})
    sentences: list[str] = []
    while sum(map(len, sentences)) < minutes * CHARACTERS_PER_MINUTE:
        sentences.append(" ".join(rng.choices(words, k=rng.randint(4, 16))).capitalize() + ".")
    paragraphs = (
        sentences[start : start + SENTENCES_PER_PARAGRAPH]
        for start in range(0, len(sentences), SENTENCES_PER_PARAGRAPH)
    )
    return "\n\n".join(" ".join(paragraph) for paragraph in paragraphs) + "\n"


def run_command(*command: str) -> tuple[float, int, int]:
    """Run a command, and return its seconds, its largest resident set, and its largest private memory, both in bytes.

    Raises UserError if the command fails.
    """
    start, peak, private = time.perf_counter(), 0, 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while True:
        peak, private = peak_memory_bytes(process.pid) or peak, max(private, private_bytes(process.pid))
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(SAMPLING_INTERVAL)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise UserError(f"status {process.returncode} from: {' '.join(command)}")
    # Linux tells the peak while the process runs. macOS tells it at the end, in bytes
    return time.perf_counter() - start, peak or usage.ru_maxrss, private


def private_bytes(pid: int) -> int:
    """Return the private resident memory of a process in bytes. Return 0 if it has ended or the system has no /proc."""
    try:
        match = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0


def speak(command: str, preset: str, minutes: int, options: argparse.Namespace) -> BenchRow:
    """Let a command speak a text of about ``minutes`` in a new process, and return a row with its memory."""
    with tempfile.TemporaryDirectory() as folder:
        text, sound = Path(folder) / "text.txt", Path(folder) / "sound.wav"
        text.write_text(drawn_text(minutes), encoding="utf-8")
        source = ["-f", str(text), "--threads", str(options.threads)] if command == "say" else [str(text)]
        seconds, peak, private = run_command(
            sys.executable,
            "-m",
            "ane",
            command,
            *source,
            "--bundle",
            options.bundle or "demo",
            *(["--preset", preset, "--seed", "0"] if preset else []),
            "-q",
            "-o",
            str(sound),
        )
        figures = {"audio_s": soundfile.info(sound).duration, **({"private_gb": private / 1e9} if private else {})}
        return BenchRow(
            f"ane {command}",
            "process",
            "s",
            {"preset": preset, "minutes": minutes},
            Spread.of([seconds]),
            figures,
            peak,
        )


def measure(options: argparse.Namespace) -> BenchmarkResult:
    check_names("--commands", options.commands, COMMANDS)
    rows = []
    usual = ["fastest", "1x10"] if open_model(options.bundle or "demo").presets else [""]
    for minutes in options.minutes:
        for preset in options.presets or usual:
            for command in options.commands:
                rows.append(speak(command, preset, minutes, options))
                print(rows[-1].competitor, preset, f"{minutes} minutes: {rows[-1].peak_bytes / 1e6:.0f} MB", flush=True)
    return BenchmarkResult(rows, {"model": model_name(options), "threads": options.threads})


def add_options(add: Callable[..., Any]) -> None:
    add("--minutes", type=counts, default=[1, 10, 60], metavar="N,…", help="minutes of speech (default: 1,10,60)")
    add(
        "--presets",
        type=comma_separated,
        metavar="NAME,…",
        help="presets (default: fastest,1x10 if the model has presets)",
    )
    add(
        "--commands",
        type=comma_separated,
        default=list(COMMANDS),
        metavar="NAME,…",
        help="commands (default: say,read)",
    )


BENCHMARK = Benchmark(
    measure, "peak memory as the text grows", add_options, "--minutes 1 --presets fastest", uses=("bundle", "threads")
)
