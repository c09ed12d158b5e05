"""Interrupt work at every call that changes a file, one after the other, and check what the next run makes of it.

    python -m tests.campaigns kill               every call once, the faults in turn; writes results/kill.json
    python -m tests.campaigns kill --every 1     every call with every fault

A narration (a job of 22 chunks with a stand-in synthesizer, spoken, judged and written with subtitles), a second
writing of its files (what the user changes in them between the interruption and the next run must be kept), speech
and a voice written over a private file, an import and a conversion (with a stand-in converter). The library of
``faults.c``, preloaded, ends the process (before a call, or in the middle of a write), fills the disk, or lets a call
fail. Then the work is run again, undisturbed, and must give the same files; what was there before is there until
then. Two narrators of one job are killed, and stopped for longer than a lease, at random moments. Needs Linux and a C
compiler.
"""

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ane.audio import writing
from ane.audio.reader import read_recording
from ane.books import narration, store
from ane.books.job_database import FILE
from ane.books.output import OutputOptions, write_book_files
from ane.books.retries import BookChecker, check_book
from ane.books.store import JobStore
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import record
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.bundles.writing import write_bundle
from ane.models.fastspeech.checkpoints import import_fastspeech
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.voices.voice import Voice, load_voice, save_voice
from converters.conversion import convert
from tests.books.stand_in import StandInSpeaker, book, plan_for, run_job, sounds
from tests.fastspeech_files import write_fastspeech

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "kill.json"
FAULTS = {
    1: "process ends before the call",
    2: "process ends within the call",
    3: "disk is full from the call on",
    4: "disk is full for the call",
    5: "the call fails",
    6: "renames fail from the call on, as between two disks",
}
ENDED, REFUSED = 86, 3  # exit statuses: of faults.c, and of a child that reported an error in one line
FEW, SHORT = 500, 60  # calls of work of which each is tried with every fault: by default, and always
BOOK = book(10)
IN_ONE_JOB = 10  # signals, before the next job is begun: it is done after about so many
SHORT_LEASE = 0.4  # seconds; a process is stopped for up to twice as long


class FaultCounter:
    """The library of ``faults.c``, if it is preloaded."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self.library.arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
        self.library.counted.restype = ctypes.c_long

    def arm(self, folder: Path, call: int, mode: int) -> None:
        self.library.arm(os.fsencode(folder), call, mode)

    def disarm(self) -> None:
        self.library.arm(b"", 0, 0)

    @property
    def calls(self) -> int:
        return int(self.library.counted())


def compile_faults(folder: Path) -> Path:
    library = folder / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-w", "-o", library, HERE / "faults.c", "-ldl"], check=True)
    return library


def whole_run(folder: Path, speaker: StandInSpeaker | None = None, title: str = "") -> int:
    """Speak what is missing and write the files; returns the number of chunks that were spoken."""
    spoken = run_job(folder / "book.wav.job", BOOK, speaker)
    with closing(JobStore(folder / "book.wav.job")) as job:
        speaker = StandInSpeaker()
        check_book(job, plan_for(speaker, BOOK, job.seed(7)), speaker, BookChecker(retries=1))
        write_book_files(job, OutputOptions(folder / "book.wav", srt=True, title=title))
    return spoken


def in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked process; its exit status: 0, ``ENDED``, ``REFUSED``, or 1 for another error."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(exit_status(work))


def exit_status(work: Callable[[], object]) -> int:
    try:
        work()
        return 0
    except UserError:
        return REFUSED
    except BaseException:
        traceback.print_exc()
        return 1


def narration_state(folder: Path) -> dict[str, object]:
    """What must be equal after every interruption: the samples of all chunks and of the file, and the files' names."""
    job = folder / "book.wav.job"
    names = [name for name in names_in(folder) if f"/{FILE}-" not in name]
    return {
        "sounds": sounds(job),
        "file": read_recording(folder / "book.wav")[0].tobytes(),
        "subtitles": (folder / "book.srt").read_text(encoding="utf-8"),
        "names": names,
    }


def names_in(folder: Path) -> list[str]:
    """The names of all files and folders, but for empty staging folders without a lock, which are kept for a day."""
    empty = {path for path in folder.rglob("*.partial") if {file.name for file in path.iterdir()} <= {".lock.new"}}
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not empty & {path, path.parent})


def finished(folder: Path) -> int:
    """Number of chunks with a sound."""
    if not (folder / "book.wav.job" / FILE).exists():
        return 0
    with closing(JobStore(folder / "book.wav.job")) as job:
        return sum(chunk.samples is not None for chunk in job.chunks())


@dataclass(frozen=True)
class Disturbed:
    """Work that is interrupted.

    Attributes:
        work: does it in a folder, or what is left of it. state: what must be equal after every interruption.
        prepare: puts there what is there before. lost: called after an interruption; returns a function of what the
            next run of ``work`` returns, which says what was lost, or None.
    """

    name: str
    work: Callable[[Path], object]
    state: Callable[[Path], dict[str, Any]]
    prepare: Callable[[Path], object] = lambda folder: None
    lost: Callable[[Path], Callable[[Any], str | None]] = lambda folder: lambda returned: None


def narrating() -> Disturbed:
    def lost(folder: Path) -> Callable[[Any], str | None]:
        """Every chunk that was finished is kept, and no other is spoken again."""
        kept = finished(folder)

        def judge(spoken: int) -> str | None:
            chunks = len(sounds(folder / "book.wav.job"))
            return f"{kept} chunks were finished and {spoken} spoken again" if kept + spoken != chunks else None

        return judge

    return Disturbed("narration", whole_run, narration_state, lost=lost)


def rewriting() -> Disturbed:
    def lost(folder: Path) -> Callable[[Any], str | None]:
        """A file that the user changes after the interruption is refused and kept."""
        for name in ("book.wav", "book.srt"):
            content = (folder / name).read_bytes()
            changed = content + b"the user's"
            (folder / name).write_bytes(changed)
            try:
                whole_run(folder, title="After")
                return lambda spoken: f"the next run did not refuse {name}, which its user had changed"
            except UserError:
                if (folder / name).read_bytes() != changed:
                    return lambda spoken: f"{name} was lost, which its user had changed"
            (folder / name).write_bytes(content)
        return lambda spoken: None

    return Disturbed(
        "second writing",
        lambda folder: whole_run(folder, title="Second"),
        narration_state,
        lambda folder: whole_run(folder, title="First"),
        lost,
    )


def one_file(name: str, file: str, write: Callable[[Path, int], object], read: Callable[[Path], Any]) -> Disturbed:
    """Work that replaces one file of the user, with another, both private. ``read``: its content."""

    def prepare(folder: Path) -> None:
        write(folder / file, 1)
        (folder / file).chmod(0o600)

    def state(folder: Path) -> dict[str, Any]:
        return {
            "content": read(folder / file),
            "names": names_in(folder),
            "mode": stat.S_IMODE((folder / file).stat().st_mode),
        }

    with tempfile.TemporaryDirectory() as place:
        whole = []
        for number in (1, 2):
            write(Path(place) / file, number)
            whole.append(read(Path(place) / file))

    def lost(folder: Path) -> Callable[[Any], str | None]:
        """The former file or the new one is there, whole and with its mode."""
        found = state(folder)
        wrong = found["content"] not in whole or found["mode"] != 0o600
        return lambda returned: "neither the former file nor the new one is there" if wrong else None

    return Disturbed(name, lambda folder: write(folder / file, 2), state, prepare, lost)


def speaking() -> Disturbed:
    """`ane say -o` over a file that exists, as it writes: piece by piece."""

    def write(path: Path, number: int) -> None:
        with writing(path, 24000) as append:
            for piece in range(5):
                append(np.full(4096, 0.1 * number + 0.01 * piece, np.float32))

    return one_file("say", "speech.wav", write, Path.read_bytes)


def adding_a_voice() -> Disturbed:
    """`ane voices add --force` over a voice that exists."""

    def write(path: Path, number: int) -> None:
        save_voice(path, Voice(np.full((1, 64), number, np.float32), np.full((1, 128), number, np.float32), "ann"))

    def read(path: Path) -> tuple[bytes, bytes]:
        voice = load_voice(path)
        return voice.ar.tobytes(), voice.diffusion.tobytes()

    return one_file("voice", "ann.safetensors", write, read)


class StandInTarget:
    """A converter whose packages are a few bytes."""

    name, unmerged, networks = "onnx", 0, ("fastspeech",)

    def check(self, options: Sequence[Any], model: Any) -> None:
        pass

    def versions(self) -> tuple[str, ...]:
        return ()

    def package(
        self, model: Any, network: str, options: Any, work: Path, progress: Callable[[str], None], licence: str
    ) -> PackageRecord:
        path = f"packages/{network}-{options.precision}.onnx"
        with replacing(work / path, directory=True) as folder:
            (folder / "graph.onnx").write_text(options.precision * 100)
        return PackageRecord(
            network,
            options.precision,
            path,
            [record(work, f"{path}/graph.onnx")],
            {"speak": FunctionRecord("speak", {})},
            format=self.name,
        )


@dataclass(frozen=True)
class StandInOptions:
    precision: str

    def stored(self, network: str) -> str:
        return self.precision


def bundle_state(folder: Path) -> dict[str, Any]:
    Bundle(folder / "out").verify()
    return {"names": names_in(folder), "bundle": (folder / "out" / "bundle.json").read_text()}


def no_bundle_left(folder: Path) -> Callable[[Any], str | None]:
    """The one that was there before, or the new one, is intact somewhere."""
    for path in [folder / "out", *(file.parent for file in folder.rglob("bundle.json"))]:
        try:
            Bundle(path).verify()
            return lambda returned: None
        except UserError:
            continue
    return lambda returned: "no intact bundle is left"


def importing(model: Any) -> Disturbed:
    return Disturbed(
        "import",
        lambda folder: write_bundle(model, folder / "out", overwrite=True),
        bundle_state,
        lambda folder: write_bundle(model, folder / "out", description="the one before"),
        no_bundle_left,
    )


def converting(model: Any) -> Disturbed:
    def work(folder: Path) -> None:
        convert(
            model,
            folder / "out",
            [StandInOptions(precision) for precision in ("fp32", "fp16")],
            overwrite=(folder / "out").exists(),
            target=StandInTarget(),
        )

    return Disturbed("conversion", work, bundle_state)


def interrupt(
    counter: FaultCounter, scenario: Disturbed, folder: Path, expected: dict[str, Any], call: int, mode: int
) -> str | None:
    """Disturb a run at a call, then run again. Returns what is wrong, or None."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    scenario.prepare(folder)

    def disturbed() -> None:
        counter.arm(folder, call, mode)
        scenario.work(folder)

    ended = in_child(disturbed)
    if ended not in ((ENDED,) if mode <= 2 else (0, REFUSED)):
        return f"the disturbed run ended with status {ended}"
    try:
        if ended == 0 and scenario.state(folder) != expected:
            return "the disturbed run ended with status 0, and its files are wrong"
        judge = scenario.lost(folder)
        lost = judge(scenario.work(folder))
        if lost:
            return lost
        found = scenario.state(folder)
    except (UserError, OSError) as error:
        return f"the next run failed: {error}"
    wrong = [name for name, value in expected.items() if found[name] != value]
    return f"{', '.join(wrong)} differ" if wrong else None


def kill_at_random(folder: Path, expected: dict[str, Any], times: int, seed: int = 0, stop: bool = False) -> list[str]:
    """Kill one of two processes that share a job with SIGKILL, ``times`` times, then let them finish.

    ``stop``: stop it for a while, as a sleeping laptop does, and let it go on. Returns what is wrong. A killed process
    may lose the chunk that it was speaking, and no other.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    delays, log = random.Random(seed), folder.parent / "spoken.txt"
    log.write_text("")

    def work() -> None:
        def record(text: str) -> None:
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
            time.sleep(0.002)

        if stop:
            store.LEASE = narration.LEASE = SHORT_LEASE
        whole_run(folder, StandInSpeaker(before=record))

    def start() -> int:
        child = os.fork()
        if not child:
            os._exit(exit_status(work))
        return child

    children = [start(), start()]
    for _ in range(times):
        time.sleep(delays.uniform(0.01, 0.15))
        victim = children.pop(0)
        if stop and os.waitpid(victim, os.WNOHANG) == (0, 0):
            os.kill(victim, signal.SIGSTOP)
            time.sleep(delays.uniform(0.0, 2 * SHORT_LEASE))
            os.kill(victim, signal.SIGCONT)
            children.append(victim)
            continue
        if not stop:
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
        children.append(start())
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if stop:
        statuses = [status for status in statuses if status != REFUSED]
    found = narration_state(folder)
    wrong = [f"{name} differ" for name, value in expected.items() if found[name] != value]
    count, chunks = len(log.read_text(encoding="utf-8").splitlines()), len(found["sounds"])  # type: ignore[arg-type]
    wrong += [f"{chunks} chunks were spoken {count} times"] if count > chunks + times and not stop else []
    return wrong + [f"a process ended with status {status}" for status in statuses if status]


def campaign(every: int, kills: int, stops: int, only: str | None, first: int = 1) -> dict[str, Any]:
    counter, results, failures = FaultCounter(), {}, []
    with tempfile.TemporaryDirectory() as root:
        os.environ["ANE_HOME"] = f"{root}/home"
        model = import_fastspeech(write_fastspeech(Path(root) / "model.pt"))
        bundle = write_bundle(model, Path(root) / "bundle")
        undisturbed, folder = Path(root) / "undisturbed", Path(root) / "work"
        for scenario in (narrating(), rewriting(), speaking(), adding_a_voice(), importing(model), converting(bundle)):
            if only not in (None, scenario.name):
                continue
            shutil.rmtree(undisturbed, ignore_errors=True)
            undisturbed.mkdir()
            scenario.prepare(undisturbed)
            counter.arm(undisturbed, 0, 0)
            scenario.work(undisturbed)
            calls = counter.calls
            counter.disarm()
            expected, trials = scenario.state(undisturbed), 0
            step = 1 if calls <= SHORT or (calls <= FEW and every <= len(FAULTS)) else every
            for mode in FAULTS:
                for call in range(first + (mode - 1) * step // len(FAULTS), calls + 1, step):
                    trials += 1
                    wrong = interrupt(counter, scenario, folder, expected, call, mode)
                    if wrong:
                        failures.append({"work": scenario.name, "call": call, "fault": FAULTS[mode], "wrong": wrong})
            results[scenario.name] = {"calls": calls, "trials": trials}
        for signal_name, times in (("SIGKILL", kills), ("SIGSTOP", stops)):
            if times:
                shutil.rmtree(undisturbed, ignore_errors=True)
                undisturbed.mkdir()
                whole_run(undisturbed)
                expected = narration_state(undisturbed)
                for first in range(0, times, IN_ONE_JOB):
                    failures += [
                        {"fault": signal_name, "wrong": wrong}
                        for wrong in kill_at_random(
                            folder, expected, min(IN_ONE_JOB, times - first), first, signal_name == "SIGSTOP"
                        )
                    ]
    return {
        "every": every,
        "faults": list(FAULTS.values()),
        "work": results,
        "trials": sum(each["trials"] for each in results.values()),
        "sigkills": kills,
        "sigstops": stops,
        "failures": failures,
        "cpu_seconds": round(sum(os.times()[:4])),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.campaigns kill", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=len(FAULTS))
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--stops", type=int, default=40)
    parser.add_argument("--only", help="narration, second writing, say, voice, import, conversion or none")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "LD_PRELOAD": str(compile_faults(Path(folder)))}
            command = [sys.executable, "-m", "tests.campaigns", "kill", *arguments]
            return subprocess.run(command, env=environment, check=False).returncode
    result = campaign(args.every, args.kills, args.stops, args.only)
    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(result) + "\n")
    return 1 if result["failures"] else 0
