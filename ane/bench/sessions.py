"""Measure the functions of packages, and how fast a sentence is spoken, in separate processes."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from ane.bench.measure import timed
from ane.bench.records import BenchRow, Spread
from ane.bench.worker import FunctionRequest, TimedRequest, WorkerModel
from ane.system.checked import read_record
from ane.system.errors import UserError
from ane.system.json_process import JsonProcess, ProcessEndedError

READINGS = 3  # number of times that a process speaks the sentence for one measurement


class WorkerProcess(JsonProcess):
    """A process that runs ``ane.bench.worker``. ``threads`` limits the threads of OpenMP."""

    def __init__(self, threads: int | None = None):
        environment = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        super().__init__("ane.bench.worker", environment)


def function_rows(model: WorkerModel, request: FunctionRequest) -> Iterator[BenchRow]:
    """Measure the functions of a request, and yield a row for each.

    If a function crashes the process that measures it, its row has the error, and a new process measures the other
    functions.

    Raises:
        UserError: The process cannot list the functions.
    """
    listed = {"list": {**asdict(request), "model": asdict(model)}}
    index, rows = 0, None
    while rows is None or index < len(rows):
        with WorkerProcess() as process:
            try:
                rows = [read_row(row) for row in process.ask(listed)["rows"]]
            except ProcessEndedError as error:
                raise UserError(f"cannot measure {request.tuning.backend}: {error}") from error
            while index < len(rows):
                try:
                    row, ended = read_row(process.ask({"measure": index})["row"]), False
                except ProcessEndedError as error:
                    row, ended = replace(rows[index], error=str(error)), True
                index += 1
                yield row
                if ended:
                    break


def read_row(content: dict[str, Any]) -> BenchRow:
    return read_record(BenchRow, content, "a measurement")


def spoken_sentence(model: WorkerModel, request: TimedRequest) -> BenchRow:
    """Speak the sentence in two new processes, one after the other, and return a row with the measured figures.

    Only the first process has to compile. All figures except first_start_to_end_s are therefore from the second
    process. The value of the row is the seconds of work per second of speech. The figures are:

    - first_audio_s: Seconds from the text to the first sound, for a stream whose networks are loaded. - start_to_end_s:
    Seconds from the start of the second process to the end of its first speech. - first_start_to_end_s: Seconds from
    the start of the first process to the end of its speech. - audio_s: Seconds of speech. - STAGE_s: Seconds of work in
    the phase called STAGE.
    """
    row = BenchRow(
        str(model.tuning), "sentence", "s a second", {"precision": model.tuning.precision, "preset": request.preset}
    )
    try:
        with WorkerProcess(model.tuning.threads) as process:
            _, first = timed(lambda: open_and_speak(process, model, request))
            first += process.cold_start
        with WorkerProcess(model.tuning.threads) as process:
            reading, seconds = timed(lambda: open_and_speak(process, model, request))
            readings = [process.ask({"speak": asdict(request)}) for _ in range(READINGS)]
            streamed = process.ask({"speak": asdict(replace(request, stream=True))})
    except UserError as error:
        return replace(row, error=str(error))
    figures = {
        "first_audio_s": streamed["first_audio"],
        "start_to_end_s": process.cold_start + seconds,
        "first_start_to_end_s": first,
        "audio_s": reading["seconds"],
        **{f"{stage}_s": value for stage, value in readings[-1]["stages"].items()},
    }
    value = Spread.of([item["elapsed"] / item["seconds"] for item in readings])
    return replace(row, value=value, figures=figures, peak_bytes=reading["peak_bytes"])


def open_and_speak(process: JsonProcess, model: WorkerModel, request: TimedRequest) -> dict[str, Any]:
    process.ask({"open": asdict(model)})
    return process.ask({"speak": asdict(request)})
