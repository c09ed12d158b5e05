"""Peak memory of `ane say -f` and `ane read` as the text grows, each run in its own process.

The text is sentences of drawn words, so that lengths of text, codes and sound vary as in a book. The resident set
includes pages of memory-mapped files, which the system can evict.
"""

import argparse
import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import soundfile

from ane.bench.records import BenchRow
from ane.commands.arguments import comma_separated, counts
from ane.system.errors import UserError
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult, model_name
from benchmarks.memory import run_ane
from training.text import held_out_sentences

CHARACTERS_PER_MINUTE = 900     # of the embedded voice
SENTENCES_PER_PARAGRAPH = 6
COMMANDS = ("say", "read")


def drawn_text(minutes: float, seed: int = 0) -> str:
    """Paragraphs of sentences of 4 to 16 words of the held-out sentences, about ``minutes`` of speech."""
    rng = random.Random(seed)
    words = sorted({word.strip(".,?!;:").lower() for sentence in held_out_sentences() for word in sentence.split()})
    sentences: list[str] = []
    while sum(map(len, sentences)) < minutes * CHARACTERS_PER_MINUTE:
        sentences.append(" ".join(rng.choices(words, k=rng.randint(4, 16))).capitalize() + ".")
    paragraphs = (sentences[start:start + SENTENCES_PER_PARAGRAPH]
                  for start in range(0, len(sentences), SENTENCES_PER_PARAGRAPH))
    return "\n\n".join(" ".join(paragraph) for paragraph in paragraphs) + "\n"


def speak(command: str, preset: str, minutes: int, options: argparse.Namespace) -> BenchRow:
    """Narrate a text of about ``minutes`` in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        text, sound = Path(folder) / "text.txt", Path(folder) / "sound.wav"
        text.write_text(drawn_text(minutes), encoding="utf-8")
        source = ["-f", str(text), "--threads", str(options.threads)] if command == "say" else [str(text)]
        cost = run_ane(command, *source, "--bundle", options.bundle or "demo", "--preset", preset, "--seed", "0", "-q",
                       "--backend", "torch:cpu", "-o", str(sound))
        row = cost.row(f"ane {command}", preset=preset, minutes=minutes)
        return replace(row, figures={**row.figures, "audio_s": soundfile.info(sound).duration})


def measure(options: argparse.Namespace) -> BenchmarkResult:
    unknown = [command for command in options.commands if command not in COMMANDS]
    if unknown:
        raise UserError(f"--commands {unknown[0]}: there are {', '.join(COMMANDS)}")
    rows = []
    for minutes in options.minutes:
        for preset in options.presets:
            for command in options.commands:
                rows.append(speak(command, preset, minutes, options))
                print(rows[-1].competitor, preset, f"{minutes} minutes: {rows[-1].peak_bytes / 1e6:.0f} MB", flush=True)
    return BenchmarkResult(rows, {"model": model_name(options), "threads": options.threads}, (),
                           [BenchmarkPlot("Time as the text grows", x="minutes")])


def add_options(add: Callable[..., Any]) -> None:
    add("--minutes", type=counts, default=[1, 10, 60], metavar="N,…", help="of speech (default: 1,10,60)")
    add("--presets", type=comma_separated, default=["fastest", "1x10"], metavar="NAME,…",
        help="(default: fastest,1x10)")
    add("--commands", type=comma_separated, default=list(COMMANDS), metavar="NAME,…", help="(default: say,read)")


BENCHMARK = Benchmark(measure, "peak memory as the text grows", add_options, "--minutes 1 --presets fastest",
                      uses=("threads",))
