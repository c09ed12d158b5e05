"""Test that `ane bench` names and records the fastest engine of each phase, and that `auto` then uses these engines."""

import json
import re
import shutil

import numpy as np
import pytest

from ane.backends import load_backend, measured
from ane.backends.measured import EngineChoice, measured_engines, measured_file, remember
from ane.bench import sessions
from ane.bench.records import BenchRow, Spread
from ane.bench.worker import Tuning
from ane.bundles.opening import open_model
from ane.cli import main
from ane.commands.bench import fastest_engines
from ane.system.errors import UserError
from tests.bench.in_process import InProcessWorker

TORCH, MLX, GPU = (Tuning(name) for name in ("torch:cpu", "mlx", "torch:mps"))
ONE, TWO = (Tuning("torch:cpu", threads=threads) for threads in (1, 2))
INT8, HALF = (Tuning("torch:cpu", precision) for precision in ("int8", "fp16"))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # (seconds of decoding, seconds of all phases) for one second of speech
        ({TORCH: (2, 5), MLX: (1, 2)}, (MLX, MLX)),
        ({TORCH: (2, 3), MLX: (1, 4), GPU: (3, 5)}, (MLX, TORCH)),
        ({TORCH: (1.1, 3), MLX: (1, 4)}, (TORCH, TORCH)),  # two engines would save 3 %
        ({TORCH: (2, 3), INT8: (1, 2), MLX: (3, 4)}, (TORCH, TORCH)),
        ({TORCH: (2, 3), HALF: (1, 2), MLX: (3, 4)}, (HALF, HALF)),
        # torch has one number of threads for all networks in a process
        ({ONE: (1, 4), TWO: (3, 4.5), MLX: (9, 12)}, (ONE, ONE)),
        ({ONE: (1, 4), TWO: (3, 3.5), GPU: (9, 12)}, (TWO, TWO)),
        ({ONE: (1, 4), TWO: (3, 3.5), GPU: (9, 9.1)}, (ONE, GPU)),
        ({TORCH: (2, 3), MLX: None}, None),
        ({TORCH: (2, 3), INT8: (1, 2)}, None),
    ],
)
def test_two_engines_are_chosen_only_where_they_save_much(seconds, expected):
    rows = {
        tuning: BenchRow(str(tuning), "sentence", error="it crashed")
        if times is None
        else BenchRow(
            str(tuning),
            "sentence",
            value=Spread.of([float(times[1])]),
            figures={"audio_s": 2.0, "decode_s": 2.0 * times[0]},
        )
        for tuning, times in seconds.items()
    }
    assert fastest_engines(rows) == expected


@pytest.fixture
def bundle(random_bundle, tmp_path, monkeypatch):
    """A bundle that is not embedded, and an empty cache."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    return open_model(shutil.copytree(random_bundle, tmp_path / "bundle"))


def test_bench_measures_mlx_and_torch_and_auto_follows(bundle, monkeypatch, capsys):
    monkeypatch.setattr(sessions, "WorkerProcess", InProcessWorker)
    monkeypatch.setattr(sessions, "READINGS", 1)
    assert (
        main(
            [
                "bench",
                "--bundle",
                str(bundle.path),
                "--backend",
                "mlx,torch:cpu",
                "--threads",
                "1",
                "--precision",
                "fp32",
                "--preset",
                "fastest",
                "--text",
                "Hi.",
            ]
        )
        == 0
    )
    printed = " ".join(capsys.readouterr().out.split())
    for phase in ("Decoding", "Vocoding"):
        assert re.search(rf"{phase}: (mlx|torch:cpu.*?) is fastest, [\d.]+ s per second of speech", printed)
    assert f"for this bundle on this machine ({measured_file(bundle)})" in printed
    found = measured_engines(bundle)
    assert {found.decoder.backend, found.others.backend} <= {"mlx", "torch:cpu"}
    name = load_backend("auto", bundle).name
    assert name.startswith("mlx:cpu" if found.decoder.backend == "mlx" else "torch:cpu")
    assert main(["cache", "clear"]) == 0
    assert measured_engines(bundle) is None


def test_the_decoder_and_the_other_networks_run_where_each_was_fastest(bundle, tmp_path, caplog, capsys):
    remember(bundle, "2026-11-29T10:00:00", EngineChoice("mlx"), EngineChoice("torch:cpu"))
    with caplog.at_level("INFO"):
        backend = load_backend("auto", bundle)
    assert "`ane bench` found the decoder on mlx, the other networks on torch:cpu fastest here" in caplog.text
    assert re.match("mlx:cpu fp16.*; other networks: torch:cpu", backend.name)
    columns = np.random.default_rng(0).standard_normal((5, bundle.config("autoregressive").model_dim), np.float32)
    answers = [load_backend(name, bundle).decoder(1, 4).prefill(columns)[0] for name in ("mlx", "torch:cpu")]
    np.testing.assert_array_equal(backend.decoder(1, 4).prefill(columns)[0], answers[0])
    assert not np.array_equal(*answers), "the engines' bits tell them apart"
    assert (
        main(
            [
                "say",
                "Hi.",
                "--bundle",
                str(bundle.path),
                "--preset",
                "ultra_fast",
                "--seed",
                "0",
                "--max-codes",
                "8",
                "--json",
                "-o",
                str(tmp_path / "a.wav"),
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["backend"] == backend.name


def test_auto_follows_a_precision_that_was_measured(bundle):
    half = EngineChoice("torch:cpu", threads=1, precision="fp16")
    remember(bundle, "2026-11-29T10:00:00", half, half)
    assert str(measured_engines(bundle)) == "torch:cpu, fp16, 1 threads"
    assert load_backend("auto", bundle).name == "torch:cpu fp16"
    record = json.loads(measured_file(bundle).read_text())
    for engine in (record["decoder"], record["others"]):
        del engine["precision"]  # as an earlier version wrote it
    measured_file(bundle).write_text(json.dumps(record))
    assert load_backend("auto", bundle).name != "torch:cpu fp16"


@pytest.mark.parametrize("how", ["other machine", "damaged", "named precision", "engine is gone"])
def test_what_was_measured_holds_for_this_machine_alone(bundle, monkeypatch, caplog, how):
    remember(bundle, "2026-11-29T10:00:00", EngineChoice("mlx"), EngineChoice("mlx"))
    assert load_backend("auto", bundle).name.startswith("mlx")
    if how == "other machine":
        monkeypatch.setattr(measured, "system_version", lambda: "macOS 27.0 (26A1)")
    elif how == "damaged":
        measured_file(bundle).write_text("{")
    elif how == "engine is gone":
        monkeypatch.setattr("ane.backends.choosing.load_mlx", lambda *_: raise_(UserError("MLX is not installed")))
    precision = "fp32" if how == "named precision" else "auto"
    with caplog.at_level("INFO"):
        assert load_backend("auto", bundle, precision).name.startswith("torch:cpu")
    assert ("MLX is not installed. Running on torch instead." in caplog.text) == (how == "engine is gone")


def raise_(error: Exception) -> None:
    raise error
