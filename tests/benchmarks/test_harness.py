"""The benchmarks run and write one record; nothing here depends on timings."""

import json
import sys

import numpy as np
import pytest

from ane.bench.records import BenchRow, Spread, table_cells
from ane.bench.sessions import read_row
from ane.bundles import open_model
from ane.models.tortoise.chunks import split_into_chunks
from ane.models.tortoise.settings import Settings
from ane.system.errors import UserError
from benchmarks import memory, server, speech
from benchmarks.__main__ import BENCHMARKS, arguments_parser, main
from benchmarks.memory import drawn_text, run_command
from benchmarks.server import Answer, rounds_row
from benchmarks.speech import SENTENCES, text_of_chunks
from tests.bench.in_process import InProcessWorker


def test_a_quick_run_writes_the_shared_record(tmp_path, monkeypatch):
    monkeypatch.setattr(speech, "WorkerProcess", InProcessWorker)
    main(["--quick", "--only", "stream", "-o", str(tmp_path)])
    found = json.loads((tmp_path / "stream.json").read_text())
    assert found["benchmark"] == "stream"
    assert found["machine"].keys() >= {"chip", "cores", "os", "python", "packages", "commit", "date", "load_average"}
    rows = [read_row(row) for row in found["rows"]]
    assert [row.settings["chunks"] for row in rows] == [1, 2]
    for row in rows:
        assert row.error is None
        assert 0 < row.value.low <= row.value.median <= row.value.high
        assert row.figures.keys() >= {"decode_s", "vocode_s", "tokens_per_s", "audio_s"}


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "name a benchmark: sentence"), (["--quick", "--only", "nothing"], "--only nothing: there are sentence"),
    (["sentence", "--competitors", "abacus"], "--competitors abacus: there are upstream, torch"),
    (["sentence", "--competitors", "upstream"], "upstream needs --upstream-python, and --checkpoints"),
    (["sentence", "--cases", "two"], "--cases two: there are one"),
    (["memory", "--commands", "sing"], "--commands sing: there are say"),
])
def test_an_unknown_name_is_refused_with_the_known_ones(arguments, message):
    with pytest.raises(UserError, match=message):
        main(arguments)


def test_every_benchmark_takes_its_quick_options():
    for name, benchmark in BENCHMARKS.items():
        if benchmark.quick is not None:
            arguments_parser().parse_args([name, *benchmark.quick.split(), "-o", "result.json"])


def test_the_table_has_a_column_for_every_setting_that_differs_and_every_figure():
    rows = [BenchRow("torch", "step", settings={"lanes": 1, "threads": 2}, value=Spread.of([2.0]), peak_bytes=10**9),
            BenchRow("onnx", "step", settings={"lanes": 4, "threads": 2}, value=Spread.of([1.0]), figures={"a_b": 3.0}),
            BenchRow("mil", "step", error="no packages")]
    headings, cells = table_cells(rows)
    assert headings == ["competitor", "what", "lanes", "threads", "ms", "a b", "peak GB", "error"]
    assert cells[0] == ["torch", "step", "1", "2", "2 ±0%", "–", "1", ""]
    assert cells[2] == ["mil", "step", "–", "–", "–", "–", "–", "no packages"]
    assert table_cells(rows[:2])[0][2:4] == ["lanes", "ms"]


def test_a_text_of_some_chunks_is_spoken_in_so_many(random_bundle):
    for model in (open_model(random_bundle), open_model("demo")):
        for count in (1, 4, len(SENTENCES) + 1):
            assert len(split_into_chunks(text_of_chunks(count), model, Settings.of(model=model.settings))) == count


def test_a_process_is_measured_and_its_failure_named():
    seconds, peak, _ = run_command(sys.executable, "-c", "print(1)")
    assert seconds > 0
    assert peak > 1e6
    with pytest.raises(UserError, match="status 3 from"):
        run_command(sys.executable, "-c", "raise SystemExit(3)")
    assert 800 < len(drawn_text(1)) < 2 * memory.CHARACTERS_PER_MINUTE


def test_sounds_of_a_server_are_counted_when_lost_or_other_than_alone():
    alone = [Answer(0.1, 0.2, bytes([number])) for number in range(len(server.TEXTS))]
    answers = [Answer(0.1, 0.5, bytes([0])), Answer(0.3, 0.5, b"other"), Answer(0.2, 0.5, None)]
    figures = rounds_row("all at once", "demo", [(2.0, answers)], alone).figures
    assert (figures["lost"], figures["bytes_as_alone"]) == (1, pytest.approx(1 / 3))
    assert figures["first_sound_p50_s"] == np.float64(0.2)
