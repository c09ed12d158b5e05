"""The benchmarks run, tell what they share under the same keys, and end up on one page; nothing here is timed."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from ane.system.errors import UserError
from benchmarks import report
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.page import write_page
from benchmarks.process import Process
from benchmarks.report import Figures, Quantiles, Spread
from benchmarks.scale import together
from benchmarks.sentence import CASES, Contestant, contestants, rows
from benchmarks.speaking import SENTENCES, text_of

MACHINE = {"chip", "cores", "memory_gb", "system", "python", "versions", "commit", "date", "load_average"}
SHARED = {field.name for field in fields(Figures)}
FAST = ["--quick", "--threads", "1"]


def test_a_quick_pass_leaves_results_that_tell_what_all_share_and_a_page_of_them(tmp_path):
    subprocess.run([sys.executable, "-m", "benchmarks", *FAST, "--only", "stream,scale", "--output", str(tmp_path)],
                   check=True, capture_output=True, timeout=300)
    documents = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("stream", "scale")]
    for document in documents:
        assert document["machine"].keys() >= MACHINE
        assert document["results"]
        for row in document["results"]:
            whole(row)
    stream, scale = documents
    assert [row["chunks"] for row in stream["results"]] == [1, 2]
    assert [(row["series"], row["chunks"]) for row in scale["results"]] == [
        ("chunks", 2), ("chunks", 2), ("lanes", 2), ("four", 4), ("four", 4), ("four", 1), ("four", 1)]
    holds_all((tmp_path / "report.html").read_text(), documents, tmp_path)


def whole(row: dict) -> None:
    """The row has every shared key, and figures that can be."""
    assert row.keys() >= SHARED
    for key in ("real_time_factor", "tokens_per_s"):
        assert 0 < row[key]["low"] <= row[key]["median"] <= row[key]["high"]
    assert 0 < row["first_audio_s"]["p50"] <= row["first_audio_s"]["p95"]
    assert row["stage_ms"].keys() >= {"decode", "vocode"}
    assert row["audio_s"]["low"] > 0.5 * row["chunks"]
    if row["peak_rss_gb"] is not None:
        assert 0.05 < row["peak_rss_gb"]["median"] < 8


def holds_all(page: str, documents: list[dict], folder: Path) -> None:
    """The page has every table and every plot, and needs nothing beside it."""
    plots = [plot for document in documents for plot in document["plots"]]
    assert len(plots) == 5
    assert all((folder / plot).read_bytes().startswith(b"\x89PNG") for plot in plots)
    assert re.findall(r'<img src="data:image/png;base64,[^"]{1000,}" alt="([^"]+)">', page) == plots
    assert page.count("<table>") == sum(len(document["tables"]) for document in documents)
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "<script" not in page


def test_a_benchmark_that_fails_is_named_and_does_not_stop_the_others(tmp_path, capfd):
    flags = ["--only", "memory,diffusion", "--output", str(tmp_path), "--memory", "--backend nonsense"]
    with pytest.raises(SystemExit) as ended:
        main([*FAST, *flags])
    assert "failed: memory" in str(ended.value)
    assert "nonsense" in capfd.readouterr().err
    assert json.loads((tmp_path / "diffusion-1-thread.json").read_text())["results"]
    page = (tmp_path / "report.html").read_text()
    assert "memory failed" in page
    assert "<h2>diffusion</h2>" in page


def test_an_unknown_benchmark_is_refused_with_the_names_there_are():
    with pytest.raises(UserError, match=f"--only nothing: there are {', '.join(BENCHMARKS)}"):
        main(["--only", "nothing"])


def test_what_text_a_page_is_given_stays_text(tmp_path):
    result = tmp_path / "odd.json"
    report.publish(result, "odd <b>", {}, [], [report.Shown("a & b", ["<i>"], [["<script>"]])], {})
    write_page(tmp_path / "report.html", [result], [], {"other": "x < y"})
    page = (tmp_path / "report.html").read_text()
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "a &amp; b" in page


def test_a_text_of_some_chunks_is_spoken_in_so_many(random_bundle):
    from ane.bundles import open_model
    from ane.models.tortoise.chunks import split_into_chunks
    from ane.models.tortoise.settings import Settings

    for model in (open_model(random_bundle), open_model()):
        for count in (1, 4, len(SENTENCES) + 1):
            assert len(split_into_chunks(text_of(count), model, Settings.of(model=model.settings))) == count


def test_quantiles_are_of_the_readings():
    assert Quantiles.of([3.0]) == Quantiles(3.0, 3.0, 1)
    found = Quantiles.of([float(number) for number in range(101)])
    assert (found.p50, found.p95) == (pytest.approx(50), pytest.approx(95))


def test_requests_that_followed_each_other_add_up():
    one = {"took": 1.0, "seconds": 2.0, "codes": 3, "chunks": 1, "first_audio": 0.5, "stages": {"decode": 0.25}}
    two = {**one, "first_audio": 0.75, "stages": {"decode": 0.5, "vocode": 0.125}}
    assert together([one, two]) == {"took": 2.0, "seconds": 4.0, "codes": 6, "chunks": 2, "first_audio": 0.5,
                                    "stages": {"decode": 0.75, "vocode": 0.125}}
    assert one["stages"] == {"decode": 0.25}


def contestant(precision: str | None, case: str, took: float) -> Contestant:
    reading = {"took": took, "seconds": 4.0, "codes": 86, "stages": {"decode": took / 2}}
    return Contestant(precision, 1, CASES[case], False, [reading], [10.0], [2.0 if precision else 5.0])


def test_a_ratio_is_of_the_medians_in_its_rows_and_against_upstream_asked_for_what_the_case_names():
    found = [contestant(None, "one", 40.0), contestant(None, "ultra_fast", 100.0),
             contestant("bf16", "one", 10.0), contestant("bf16", "default", 5.0)]
    upstream_one, upstream_fast, one, default = rows(found)
    assert "times_upstream" not in upstream_one.keys() | upstream_fast.keys()
    assert one["times_upstream"] == pytest.approx(4)
    assert default["times_upstream"] == pytest.approx(20)
    assert default["times_upstream_cold"] == pytest.approx(110 / 15)
    assert default["share_of_upstream_peak"] == pytest.approx(0.4)


def test_upstream_says_a_sentence_once_for_all_cases_that_ask_the_same_of_it():
    options = SimpleNamespace(cases=["default", "one", "ultra_fast"], precisions=["bf16"], threads=[1, 2],
                              upstream_python=Path("python"))
    asked = [(each.threads, each.case.candidates) for each in contestants(options) if each.upstream]
    assert sorted(asked) == [(1, 1), (1, 16), (2, 1), (2, 16)]
    assert len(contestants(options)) == len(asked) + 12


ANSWERS = """import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    if json.loads(line) == "die":
        sys.exit(3)
    print(json.dumps({"heard": json.loads(line)}), flush=True)
"""


def test_a_process_answers_until_its_input_ends_and_leaves_nothing_behind():
    with Process([sys.executable, "-c", ANSWERS], {}, "") as process:
        assert process.ask({"a": 1}) == {"heard": {"a": 1}}
    assert process.cold_start > 0
    assert process._process.returncode == 0


def test_a_process_that_dies_is_told_of_in_one_line():
    with pytest.raises(UserError, match="ended with status 3"), \
            Process([sys.executable, "-c", ANSWERS], {}, "") as process:
        process.ask("die")


def test_spread_of_one_reading_is_that_reading():
    assert Figures.of([{"took": 1.0, "seconds": 2.0, "codes": 10, "stages": {"decode": 0.5}}]).tokens_per_s \
        == Spread(20.0, 20.0, 20.0, 1)
