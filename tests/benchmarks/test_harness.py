"""The benchmarks run, write one record, and end up on one page; nothing here depends on timings."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ane.bench.records import BenchRow, Spread
from ane.bench.report import document, table_cells
from ane.system.errors import UserError
from ane.system.files import write_json
from benchmarks import speech
from benchmarks.__main__ import BENCHMARKS, arguments_parser, flags_for, main
from benchmarks.harness import earlier_rows, joined_rows
from benchmarks.page import write_page
from benchmarks.speech import SENTENCES, speech_figures, text_of_chunks
from tests.bench.in_process import InProcessWorker

KEYS = {"format", "benchmark", "machine", "settings", "rows", "notes", "plots"}
MACHINE = {"chip", "instructions", "cores", "memory_bytes", "os", "python", "packages", "commit", "date",
           "load_average"}


def test_a_quick_run_writes_the_shared_record_and_a_page_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr(speech, "WorkerProcess", InProcessWorker)
    main(["--quick", "--threads", "1", "--only", "stream,scale", "-o", str(tmp_path)])
    stream, scale = ([BenchRow.read(row) for row in check_document(tmp_path / f"{name}.json")["rows"]]
                     for name in ("stream", "scale"))
    assert [row.settings["chunks"] for row in stream] == [1, 2]
    assert [(row.what, row.settings["chunks"], row.settings["lanes"]) for row in scale] == [
        ("more chunks", 2, 8), ("more lanes", 2, 2), ("one by one", 2, 1)]
    for row in [*stream, *scale]:
        assert row.error is None
        assert 0 < row.value.low <= row.value.median <= row.value.high
        assert row.figures.keys() >= {"decode_s", "vocode_s", "tokens_per_s", "audio_s"}
    check_page((tmp_path / "report.html").read_text(), tmp_path)


def check_document(path: Path) -> dict:
    found = json.loads(path.read_text())
    assert found.keys() >= KEYS
    assert found["machine"].keys() >= MACHINE
    assert found["benchmark"] == path.stem
    assert found["rows"]
    return found


def check_page(page: str, folder: Path) -> None:
    """The page has every table and every plot, and needs no other file."""
    plots = [plot for name in ("stream", "scale")
             for plot in json.loads((folder / f"{name}.json").read_text())["plots"]]
    assert plots
    assert all((folder / plot).read_bytes().startswith(b"\x89PNG") for plot in plots)
    assert re.findall(r'<img src="data:image/png;base64,[^"]{1000,}" alt="([^"]+)">', page) == plots
    assert page.count("<table>") == 2
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "<script" not in page


def test_a_result_is_completed_by_parts_of_the_same_commit_and_machine(tmp_path):
    path, rows = tmp_path / "exactness.json", [BenchRow("torch:cpu int8", "readings", settings={"lanes": lanes},
                                                        value=Spread.of([lanes])) for lanes in (1, 2, 2)]
    assert earlier_rows(path, "demo") == [], "no file yet"
    content = document("exactness", {"model": "demo"}, rows[:2])
    write_json(path, content)
    again = replace(rows[2], value=Spread.of([7]))
    assert joined_rows(earlier_rows(path, "demo"), [again]) == [rows[0], again]
    with pytest.raises(UserError, match="was measured with a different model"):
        earlier_rows(path, "other")
    write_json(path, content | {"machine": content["machine"] | {"commit": "another"}})
    with pytest.raises(UserError, match=r"^--add: .*exactness.json was measured with a different commit; name another"):
        earlier_rows(path, "demo")
    for damaged in ("", "[]", '{"rows": []}'):
        path.write_text(damaged)
        with pytest.raises(UserError, match="is no result of a benchmark"):
            earlier_rows(path, "demo")


def test_a_benchmark_that_fails_is_named_and_does_not_stop_the_others(tmp_path, capfd):
    with pytest.raises(SystemExit) as ended:
        main(["--quick", "--threads", "1", "--only", "sentence,decode", "--precision", "fp32", "--upstream-python",
              "./nothing", "-o", str(tmp_path)])
    assert "failed: sentence, decode" in str(ended.value)
    assert "upstream needs --upstream-python, and --checkpoints" in capfd.readouterr().err
    page = (tmp_path / "report.html").read_text()
    assert "sentence failed" in page


@pytest.mark.parametrize(("arguments", "message"), [
    (["--only", "nothing"], f"--only nothing: there are {', '.join(BENCHMARKS)}"),
    (["decode", "--competitors", "abacus"], "--competitors abacus: there are upstream"),
    (["decode", "--precision", "fp8"], "--precision fp8: there are"),
    (["decode", "--only", "abacus"], "--only abacus: there are decoder"),
    (["sentence", "--cases", "two"], "--cases two: there are one"),
    (["sentence", "--competitors", "eager"], "--competitors eager: there are upstream, torch"),
])
def test_an_unknown_name_is_refused_with_the_known_ones(arguments, message):
    with pytest.raises(UserError, match=message):
        main(arguments)


def test_every_benchmark_takes_the_options_of_a_run_of_all():
    parser = arguments_parser()
    everything = parser.parse_args(["--quick", "--bundle", "demo", "--threads", "1", "--precision", "fp32"])
    for name, benchmark in BENCHMARKS.items():
        options = parser.parse_args([name, *flags_for(benchmark, everything), "-o", "result.json"])
        assert options.output == Path("result.json")


def test_text_on_the_page_is_escaped(tmp_path):
    result = tmp_path / "odd.json"
    rows = [BenchRow("<script>", "a & b", value=Spread.of([1.0]))]
    write_json(result, document("odd <b>", {}, rows))
    write_page(tmp_path / "report.html", [result], [], {"other": "x < y"})
    page = (tmp_path / "report.html").read_text()
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "a &amp; b" in page


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
    from ane.bundles import open_model
    from ane.models.tortoise.chunks import split_into_chunks
    from ane.models.tortoise.settings import Settings

    for model in (open_model(random_bundle), open_model()):
        for count in (1, 4, len(SENTENCES) + 1):
            assert len(split_into_chunks(text_of_chunks(count), model, Settings.of(model=model.settings))) == count


def test_requests_that_followed_each_other_add_up():
    one = {"elapsed": 1.0, "seconds": 2.0, "codes": 3, "chunks": 1, "first_audio": 0.5, "stages": {"decode": 0.25}}
    two = {**one, "first_audio": 0.75, "stages": {"decode": 0.5, "vocode": 0.125}}
    assert speech_figures([one, two]) == {
        "took_s": 2.0, "audio_s": 4.0, "real_time_factor": 0.5, "first_audio_s": 0.5, "tokens_per_s": 8.0,
        "decode_s": 0.75, "vocode_s": 0.125}
