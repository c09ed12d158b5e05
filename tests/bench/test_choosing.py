"""What `ane bench` measures of a package, and what it chooses from that."""

import dataclasses
import re
from pathlib import Path

import pytest

from ane.backends.torch.backend import TorchBackend
from ane.bench import stage_calls
from ane.bench.choosing import SpokenSentence, Tuning, best_lanes, candidates, fastest
from ane.bench.measure import measure_function
from ane.bench.package_calls import FunctionSelection
from ane.bench.records import BenchRow, Spread
from ane.bench.stage_calls import SentenceSizes, StageCalls
from ane.bundles.family import find_family
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.commands import bench
from tests.random_model import RandomModel

SIZES = SentenceSizes(capacity=100, frames=374)


def bench_row(milliseconds: float | str, **settings) -> BenchRow:
    """A row of a median, or of an error."""
    row = BenchRow("torch:cpu", "clvp_text", settings={"network": "clvp", "precision": "auto", **settings})
    if isinstance(milliseconds, str):
        return dataclasses.replace(row, error=milliseconds)
    return dataclasses.replace(row, value=Spread.of([milliseconds]))


def a_package(network: str, precision: str = "fp16", parity: float | None = 70.0, **functions) -> PackageRecord:
    stated = {} if parity is None else {"fp32 maths": parity} | (
        {"fp16 rounding": parity} if precision != "fp32" else {})
    records = {name: FunctionRecord(kind, bucket, stated) for name, (kind, bucket) in functions.items()}
    return PackageRecord(network, precision, f"packages/{network}-{precision}.mlpackage", [], records)


DECODER = {"step_4": ("step", {"columns": 4, "slots": 444}), "state_8": ("state", {"columns": 8, "slots": 844})}
CORE_ML = Tuning("coreml", compute_units="CPU_AND_NE")


class PackagesModel:
    """A model of package records without files."""

    name, path, family = "paper", Path("paper"), find_family()

    def __init__(self, *packages: PackageRecord):
        self.packages = list(packages)


def package_rows(package: PackageRecord, milliseconds: float | str = 1.0) -> list[BenchRow]:
    return [dataclasses.replace(bench_row(milliseconds, network=package.network, precision=package.precision),
                                competitor="coreml", what=name) for name in package.functions]


def test_of_each_kind_the_function_that_the_sentence_takes_is_measured():
    buckets = {"prefill_64": ("prefill", {"columns": 64}), "prefill_128": ("prefill", {"columns": 128}),
               "step_1_64": ("step", {"columns": 1, "slots": 64}), "state_1_64": ("state", {"columns": 1, "slots": 64}),
               "univnet_14": ("univnet", {"frames": 14}), "univnet_62": ("univnet", {"frames": 62}),
               **{f"denoise_{batch}_{frames}": ("denoise", {"batch": batch, "frames": frames})
                  for batch in (1, 2) for frames in (320, 576, 1152)}}
    package = a_package("autoregressive", **buckets)
    assert FunctionSelection().functions(package, SIZES) == ["prefill_64", "step_1_64", "state_1_64", "univnet_62",
                                                             "denoise_1_576", "denoise_2_576"]
    assert FunctionSelection(frozenset(["clvp"])).functions(package, SIZES) == []
    assert FunctionSelection(precisions=frozenset(["8bit"])).functions(package, SIZES) == []


def test_compute_units_on_which_a_function_fails_are_not_chosen():
    decoder = a_package("autoregressive", **DECODER)
    on_cpu = Tuning("coreml", compute_units="CPU_ONLY")
    rows = package_rows(decoder)
    rows[1] = dataclasses.replace(rows[1], value=None, error="the Neural Engine's compiler refuses it")
    (found,), (refused,) = candidates(PackagesModel(decoder), [(CORE_ML, rows), (on_cpu, package_rows(decoder))], 16,
                                      bench.has_parity)
    assert found == Tuning("coreml", "fp16", "CPU_ONLY")
    assert "compiler refuses" in refused.why


@pytest.mark.parametrize(("parity", "chosen"), [(30.0, ["fp16"]), (None, ["fp16"]), (36.0, ["fp16", "8bit"])])
def test_a_precision_without_parity_is_not_chosen(parity, chosen):
    """35 dB are wanted of 8 bits."""
    packages = a_package("autoregressive", **DECODER), a_package("autoregressive", "8bit", parity, **DECODER)
    rows = [row for package in packages for row in package_rows(package)]
    found, refused = candidates(PackagesModel(*packages), [(CORE_ML, rows)], 16, bench.has_parity)
    assert [tuning.precision for tuning in found] == chosen
    assert all("parity" in each.why for each in refused)


def test_the_precision_of_one_network_alone_is_no_candidate():
    decoder = a_package("autoregressive", **DECODER)
    univnet = a_package("univnet", "fp32", 100.0, univnet_62=("univnet", {"frames": 62}))
    rows = [*package_rows(decoder), *package_rows(univnet)]
    found, refused = candidates(PackagesModel(decoder, univnet), [(CORE_ML, rows)], 16, bench.has_parity)
    assert ([tuning.precision for tuning in found], refused) == (["fp16"], [])


def test_lanes_are_those_that_decode_all_candidates_fastest():
    steps = [bench_row(10, lanes=1), bench_row(20, lanes=8), bench_row(50, lanes=16), bench_row("fails", lanes=32)]
    assert [best_lanes(steps, count) for count in (1, 16, 24)] == [None, 8, 8]
    assert best_lanes([bench_row(1)], 16) is None           # packages fix their own


def test_settings_in_which_a_function_fails_and_engines_that_check_are_refused():
    int8 = Tuning("torch:cpu", "int8", threads=1)
    found, refused = candidates(PackagesModel(), [(Tuning("torch:cpu", threads=1), [bench_row(1)]),
                                                  (int8, [bench_row("int8 reaches 12.0 dB")]),
                                                  (Tuning("mil:fp16"), [bench_row(0.1)])], 1, bench.has_parity)
    assert found == [Tuning("torch:cpu", threads=1)]
    assert [each.what for each in refused] == ["torch:cpu, int8, threads 1", "mil:fp16"]


def test_a_decoder_that_loses_too_much_in_int8_is_not_measured_in_it(monkeypatch):
    monkeypatch.setattr(stage_calls, "INT8_DB", 60.0)
    backend = TorchBackend(RandomModel(), "cpu", "int8")
    first = next(StageCalls(backend, SIZES).functions("torch:cpu", "int8", 1, (1,)))
    error = measure_function(first, 1).error
    assert re.search(r"int8 reaches [\d.]+ dB against float32, below the threshold of 60", error)


def test_the_fastest_spoken_sentence_decides_and_one_that_fails_is_not_chosen():
    sentences = [SpokenSentence(Tuning("torch:cpu"), bench_row(2.0)), SpokenSentence(Tuning("coreml"), bench_row(0.5)),
                 SpokenSentence(Tuning("coreml", "8bit"), bench_row("the process was ended by SIGKILL"))]
    assert fastest(sentences).tuning.backend == "coreml"
    assert fastest(sentences[2:]) is fastest([]) is None


def test_threads_to_try_are_powers_of_two_and_all():
    assert [bench.thread_counts(cores) for cores in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]
