"""Test the benchmark that measures the dB of every converted function."""

from types import SimpleNamespace

from benchmarks import witnesses
from converters.function_table import THRESHOLDS
from tests.small_bundle import write_small_bundle


def test_each_function_has_what_it_reaches_beside_its_threshold(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(witnesses, "find_spec", lambda _: None)  # without Core AI, which is slow
    small = write_small_bundle(tmp_path_factory.mktemp("bundles"), ["rlg_auto", "univnet"])
    result = witnesses.measure(SimpleNamespace(bundle=str(small), checkpoints=None))
    found = {row.what: row.figures for row in result.rows}
    assert (found["ar_random"]["threshold fp32"], found["ar_random"]["threshold fp16"]) == THRESHOLDS["fp16"]
    for figures in found.values():
        for arithmetic in ("fp32", "fp16", "flushed"):
            if (reached := figures.get(f"interpreter {arithmetic}")) is not None:
                assert reached >= figures[f"threshold {arithmetic}"]
    assert "threshold fp16" not in found["univnet_14_17"]  # the vocoder's package is float32
    [table] = result.more["tables"]
    assert table["columns"][2:6] == ["interpreter fp32", "threshold fp32", "interpreter fp16", "threshold fp16"]
