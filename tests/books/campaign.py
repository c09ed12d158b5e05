"""Interrupt a job at every call that changes a file, one after the other, and check what the next run makes of it.

    python -m tests.books.campaign               every call, all faults; writes tests/books/campaign.json
    python -m tests.books.campaign --every 40    every 40th call

A job of 42 chunks with a stand-in synthesizer is spoken, judged and written to a WAV file with subtitles. The library
of ``faults.c``, preloaded, ends the process (before a call, or in the middle of a write) or fills the disk (from a call
on, or for one call alone). Then the job is run again, undisturbed, and must give the same samples, speak no finished
chunk again, and leave no other file. Needs Linux and a C compiler.
"""

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from ane.audio.reader import read_recording
from ane.books.checking.retries import BookChecker, check_book
from ane.books.job_database import FILE
from ane.books.output import OutputOptions, write_book_files
from ane.books.store import JobStore
from ane.system.errors import UserError
from tests.books.stand_in import StandInSpeaker, book, plan_for, run_job, sounds

HERE = Path(__file__).parent
RESULTS = HERE / "campaign.json"
FAULTS = {1: "process ends before the call", 2: "process ends within the call", 3: "disk is full from the call on",
          4: "disk is full for the call"}
ENDED, REFUSED = 86, 3              # exit statuses: of faults.c, and of a child that reported an error in one line


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


def whole_run(folder: Path, speaker: StandInSpeaker | None = None) -> int:
    """Speak what is missing and write the files; returns the number of chunks that were spoken."""
    spoken = run_job(folder / "book.wav.job", book(), speaker)
    store = JobStore(folder / "book.wav.job")
    try:
        speaker = StandInSpeaker()
        check_book(store, plan_for(speaker, book(), store.seed(7)), speaker, BookChecker(retries=1))
        write_book_files(store, OutputOptions(folder / "book.wav", srt=True))
    finally:
        store.close()
    return spoken


def in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked process; its exit status: 0, ``ENDED``, ``REFUSED``, or 1 for another error."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        work()
        os._exit(0)
    except UserError as error:
        os._exit(REFUSED if "\n" not in str(error) else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def state(folder: Path) -> dict[str, object]:
    """What must be equal after every interruption: the samples of all chunks and of the file, and the files' names."""
    job = folder / "book.wav.job"
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")
                   if not path.name.startswith(f"{FILE}-"))
    return {"sounds": sounds(job), "file": read_recording(folder / "book.wav")[0].tobytes(),
            "subtitles": (folder / "book.srt").read_text(encoding="utf-8"), "names": names}


def finished(folder: Path) -> int:
    """Number of chunks with a sound."""
    if not (folder / "book.wav.job" / FILE).exists():
        return 0
    store = JobStore(folder / "book.wav.job")
    try:
        return sum(chunk.samples is not None for chunk in store.chunks())
    finally:
        store.close()


def interrupt(counter: FaultCounter, folder: Path, expected: dict[str, object], call: int, mode: int) -> str | None:
    """Disturb a run at a call, then run again. Returns what is wrong, or None."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()

    def disturbed() -> None:
        counter.arm(folder, call, mode)
        whole_run(folder)

    ended = in_child(disturbed)
    if ended not in ((ENDED,) if mode <= 2 else (0, REFUSED)):
        return f"the disturbed run ended with status {ended}"
    kept = finished(folder)
    spoken = whole_run(folder)
    if kept + spoken != len(expected["sounds"]):        # type: ignore[arg-type]
        return f"{kept} chunks were finished and {spoken} spoken again"
    found = state(folder)
    wrong = [name for name, value in expected.items() if found[name] != value]
    return f"{', '.join(wrong)} differ" if wrong else None


def kill_at_random(folder: Path, expected: dict[str, object], times: int, seed: int = 0) -> list[str]:
    """Kill one of two processes that share a job with SIGKILL, ``times`` times, then let them finish.

    Returns what is wrong. A killed process may lose the chunk that it was speaking, and no other.
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

        whole_run(folder, StandInSpeaker(before=record))

    def start() -> int:
        child = os.fork()
        if not child:
            os._exit(0 if not _raises(work) else 1)
        return child

    children = [start(), start()]
    for _ in range(times):
        time.sleep(delays.uniform(0.01, 0.15))
        victim = children.pop(0)
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        children.append(start())
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    found = state(folder)
    wrong = [f"{name} differ" for name, value in expected.items() if found[name] != value]
    count, chunks = len(log.read_text(encoding="utf-8").splitlines()), len(found["sounds"])     # type: ignore[arg-type]
    wrong += [f"{chunks} chunks were spoken {count} times"] if count > chunks + times else []
    return wrong + [f"a process ended with status {status}" for status in statuses if status]


def _raises(work: Callable[[], None]) -> bool:
    try:
        work()
        return False
    except BaseException:
        traceback.print_exc()
        return True


def campaign(every: int, kills: int, first: int = 1) -> dict[str, object]:
    counter = FaultCounter()
    with tempfile.TemporaryDirectory() as root:
        undisturbed, folder = Path(root) / "undisturbed", Path(root) / "book"
        undisturbed.mkdir()
        counter.arm(undisturbed, 0, 0)
        whole_run(undisturbed)
        calls = counter.calls
        counter.disarm()
        expected = state(undisturbed)
        trials, failures = 0, []
        for mode in FAULTS:
            for call in range(first + (mode - 1) * every // len(FAULTS), calls + 1, every):
                trials += 1
                wrong = interrupt(counter, folder, expected, call, mode)
                if wrong:
                    failures.append({"call": call, "fault": FAULTS[mode], "wrong": wrong})
        shutil.rmtree(folder, ignore_errors=True)
        failures += [{"fault": "SIGKILL", "wrong": wrong} for wrong in kill_at_random(folder, expected, kills)] \
            if kills else []
    return {"calls_of_a_run": calls, "every": every, "faults": list(FAULTS.values()), "trials": trials,
            "sigkills": kills, "failures": failures, "cpu_seconds": round(sum(os.times()[:4]))}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "LD_PRELOAD": str(compile_faults(Path(folder)))}
            command = [sys.executable, "-m", "tests.books.campaign", *sys.argv[1:]]
            return subprocess.run(command, env=environment, check=False).returncode
    result = campaign(args.every, args.kills)
    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(result) + "\n")
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
