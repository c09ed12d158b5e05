"""Answer the questions that only a Mac can answer, the most valuable first, in one report: `python -m tools.mac`.

    python -m tools.mac -o report                   # writes report.json, and report.txt to read, in at most 30 minutes

Every question is a command with a time limit in its own process, so that a crash or hang of Core ML ends only one
question. The report names questions for which no time was left. It contains no paths and no user names.
"""

import argparse
import getpass
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from ane.bundles.opening import DEFAULT_BUNDLE
from ane.bundles.package_records import COMPUTE_UNITS
from ane.system.machine import memory_bytes, processor_name, system_version
from ane.system.version import version

MINUTES = 30.0
TEXT = "Hello there. It speaks on this machine."
TAIL = 4_000  # characters of a command's output that the report keeps
REPORT = "{report}"  # stands, in arguments, for the file with the command's results
TORCH = ("fp32", "fp16")


@dataclass(frozen=True)
class MacQuestion:
    """What is asked, the command that answers it, and the minutes that it should and may take (estimates).

    ``command``: arguments of Python.
    """

    asks: str
    command: tuple[str, ...]
    minutes: float
    limit: float


@dataclass
class MacAnswer:
    """What a command answered.

    Attributes:
        where: Chip, build of macOS, and the compute units that the command names.
        status: Status of the command. ``None`` means that it was stopped, or not started.
        results: The JSON that it wrote.
    """

    asks: str
    command: str
    where: str = ""
    status: int | None = None
    seconds: float = 0.0
    output: str = ""
    results: object = None
    notes: list[str] = field(default_factory=list)


POWER_WHILE_VERIFIED = """
import subprocess, sys
work = subprocess.Popen([sys.executable, "-m", "ane", "verify", *sys.argv[1:]], stdout=subprocess.DEVNULL)
sensors = ["--samplers", "cpu_power,gpu_power,ane_power"]
code = subprocess.run(["sudo", "-n", "powermetrics", "-n", "5", "-i", "1000", *sensors]).returncode
work.kill()
work.wait()
sys.exit(code)
"""


def questions(bundle: str, units: str | None = None) -> Iterator[MacQuestion]:
    """Yield all questions, the most valuable first. The minutes add up to less than ``MINUTES``.

    Args:
        units: Only compute units that Core ML may use. Questions about others, about the GPU and about a loudspeaker
            are left out. ``None`` asks about all.
    """
    ours, only = ("--bundle", bundle), ("--compute-units", units) if units else ()

    def ane(asks: str, minutes: float, *arguments: str, limit: float = 2.0) -> MacQuestion:
        return MacQuestion(asks, ("-m", "ane", *arguments), minutes, limit * minutes)

    def say(asks: str, minutes: float, *flags: str) -> MacQuestion:
        return ane(asks, minutes, "say", TEXT, *ours, "--preset", "fastest", "--seed", "0", *flags)

    yield ane("Does the default voice speak, and how fast?", 0.1, "say", TEXT, "--json", "-o", "default.wav", limit=20)
    yield ane(
        "Does the default voice speak with Core ML?",
        1.5,
        "say",
        TEXT,
        "--backend",
        "coreml",
        *only,
        "--json",
        "-o",
        "default-coreml.wav",
    )
    yield ane(
        "Does each function of the default voice compute what its network does?",
        0.9,
        "verify",
        "--bundle",
        DEFAULT_BUNDLE,
        "--against",
        "coreml",
        *only,
        "--json",
        REPORT,
    )
    if not units:
        yield ane("How long do first loads take, and which functions are refused?", 6, "cache", "prewarm", *ours)
    engine, gpu, cpu = COMPUTE_UNITS[2], COMPUTE_UNITS[1], COMPUTE_UNITS[0]
    for one, minutes, flags in ((engine, 3, ("--layers",)), (gpu, 3, ("--layers",)), (cpu, 2, ())):
        if units not in (None, one):
            continue
        where = ", and if not, from where on" if flags else ""
        yield ane(
            f"Does each function compute what the network does on {one}{where}?",
            minutes,
            "verify",
            *ours,
            "--against",
            "coreml",
            "--compute-units",
            one,
            *flags,
            "--json",
            REPORT,
        )
    yield say(
        "Does it speak with Core ML's own choices, and how fast?",
        0.5,
        "--backend",
        "coreml",
        *only,
        "--json",
        "-o",
        "auto.wav",
    )
    folder = Path(__file__).parents[2] / "tests" / "mac"
    own = str(folder / "test_ownership_of_caches.py")
    pytest = "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-rA"
    if not units:
        yield MacQuestion(
            "States, buffers, caches of compiled models", (*pytest, str(folder), f"--ignore={own}"), 2.2, 4
        )
        yield MacQuestion("Does each of two decoders and of two streams keep its own caches?", (*pytest, own), 0.8, 3)
    several = "--lanes", "16", "--candidates", "16"
    for cache in ("io", "state"):
        yield say(
            f"16 lanes, the cache {cache}",
            0.7,
            "--backend",
            "coreml",
            *only,
            "--cache",
            cache,
            *several,
            "--json",
            "-o",
            f"{cache}.wav",
        )
    for asks, minutes, name, flags in (
        ("The reference", 0.5, "torch", ()),
        ("The reference of 16 lanes", 0.7, "torch16", several),
    ):
        yield say(asks, minutes, "--backend", "torch:cpu", *flags, "--json", "-o", f"{name}.wav")
    for sounds in (("torch.wav", "auto.wav"), ("torch16.wav", "io.wav", "state.wav")):
        yield MacQuestion(
            "How many dB are the mels from those of torch?", ("-m", "tools.mac.compare", *sounds), 0.1, 0.5
        )
    for precision in () if units else TORCH:
        yield say(
            f"torch on MPS in {precision}",
            0.5,
            "--backend",
            "torch:mps",
            "--precision",
            precision,
            "--json",
            "-o",
            f"{precision}.wav",
        )
    if units:
        yield ane(
            f"How fast is each function on {units}?",
            2.5,
            "bench",
            *ours,
            "--backend",
            "coreml",
            *only,
            "--runs",
            "3",
            "-o",
            REPORT,
        )
        return
    yield say("Does it play while it speaks?", 0.5, "--stream")
    yield ane("Which operation runs where?", 3, "plan", *ours, "--json", REPORT)
    yield ane("How fast is each function on each compute unit?", 2.5, "bench", *ours, "--runs", "3", "-o", REPORT)
    yield MacQuestion(
        "What power does the Neural Engine take while it is verified? (needs sudo without a password)",
        ("-c", POWER_WHILE_VERIFIED, *ours),
        0.2,
        0.5,
    )


def environment() -> dict[str, str]:
    """This process's, in which the program and its tests are found from any folder."""
    above = str(Path(__file__).parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join((above, os.environ.get("PYTHONPATH", "")))}


def run_python(arguments: Sequence[str], folder: Path, seconds: float) -> tuple[int | None, str]:
    """Status and output of Python with these arguments; None: it was stopped."""
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            stderr=subprocess.STDOUT,
            errors="replace",
            timeout=seconds,
            check=False,
            env=environment(),
        )
    except subprocess.TimeoutExpired as error:
        return None, (error.stdout or b"").decode(errors="replace") if isinstance(error.stdout, bytes) else ""
    return done.returncode, done.stdout


def ask(
    question: MacQuestion,
    folder: Path,
    seconds: float,
    run: Callable[[Sequence[str], Path, float], tuple[int | None, str]] = run_python,
) -> MacAnswer:
    """The answer to a question, for which ``seconds`` are left."""
    report = folder / "results.json"
    report.unlink(missing_ok=True)
    units = [after for flag, after in pairwise(question.command) if flag == "--compute-units"] or ["units not named"]
    answer = MacAnswer(
        question.asks, " ".join(question.command[:6]), f"{processor_name()}, {system_version()}, {units[0]}"
    )
    limit = min(60 * question.limit, seconds)
    if limit <= 0:
        answer.notes.append("not asked: no time was left")
        return answer
    started = time.monotonic()
    answer.status, output = run([str(report) if part == REPORT else part for part in question.command], folder, limit)
    answer.seconds, answer.output = round(time.monotonic() - started, 1), output[-TAIL:]
    if answer.status is None:
        answer.notes.append(f"stopped after {limit:.0f} s")
    if report.is_file():
        try:
            answer.results = json.loads(report.read_text(encoding="utf-8"))
        except ValueError:
            answer.notes.append("its results are no JSON")
    return answer


def anonymous(text: str, folder: Path) -> str:
    """A report without the folder of the questions, the home folder, the names of user and machine."""
    for private, public in (
        (str(folder), "."),
        (str(Path.home()), "~"),
        (getpass.getuser(), "user"),
        (platform.node(), "host"),
    ):
        if len(private) > 1:
            text = text.replace(json.dumps(private)[1:-1], public)
    return text


def readable(machine: str, answers: Sequence[MacAnswer]) -> str:
    lines = [machine, ""]
    for number, answer in enumerate(answers, 1):
        state = (
            "answered"
            if answer.status == 0
            else "not answered"
            if answer.status is None
            else f"exit status {answer.status}"
        )
        notes = "".join(f"; {note}" for note in answer.notes)
        lines += [f"{number}. {answer.asks}", f"   {answer.where}", f"   {state}, {answer.seconds:g} s{notes}"]
        lines += [f"   | {line}" for line in answer.output.rstrip().splitlines()[-30:]] + [""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mac", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", default="demo", metavar="NAME|PATH", help="with Core ML packages (%(default)s)")
    parser.add_argument("--units", choices=COMPUTE_UNITS, help="ask only about these compute units")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all questions (%(default)g)")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="NAME",
        help="writes NAME.json, to send, and NAME.txt, the same to read",
    )
    options = parser.parse_args(arguments)
    memory = (memory_bytes() or 0) / 1e9
    machine = f"tortoise-ane {version()}, {processor_name()}, {memory:.0f} GB, {system_version()}"
    ends, answers = time.monotonic() + 60 * options.minutes, list[MacAnswer]()
    asked = list(questions(options.bundle, options.units))
    with tempfile.TemporaryDirectory() as folder:
        for number, question in enumerate(asked, 1):
            sys.stderr.write(f"{number} of {len(asked)}: {question.asks} (about {question.minutes:g} min)\n")
            answers.append(ask(question, Path(folder), ends - time.monotonic()))
            content = {"machine": machine, "answers": [asdict(answer) for answer in answers]}
            for suffix, text in ((".json", json.dumps(content, indent=1)), (".txt", readable(machine, answers))):
                path = options.output.with_name(options.output.name + suffix)  # written after each question
                path.write_text(anonymous(text, Path(folder)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
