"""Jobs in processes of their own: peaks of memory do not mix, and macOS may end one that Core ML brings down.

``python -m ane.bench.worker`` reads a job as JSON from standard input and writes messages to standard output, a line
each: {"begin": row}, {"row": row}, {"spoken": …} or {"error": "…"}.
"""

import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.backends.tuning import Tuning
from ane.bench import energy
from ane.bench.figures import Calls, Row, Spoken
from ane.models.tortoise.settings import Settings
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bench.measure import Subject
    from ane.bundles import Model

MESSAGE = "ane-bench: "     # before each line, for libraries write to standard output too


@dataclass(frozen=True)
class Job:
    """What a process is to measure, or with ``text`` to say.

    Attributes:
        bundle, checkpoints: the model, by path; one of the two.
        tuning: the engine; its units hold for every network, under the key "".
        lanes: of torch's decoder. runs: predictions of each function. networks, precisions: None: all.
        compiled: folder for compiled models, of Core ML's jobs.
        every: all functions of packages, not only those that the sentence takes.
        skip: rows (``Row.what``) that are there already.
    """

    tuning: Tuning
    bundle: str | None = None
    checkpoints: str | None = None
    preset: str | None = None      # None: the model's default
    lanes: tuple[int, ...] = (1, 4, 8, 16)
    runs: int = 20
    networks: tuple[str, ...] | None = None
    precisions: tuple[str, ...] | None = None
    every: bool = False
    compiled: str | None = None
    skip: tuple[tuple[str, str, str], ...] = ()
    text: str | None = None
    voice: str | None = None
    seed: int = 0

    @property
    def units(self) -> str | None:
        return self.tuning.units.get("")


def read_job(text: str) -> Job:
    stated = json.loads(text)
    for name in ("lanes", "networks", "precisions", "skip"):
        if stated[name] is not None:
            stated[name] = tuple(tuple(item) if isinstance(item, list) else item for item in stated[name])
    return Job(**stated | {"tuning": Tuning(**stated["tuning"])})


# In the process of its own

def work(job: Job, send: Callable[[dict[str, Any]], None]) -> None:
    """Do a job and send the messages of it. Raises UserError when nothing of it can be done."""
    from ane.bench.measure import rows
    from ane.bundles import open_model

    model = open_model(Path(job.bundle) if job.bundle else None, job.checkpoints)
    if job.text is not None:
        send({"spoken": speak(job, model)})
        return
    for row in rows(subjects(job, model), job.runs, frozenset(job.skip), lambda row: send({"begin": asdict(row)})):
        send({"row": asdict(row)})


def subjects(job: Job, model: "Model") -> Iterator["Subject"]:
    """What the job is to measure, on its engine."""
    tuning = job.tuning
    engine, _, device = tuning.backend.partition(":")
    calls = Calls.of(Settings.of(job.preset, model.settings))
    networks = None if job.networks is None else frozenset(job.networks)
    if engine == "torch":
        from ane.backends.torch.backend import TorchBackend
        from ane.bench.uses import Uses

        backend = TorchBackend(model, device or "auto", tuning.precision, tuning.threads, keep=False)
        for subject in Uses(backend, calls).subjects(tuning.threads, tuning.precision, tuning.backend, job.lanes):
            if networks is None or subject.row.network in networks:
                yield subject
        return
    from ane.bench import packages

    wanted = packages.Wanted(networks, None if job.precisions is None else frozenset(job.precisions), job.every)
    if engine == "mil":
        from ane.backends.mil import Arithmetic, MilEngine

        yield from packages.subjects(model, MilEngine(Arithmetic(fp16=device == "fp16")), tuning.backend, None, calls,
                                     wanted)
        return
    from ane.backends.coreml import engine as coreml
    from ane.backends.coreml.compiled import CompiledCache

    toolkit = packages.Stopwatch(coreml.CoreMLTools())
    engine = coreml.CoreMLEngine(toolkit, CompiledCache(Path(job.compiled)))
    yield from packages.subjects(model, engine, tuning.backend, job.units, calls, wanted, toolkit.taken)


def speak(job: Job, model: "Model") -> dict[str, Any]:
    """Say the text to a file, and what it took."""
    from ane.audio import write
    from ane.backends import load_backend
    from ane.models.tortoise.synthesizer import Synthesizer

    tuning = job.tuning
    backend = load_backend(tuning.backend, model, tuning.precision, tuning.threads, cache=tuning.cache,
                           units=tuning.units or None)
    settings = Settings.of(job.preset, model.settings, **({"lanes": tuning.lanes} if tuning.lanes else {}))
    speech = Synthesizer(model, backend).speak(job.text, job.voice, seed=job.seed, settings=settings)
    with tempfile.TemporaryDirectory(prefix="ane-bench.") as folder:
        write(Path(folder) / "speech.wav", speech.audio, speech.sample_rate)
    return {"backend": backend.name, "seconds": speech.seconds, "real_time_factor": speech.real_time_factor,
            "spent": speech.spent, "peak_bytes": peak_memory()}


def peak_memory() -> int:
    """Largest resident set of this process so far, in bytes.

    On Linux of this program alone: getrusage counts the process too that started it (exec keeps the larger of both).
    """
    status = Path("/proc/self/status")
    found = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE) if status.is_file() else None
    if found:
        return int(found[1]) * 1024
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> int:
    def send(message: dict[str, Any]) -> None:
        sys.stdout.write(f"{MESSAGE}{json.dumps(message)}\n")
        sys.stdout.flush()

    try:
        work(read_job(sys.stdin.read()), send)
    except UserError as error:
        send({"error": str(error)})
    return 0


# In the process that wants it done

@dataclass
class Process:
    """A job's process: iterate over its messages, then look at ``status`` and ``said``.

    Attributes:
        status: exit status, negative for a signal. said: the last line of its standard error.
    """

    job: Job
    status: int = 0
    said: str = field(default="")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen([sys.executable, "-m", "ane.bench.worker"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=errors, text=True)
            try:
                with contextlib.suppress(BrokenPipeError), process.stdin:       # its status tells why
                    process.stdin.write(json.dumps(asdict(self.job)))
                for line in process.stdout:
                    if line.startswith(MESSAGE):
                        yield json.loads(line.removeprefix(MESSAGE))
                self.status = process.wait()
            finally:
                process.kill()
                process.wait()
                process.stdout.close()
            errors.seek(0)
            self.said = (errors.read().strip().splitlines() or [""])[-1]

    @property
    def ending(self) -> str:
        if self.status < 0:
            return f"the process was ended by {signal.Signals(-self.status).name}"
        return f"the process failed: {self.said}"


def rows_of(job: Job) -> Iterator[Row]:
    """The rows of a job. A function that brings the process down gets a row that says so, and the rest goes on.

    Raises:
        UserError: nothing of it can be done.
    """
    while True:
        running, begun = Process(job), None
        for message in running:
            if "error" in message:
                raise UserError(message["error"])
            row = Row(**message.get("begin") or message["row"])
            if "row" in message:
                yield row
                job = replace(job, skip=(*job.skip, row.what))
            begun = row if "begin" in message else None
        if not running.status:
            return
        if begun is None:
            raise UserError(f"measuring {job.tuning.backend}: {running.ending}")
        yield replace(begun, error=running.ending)
        job = replace(job, skip=(*job.skip, begun.what))


def spoken(job: Job, with_energy: bool = False) -> Spoken:
    """What the second of two processes that say the job's text took; the first finds nothing compiled."""
    try:
        _, cold = _said(job)
        (told, seconds), joules = energy.during(lambda: _said(job)) if with_energy else (_said(job), None)
    except UserError as error:
        return Spoken(job.tuning, error=str(error))
    return Spoken(job.tuning, **told, first_audio_s=seconds, cold_first_audio_s=cold, joules=joules)


def _said(job: Job) -> tuple[dict[str, Any], float]:
    """What a process tells of saying the text, and seconds from its start until then."""
    running, told, seconds = Process(job), None, 0.0
    started = time.perf_counter()
    for message in running:
        if "error" in message:
            raise UserError(message["error"])
        told, seconds = message["spoken"], time.perf_counter() - started
    if told is None:
        raise UserError(running.ending)
    return told, seconds


if __name__ == "__main__":
    sys.exit(main())
