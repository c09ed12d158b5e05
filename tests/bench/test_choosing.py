"""What `ane bench` measures of a package, and what it chooses from that."""

import dataclasses
import re
from pathlib import Path

import pytest

from ane.backends.torch.backend import TorchBackend
from ane.backends.tuning import Tuning
from ane.bench import nearness
from ane.bench.choosing import candidates, decoder_steps, fastest
from ane.bench.figures import Calls, Row, Spoken
from ane.bench.measure import measured
from ane.bench.packages import Wanted
from ane.bench.uses import Uses
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.commands import bench
from tests.random_model import RandomModel

CALLS = Calls(candidates=16, steps=30, guided=False, frames=374, capacity=100)
ROW = Row("torch:cpu", "clvp", "clvp_text", "clvp_text", {}, "auto")


def a_package(network: str, precision: str = "fp16", parity: float = 70.0, **functions) -> PackageRecord:
    stated = {"fp32 maths": parity} | ({"fp16 rounding": parity} if precision != "fp32" else {})
    records = {name: FunctionRecord(kind, bucket, stated) for name, (kind, bucket) in functions.items()}
    return PackageRecord(network, precision, f"packages/{network}-{precision}.mlpackage", [], records)


DECODER = {"step_4": ("step", {"columns": 4, "slots": 444}), "step_8": ("step", {"columns": 8, "slots": 844}),
           "state_8": ("state", {"columns": 8, "slots": 844})}
DIFFUSION = {"denoise_1_576": ("denoise", {"batch": 1, "frames": 576}),
             "denoise_2_576": ("denoise", {"batch": 2, "frames": 576})}


class Packages:
    """A model of packages on paper."""

    name, path = "paper", Path("paper")

    def __init__(self, *packages: PackageRecord):
        self.packages = list(packages)


def timed_rows(package: PackageRecord, milliseconds: dict[str, dict[str, float | str]]) -> list[Row]:
    """Rows of its functions; ``milliseconds`` by units, then by function; text is an error."""
    rows = []
    for units, times in milliseconds.items():
        for name, figure in times.items():
            record = package.functions[name]
            cache = {"step": "io", "state": "state"}.get(record.kind)
            row = Row("coreml", package.network, name, record.kind, record.bucket, package.precision, units,
                      cache=cache, lanes=CALLS.lanes(record.bucket) if cache else None)
            rows.append(dataclasses.replace(row, error=figure) if isinstance(figure, str) else
                        dataclasses.replace(row, p50_ms=figure, p95_ms=figure, runs=1))
    return rows


def test_of_each_sort_the_function_is_measured_that_the_sentence_takes():
    buckets = {"prefill_64": ("prefill", {"columns": 64}), "prefill_128": ("prefill", {"columns": 128}),
               "step_1_64": ("step", {"columns": 1, "slots": 64}), "state_1_64": ("state", {"columns": 1, "slots": 64}),
               "univnet_14": ("univnet", {"frames": 14}), "univnet_62": ("univnet", {"frames": 62}),
               **{f"denoise_{batch}_{frames}": ("denoise", {"batch": batch, "frames": frames})
                  for batch in (1, 2) for frames in (320, 576, 1152)}}
    package = a_package("autoregressive", **buckets)
    assert Wanted().functions(package, CALLS) == ["prefill_64", "step_1_64", "state_1_64", "univnet_62",
                                                  "denoise_1_576", "denoise_2_576"]
    assert Wanted(every=True).functions(package, CALLS) == list(buckets)
    assert Wanted(frozenset(["clvp"])).functions(package, CALLS) == []
    assert Wanted(precisions=frozenset(["8bit"])).functions(package, CALLS) == []


def test_each_network_gets_its_fastest_units_and_the_decoder_cache_and_lanes_too():
    decoder, diffusion = a_package("autoregressive", **DECODER), a_package("diffusion", **DIFFUSION)
    rows = [*timed_rows(decoder, {"CPU_ONLY": {"step_4": 4, "step_8": 9, "state_8": 9},       # 1 ms a lane at best
                                  "CPU_AND_NE": {"step_4": 5, "step_8": 7, "state_8": 4}}),   # 0.5
            *timed_rows(diffusion, {"CPU_ONLY": {"denoise_1_576": 3, "denoise_2_576": 9},     # batches of two: unused
                                    "CPU_AND_NE": {"denoise_1_576": 4, "denoise_2_576": 1}})]
    (found,), refused = candidates(Packages(decoder, diffusion), rows, CALLS, bench.holds_parity)
    assert refused == []
    assert found.tuning == Tuning("coreml", "fp16", {"autoregressive": "CPU_AND_NE", "diffusion": "CPU_ONLY"}, "state",
                                  lanes=8)
    assert found.estimate == pytest.approx(86 * 16 / 8 * 0.004 + 30 * 0.003)


def test_units_on_which_a_function_fails_are_out():
    decoder = a_package("autoregressive", **DECODER)
    fails = {"step_4": 1, "step_8": 1, "state_8": "the Neural Engine's compiler refuses it"}
    works = {"step_4": 8, "step_8": 9, "state_8": 10}
    (found,), _ = candidates(Packages(decoder), timed_rows(decoder, {"CPU_AND_NE": fails, "CPU_ONLY": works}), CALLS,
                             bench.holds_parity)
    assert found.tuning.units == {"autoregressive": "CPU_ONLY"}
    found, (refused,) = candidates(Packages(decoder), timed_rows(decoder, {"CPU_AND_NE": fails}), CALLS,
                                   bench.holds_parity)
    assert found == []
    assert "compiler refuses" in refused.why


@pytest.mark.parametrize("parity", [30.0, None])
def test_the_fastest_precision_is_out_without_parity(parity):
    exact, fewer = a_package("autoregressive", **DECODER), a_package("autoregressive", "8bit", 30.0, **DECODER)
    if parity is None:
        for name, record in fewer.functions.items():
            fewer.functions[name] = dataclasses.replace(record, parity={})
    rows = [*timed_rows(exact, {"CPU_AND_NE": dict.fromkeys(DECODER, 9)}),
            *timed_rows(fewer, {"CPU_AND_NE": dict.fromkeys(DECODER, 1)})]
    found, (refused,) = candidates(Packages(exact, fewer), rows, CALLS, bench.holds_parity)
    assert fastest(found, []).precision == "fp16"
    assert "parity" in refused.why
    fewer = a_package("autoregressive", "8bit", 36.0, **DECODER)        # above the 35 dB of 8 bits
    found, refused = candidates(Packages(exact, fewer), rows, CALLS, bench.holds_parity)
    assert (fastest(found, []).precision, refused) == ("8bit", [])


def test_a_network_of_one_precision_makes_no_second_choice():
    decoder = a_package("autoregressive", **DECODER)
    univnet = a_package("univnet", "fp32", 100.0, univnet_62=("univnet", {"frames": 62}))
    rows = [*timed_rows(decoder, {"CPU_ONLY": dict.fromkeys(DECODER, 1)}),
            *timed_rows(univnet, {"CPU_ONLY": {"univnet_62": 1}})]
    (found,), _ = candidates(Packages(decoder, univnet), rows, CALLS, bench.holds_parity)
    assert found.tuning.precision == "fp16"
    assert set(found.tuning.units) == {"autoregressive", "univnet"}


def test_torch_gets_the_threads_that_are_fastest_in_all_and_the_best_lanes():
    def row(kind, threads, figure, lanes=None):
        return dataclasses.replace(ROW, network="autoregressive" if lanes else "diffusion", kind=kind, threads=threads,
                                   lanes=lanes, bucket={"columns": lanes} if lanes else {"batch": 1}, p50_ms=figure)

    rows = [row("step", 1, 10, 1), row("step", 1, 20, 8), row("denoise", 1, 100),
            row("step", 2, 12, 1), row("step", 2, 22, 8), row("denoise", 2, 50)]
    (found,), _ = candidates(Packages(), rows, CALLS, bench.holds_parity)
    assert (found.tuning.threads, found.tuning.lanes) == (2, 8)
    assert decoder_steps(rows[:1], CALLS).lanes == 1
    assert decoder_steps(rows[:2], dataclasses.replace(CALLS, candidates=1)).lanes is None


def test_int8_is_a_choice_of_its_own_whose_other_networks_are_the_usual_ones():
    def row(kind, precision, figure, **rest):
        usual = {"network": "autoregressive", "threads": 1, "bucket": {"columns": 1}}
        return dataclasses.replace(ROW, **usual | {"kind": kind, "precision": precision, "p50_ms": figure} | rest)

    rows = [row("step", "auto", 10, lanes=1), row("denoise", "auto", 100, network="diffusion", bucket={"batch": 1}),
            row("step", "int8", 4, lanes=1)]
    (usual, fewer), refused = candidates(Packages(), rows, CALLS, bench.holds_parity)
    assert (usual.tuning.precision, fewer.tuning.precision, refused) == ("auto", "int8", [])
    steps = (decoder_steps([each], CALLS).seconds for each in rows[::2])
    assert usual.estimate - fewer.estimate == pytest.approx(next(steps) - next(steps))
    assert fewer.estimate > decoder_steps(rows[2:], CALLS).seconds
    rows[2] = dataclasses.replace(rows[2], error="int8 reaches 12.0 dB against float32, and 25 are asked for")
    (only,), (refused,) = candidates(Packages(), rows, CALLS, bench.holds_parity)
    assert (only.tuning.precision, refused.what) == ("auto", "torch:cpu int8, 1 threads")


def test_a_decoder_that_loses_too_much_in_int8_is_not_measured_in_it(monkeypatch):
    monkeypatch.setattr(nearness, "BAR", 60.0)
    backend = TorchBackend(RandomModel(), "cpu", "int8")
    first = next(Uses(backend, CALLS).subjects(1, "int8", "torch:cpu", (1,)))
    assert re.search(r"int8 reaches [\d.]+ dB against float32, and 60 are asked for", measured(first, 1).error)


def test_the_interpreter_is_never_chosen():
    found, (refused,) = candidates(Packages(), [dataclasses.replace(ROW, backend="mil:fp16", p50_ms=0.1)], CALLS,
                                   bench.holds_parity)
    assert (found, refused.what) == ([], "mil:fp16")


def test_the_spoken_sentence_decides_between_engines_and_who_fails_is_out():
    said = [Spoken(Tuning("torch:cpu"), real_time_factor=2.0), Spoken(Tuning("coreml"), real_time_factor=0.5),
            Spoken(Tuning("coreml", "8bit"), error="the process was ended by SIGKILL")]
    assert fastest([], said).backend == "coreml"
    assert fastest([], said).measured["real_time_factor"] == 0.5
    assert fastest([], said[2:]) is None
    assert fastest([], []) is None


def test_threads_to_try_are_powers_of_two_and_all():
    assert [bench.thread_counts(cores) for cores in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]
