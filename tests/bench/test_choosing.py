"""Test what `ane bench` measures about a package, and which settings it chooses from the measurements."""

import argparse
import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from ane.bench import sessions
from ane.bench.measure import functions_of_a_sentence
from ane.bench.records import BenchRow, Spread
from ane.bench.worker import Tuning
from ane.bundles.package_records import FunctionRecord, PackageRecord
from ane.commands import bench
from tests.random_model import random_model


def test_of_each_kind_the_function_that_the_sentence_takes_is_measured():
    buckets = {
        "prefill_64": ("prefill", {"columns": 64}),
        "prefill_128": ("prefill", {"columns": 128}),
        "step_1_64": ("step", {"columns": 1, "slots": 64}),
        "state_1_64": ("state", {"columns": 1, "slots": 64}),
        "univnet_14": ("univnet", {"frames": 14}),
        "univnet_62": ("univnet", {"frames": 62}),
        **{
            f"denoise_{batch}_{frames}": ("denoise", {"batch": batch, "frames": frames})
            for batch in (1, 2)
            for frames in (320, 576, 1152)
        },
    }
    records = {name: FunctionRecord(kind, bucket, {}) for name, (kind, bucket) in buckets.items()}
    package = PackageRecord("autoregressive", "fp16", "packages/x.mlpackage", [], records)
    assert functions_of_a_sentence(package) == [
        "prefill_64",
        "step_1_64",
        "state_1_64",
        "univnet_62",
        "denoise_1_576",
        "denoise_2_576",
    ]


@pytest.fixture
def run(monkeypatch) -> bench.BenchRun:
    """A run whose sentence takes a time of its own with each of the settings."""
    seconds = {"torch:cpu": 2.0, "coreml, CPU_ONLY": 0.5}

    def spoken(model, request) -> BenchRow:
        name = str(model.tuning)
        if name not in seconds:
            return BenchRow(name, "sentence", error="the process was ended by SIGKILL")
        return BenchRow(name, "sentence", value=Spread.of([seconds[name]]))

    monkeypatch.setattr(sessions, "spoken_sentence", spoken)
    model = copy.copy(random_model())  # other tests share the original
    model.path = Path("here")
    args = argparse.Namespace(text="Hi.")
    return bench.BenchRun(args, Console(stderr=True), model, {"torch:cpu": model, "coreml": model}, None)


def bench_row(error: str | None = None) -> BenchRow:
    return BenchRow("coreml", "step_1_64", value=None if error else Spread.of([1.0]), error=error)


def test_the_fastest_spoken_sentence_decides_and_what_fails_is_not_chosen(run):
    refused = Tuning("coreml", compute_units="CPU_AND_NE")
    ended = Tuning("coreml", compute_units="CPU_AND_GPU")
    chosen = Tuning("coreml", compute_units="CPU_ONLY")
    run.functions = {
        refused: [bench_row(), bench_row("the Neural Engine's compiler refuses it")],
        ended: [bench_row()],
        chosen: [bench_row()],
        Tuning("mil:fp16"): [bench_row()],
    }
    bench.speak_sentence(run)
    assert list(run.sentences) == [Tuning("torch:cpu"), ended, chosen], "what `ane say` uses by itself comes first"
    assert (run.fastest, set(run.refused)) == (chosen, {"coreml, CPU_AND_NE", "mil:fp16"})
    assert "compiler refuses" in run.refused["coreml, CPU_AND_NE"]


def test_without_any_settings_nothing_is_spoken_or_chosen(run):
    run.functions = {Tuning("mil"): [bench_row()]}
    bench.speak_sentence(run)
    assert (run.sentences, run.fastest) == ({}, None)


def test_each_precision_and_compute_unit_and_number_of_threads_is_measured(monkeypatch):
    model = SimpleNamespace(networks={"autoregressive", "diffusion", "univnet"})
    args = argparse.Namespace(precision=None, compute_units=None, threads=(1, 2), runs=3)
    run = bench.BenchRun(args, Console(stderr=True), model, {}, None)

    def measured(spec: str) -> list[str]:
        run.models = {spec: SimpleNamespace(path=Path("here"))}
        return [str(request.tuning) for _, request in bench.requests(run, "folder")]

    assert measured("torch:cpu") == [
        "torch:cpu, threads 1",
        "torch:cpu, int8, threads 1",
        "torch:cpu, threads 2",
        "torch:cpu, int8, threads 2",
    ]
    with monkeypatch.context() as arm64:
        arm64.setattr("ane.backends.torch.linear.has_fbgemm", lambda: False)
        arm64.setattr("ane.backends.torch.linear.has_one_dnn", lambda: False)
        arm64.setattr("ane.backends.torch.linear.kernel_packing", lambda weights: None)
        found = measured("torch:cpu")
        assert found[:3] == ["torch:cpu, threads 1", "torch:cpu, int8, threads 1", "torch:cpu, fp16, threads 1"]
        args.precision = ["int8"]
        assert not any("fp16" in name for name in measured("torch:cpu"))
        args.precision = None
    assert measured("coreml") == ["coreml, CPU_ONLY", "coreml, CPU_AND_GPU", "coreml, CPU_AND_NE"]
    monkeypatch.setattr("ane.system.machine.macos_version", lambda: "27.0")
    assert measured("coreml") == ["coreml, CPU_ONLY", "coreml, CPU_AND_NE"]
    args.precision, args.compute_units = ["fp16", "8bit"], ["ALL"]
    assert measured("coreml") == ["coreml, fp16, ALL", "coreml, 8bit, ALL"]
    assert measured("torch:cpu") == ["torch:cpu, threads 1", "torch:cpu, threads 2"]
    # without --threads, the numbers are the powers of two and the number of cores
    assert [bench.thread_counts(cores) for cores in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]
