"""Interrupt work at every call that changes a file, one call per run, and check that the next run completes the work.

    python -m tools.campaigns kill               every call once, with alternating faults (writes results/kill.json)
    python -m tools.campaigns kill --every 1     every call with every fault

The campaign interrupts this work:

- a narration: a job of 22 chunks that a stand-in speaks, judges, and writes with subtitles
- a second writing of its files, where changes that the user makes before the next run must be kept
- speech, and a voice, written over a private file
- an import, and a conversion with a stand-in converter

The preloaded library of ``faults.c`` ends the process before a call or in the middle of a write, fills the disk, or
lets a call fail. Then the work runs again undisturbed, and must produce the same files. Until then, the old files must
stay. Two processes that narrate one job are also killed at random moments, or stopped for longer than a lease. This
needs Linux and a C compiler.
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
from typing import Any

from ane.books import narration, store
from ane.bundles.writing import write_bundle
from ane.models.fastspeech.checkpoints import import_fastspeech
from ane.system.errors import UserError
from tests.books.stand_in import StandInSpeaker
from tests.fastspeech_files import write_fastspeech
from tools.campaigns.interrupted_work import (
    Disturbed,
    adding_a_voice,
    converting,
    importing,
    narrating,
    narration_state,
    rewriting,
    speaking,
    whole_run,
)

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
ENDED, REFUSED = 86, 3  # exit status of a process that faults.c ended, and of one that reported an error in one line
# work with fewer calls gets every fault at each call: by default, and also where the campaign is no sample
FEW, SHORT = 500, 60
SAMPLE = 100  # from this --every on, the campaign is a sample: every third call of short work gets one fault
IN_ONE_JOB = 10  # signals that one job gets. After about so many, it is done
SHORT_LEASE = 0.4  # seconds of a lease. A process is stopped for up to twice as long


class FaultCounter:
    """A counter of the calls that change files, which also injects faults, if ``faults.c`` is preloaded."""

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


def in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked process. Return its exit status: 0, ``ENDED``, ``REFUSED``, or 1 for another error."""
    return status_of(start_child(work))


def start_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked process. Return the process ID at once."""
    child = os.fork()
    if not child:
        os._exit(exit_status(work))
    return child


def status_of(child: int) -> int:
    """Wait for a process. Return its exit status, or the number of the signal that ended it, negated."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def exit_status(work: Callable[[], object]) -> int:
    try:
        work()
        return 0
    except UserError:
        return REFUSED
    except BaseException:
        traceback.print_exc()
        return 1


def interrupt(
    counter: FaultCounter, scenario: Disturbed, folder: Path, expected: dict[str, Any], call: int, mode: int
) -> str | None:
    """Disturb a run at a call, then run again. Return in words what is wrong, or ``None``."""
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
    """Kill one of two processes that share a job, ``times`` times, then let them finish. Return in words what is wrong.

    A killed process may lose only the chunk that it was speaking.

    Args:
        stop: Whether to stop the process for a while and let it continue, as a sleeping laptop does, instead.
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

    children = [start_child(work), start_child(work)]
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
        children.append(start_child(work))
    statuses = [status_of(child) for child in children]
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
            if calls <= SHORT:
                step = 3 * len(FAULTS) if every >= SAMPLE else 1
            else:
                step = 1 if calls <= FEW and every <= len(FAULTS) else every
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
    parser = argparse.ArgumentParser(prog="tools.campaigns kill", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=len(FAULTS))
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--stops", type=int, default=40)
    parser.add_argument("--only", help="narration, second writing, say, voice, import, conversion or none")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "LD_PRELOAD": str(compile_faults(Path(folder)))}
            command = [sys.executable, "-m", "tools.campaigns", "kill", *arguments]
            return subprocess.run(command, env=environment, check=False).returncode
    result = campaign(args.every, args.kills, args.stops, args.only)
    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(result) + "\n")
    return 1 if result["failures"] else 0
