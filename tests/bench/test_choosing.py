"""What `ane bench` measures of a package, and what it chooses from that."""

import dataclasses
import re
from pathlib import Path

import pytest

from ane.backends.torch.backend import TorchBackend
from ane.bench import int8_accuracy
from ane.bench.choosing import candidates, decoder_steps, fastest
from ane.bench.measure import measure_function
from ane.bench.package_calls import FunctionSelection, alike_steps
from ane.bench.records import BenchRow, Spread
from ane.bench.sessions import SpokenSentence
from ane.bench.stage_calls import StageCalls
from ane.bench.tuning import Tuning
from ane.bench.workload import SentenceWork
from ane.bundles.family import find_family
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.commands import bench_run
from tests.random_model import RandomModel

WORK = SentenceWork(candidates=16, steps=30, guided=False, frames=374, capacity=100)


def bench_row(milliseconds: float | str, competitor: str = "torch:cpu", function: str = "clvp_text",
              **settings) -> BenchRow:
    """A row of a median, or of an error."""
    usual = {"network": "clvp", "kind": "clvp_text", "bucket": {}, "precision": "auto", "threads": None}
    row = BenchRow(competitor, function, settings={**usual, **settings})
    if isinstance(milliseconds, str):
        return dataclasses.replace(row, error=milliseconds)
    return dataclasses.replace(row, value=Spread.of([milliseconds]))


def a_package(network: str, precision: str = "fp16", parity: float = 70.0, **functions) -> PackageRecord:
    stated = {"fp32 maths": parity} | ({"fp16 rounding": parity} if precision != "fp32" else {})
    records = {name: FunctionRecord(kind, bucket, stated) for name, (kind, bucket) in functions.items()}
    return PackageRecord(network, precision, f"packages/{network}-{precision}.mlpackage", [], records)


DECODER = {"step_4": ("step", {"columns": 4, "slots": 444}), "step_8": ("step", {"columns": 8, "slots": 844}),
           "state_8": ("state", {"columns": 8, "slots": 844})}
DIFFUSION = {"denoise_1_576": ("denoise", {"batch": 1, "frames": 576}),
             "denoise_2_576": ("denoise", {"batch": 2, "frames": 576})}


class PackagesModel:
    """A model of package records without files."""

    name, path, family = "paper", Path("paper"), find_family()

    def __init__(self, *packages: PackageRecord):
        self.packages = list(packages)


def package_rows(package: PackageRecord, milliseconds: dict[str, dict[str, float | str]]) -> list[BenchRow]:
    """Rows of its functions; ``milliseconds`` by compute units, then by function; a text is an error."""
    rows = []
    for units, times in milliseconds.items():
        for name, figure in times.items():
            record = package.functions[name]
            alike = [other.bucket for other in package.functions.values() if alike_steps(other) == alike_steps(record)]
            cache = {"step": "io", "state": "state"}.get(record.kind)
            rows.append(bench_row(figure, "coreml", name, network=package.network, kind=record.kind,
                                  bucket=record.bucket, precision=package.precision, compute_units=units, cache=cache,
                                  lanes=WORK.lanes(alike) if cache else None))
    return rows


def test_of_each_kind_the_function_that_the_sentence_takes_is_measured():
    buckets = {"prefill_64": ("prefill", {"columns": 64}), "prefill_128": ("prefill", {"columns": 128}),
               "step_1_64": ("step", {"columns": 1, "slots": 64}), "state_1_64": ("state", {"columns": 1, "slots": 64}),
               "univnet_14": ("univnet", {"frames": 14}), "univnet_62": ("univnet", {"frames": 62}),
               **{f"denoise_{batch}_{frames}": ("denoise", {"batch": batch, "frames": frames})
                  for batch in (1, 2) for frames in (320, 576, 1152)}}
    package = a_package("autoregressive", **buckets)
    assert FunctionSelection().functions(package, WORK) == ["prefill_64", "step_1_64", "state_1_64", "univnet_62",
                                                  "denoise_1_576", "denoise_2_576"]
    assert FunctionSelection(every=True).functions(package, WORK) == list(buckets)
    assert FunctionSelection(frozenset(["clvp"])).functions(package, WORK) == []
    assert FunctionSelection(precisions=frozenset(["8bit"])).functions(package, WORK) == []


def test_each_network_gets_its_fastest_compute_units_and_the_decoder_its_cache_and_lanes():
    decoder, diffusion = a_package("autoregressive", **DECODER), a_package("diffusion", **DIFFUSION)
    rows = [*package_rows(decoder, {"CPU_ONLY": {"step_4": 4, "step_8": 9, "state_8": 9},       # 1 ms a lane at best
                                  "CPU_AND_NE": {"step_4": 5, "step_8": 7, "state_8": 4}}),   # 0.5
            *package_rows(diffusion, {"CPU_ONLY": {"denoise_1_576": 3, "denoise_2_576": 9},     # batches of two: unused
                                    "CPU_AND_NE": {"denoise_1_576": 4, "denoise_2_576": 1}})]
    (found,), refused = candidates(PackagesModel(decoder, diffusion), rows, WORK, bench_run.has_parity)
    assert refused == []
    assert found.tuning == Tuning("coreml", "fp16", {"autoregressive": "CPU_AND_NE", "diffusion": "CPU_ONLY"}, "state",
                                  lanes=8)
    assert found.estimate == pytest.approx(86 * 16 / 8 * 0.004 + 30 * 0.003)


GROWING = {f"state_16_{slots}": ("state", {"columns": 16, "slots": slots, "capacity": 1664})
           for slots in (256, 1024, 1664)} | {"store_32_1664": ("store", {"columns": 32, "capacity": 1664})}


def test_steps_of_several_numbers_of_slots_count_as_often_as_their_lanes_need_them():
    """16 lanes of 86 codes after 44 positions: 256 slots hold 13 codes of each, 1024 hold 61."""
    decoder = a_package("autoregressive", **GROWING)
    rows = package_rows(decoder, {"CPU_AND_NE": {"state_16_256": 1, "state_16_1024": 10, "state_16_1664": 100,
                                                 "store_32_1664": 2}})
    steps = decoder_steps(rows, WORK)
    assert (steps.cache, steps.lanes) == ("state", 16)
    assert 1000 * steps.seconds == pytest.approx(14 * 1 + 48 * 10 + 24 * 100 + 86 * 16 / 32 * 2)
    rows[0] = dataclasses.replace(rows[0], value=None, error="refused")
    assert decoder_steps(rows, WORK) is None
    assert FunctionSelection().functions(decoder, WORK) == list(GROWING)


def test_compute_units_on_which_a_function_fails_are_not_chosen():
    decoder = a_package("autoregressive", **DECODER)
    fails = {"step_4": 1, "step_8": 1, "state_8": "the Neural Engine's compiler refuses it"}
    works = {"step_4": 8, "step_8": 9, "state_8": 10}
    rows = package_rows(decoder, {"CPU_AND_NE": fails, "CPU_ONLY": works})
    (found,), _ = candidates(PackagesModel(decoder), rows, WORK, bench_run.has_parity)
    assert found.tuning.compute_units == {"autoregressive": "CPU_ONLY"}
    found, (refused,) = candidates(PackagesModel(decoder), package_rows(decoder, {"CPU_AND_NE": fails}), WORK,
                                   bench_run.has_parity)
    assert found == []
    assert "compiler refuses" in refused.why


@pytest.mark.parametrize("parity", [30.0, None])
def test_the_fastest_precision_is_not_chosen_without_parity(parity):
    exact, fewer = a_package("autoregressive", **DECODER), a_package("autoregressive", "8bit", 30.0, **DECODER)
    if parity is None:
        for name, record in fewer.functions.items():
            fewer.functions[name] = dataclasses.replace(record, parity={})
    rows = [*package_rows(exact, {"CPU_AND_NE": dict.fromkeys(DECODER, 9)}),
            *package_rows(fewer, {"CPU_AND_NE": dict.fromkeys(DECODER, 1)})]
    found, (refused,) = candidates(PackagesModel(exact, fewer), rows, WORK, bench_run.has_parity)
    assert fastest(found, []).precision == "fp16"
    assert "parity" in refused.why
    fewer = a_package("autoregressive", "8bit", 36.0, **DECODER)        # above the 35 dB of 8 bits
    found, refused = candidates(PackagesModel(exact, fewer), rows, WORK, bench_run.has_parity)
    assert (fastest(found, []).precision, refused) == ("8bit", [])


def test_the_precision_of_one_network_alone_is_no_candidate():
    decoder = a_package("autoregressive", **DECODER)
    univnet = a_package("univnet", "fp32", 100.0, univnet_62=("univnet", {"frames": 62}))
    rows = [*package_rows(decoder, {"CPU_ONLY": dict.fromkeys(DECODER, 1)}),
            *package_rows(univnet, {"CPU_ONLY": {"univnet_62": 1}})]
    (found,), _ = candidates(PackagesModel(decoder, univnet), rows, WORK, bench_run.has_parity)
    assert found.tuning.precision == "fp16"
    assert set(found.tuning.compute_units) == {"autoregressive", "univnet"}


@pytest.mark.parametrize("backend", ["torch:cpu", "onnx:cpu"])
def test_on_the_cpu_the_number_of_threads_with_the_least_sum_is_chosen_with_the_best_lanes(backend):
    def row(kind, threads, figure, lanes=None):
        network, bucket = ("autoregressive", {"columns": lanes}) if lanes else ("diffusion", {"batch": 1})
        return bench_row(figure, backend, network=network, kind=kind, threads=threads, lanes=lanes, bucket=bucket)

    rows = [row("step", 1, 10, 1), row("step", 1, 20, 8), row("denoise", 1, 100),
            row("step", 2, 12, 1), row("step", 2, 22, 8), row("denoise", 2, 50)]
    (found,), _ = candidates(PackagesModel(), rows, WORK, bench_run.has_parity)
    assert (found.tuning.backend, found.tuning.threads, found.tuning.lanes) == (backend, 2, 8)
    assert decoder_steps(rows[:1], WORK).lanes == 1
    assert decoder_steps(rows[:2], dataclasses.replace(WORK, candidates=1)).lanes is None


def test_int8_is_a_choice_of_its_own_whose_other_networks_are_in_the_default_precision():
    def row(kind, precision, figure, **rest):
        return bench_row(figure, **{"network": "autoregressive", "threads": 1, "bucket": {"columns": 1}, "kind": kind,
                                    "precision": precision} | rest)

    rows = [row("step", "auto", 10, lanes=1), row("denoise", "auto", 100, network="diffusion", bucket={"batch": 1}),
            row("step", "int8", 4, lanes=1)]
    (usual, int8), refused = candidates(PackagesModel(), rows, WORK, bench_run.has_parity)
    assert (usual.tuning.precision, int8.tuning.precision, refused) == ("auto", "int8", [])
    steps = (decoder_steps([each], WORK).seconds for each in rows[::2])
    assert usual.estimate - int8.estimate == pytest.approx(next(steps) - next(steps))
    assert int8.estimate > decoder_steps(rows[2:], WORK).seconds
    rows[2] = dataclasses.replace(rows[2], value=None, error="int8 reaches 12.0 dB")
    (only,), (refused,) = candidates(PackagesModel(), rows, WORK, bench_run.has_parity)
    assert (only.tuning.precision, refused.what) == ("auto", "torch:cpu int8, 1 threads")


def test_a_decoder_that_loses_too_much_in_int8_is_not_measured_in_it(monkeypatch):
    monkeypatch.setattr(int8_accuracy, "THRESHOLD_DB", 60.0)
    backend = TorchBackend(RandomModel(), "cpu", "int8")
    first = next(StageCalls(backend, WORK).functions("torch:cpu", "int8", 1, (1,)))
    error = measure_function(first, 1).error
    assert re.search(r"int8 reaches [\d.]+ dB against float32, below the threshold of 60", error)


def test_the_interpreter_is_never_chosen():
    found, (refused,) = candidates(PackagesModel(), [bench_row(0.1, "mil:fp16")], WORK, bench_run.has_parity)
    assert (found, refused.what) == ([], "mil:fp16")


def test_the_spoken_sentence_decides_between_engines_and_one_that_fails_is_not_chosen():
    def spoken(tuning: Tuning, figure: float | str) -> SpokenSentence:
        return SpokenSentence(tuning, bench_row(figure))

    sentences = [spoken(Tuning("torch:cpu"), 2.0), spoken(Tuning("coreml"), 0.5),
                 spoken(Tuning("coreml", "8bit"), "the process was ended by SIGKILL")]
    assert fastest([], sentences).backend == "coreml"
    assert fastest([], sentences).measured["real_time_factor"] == 0.5
    assert fastest([], sentences[2:]) is None
    assert fastest([], []) is None


def test_threads_to_try_are_powers_of_two_and_all():
    assert [bench_run.thread_counts(cores) for cores in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]
