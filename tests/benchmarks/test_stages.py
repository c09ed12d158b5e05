"""Stages and speech on several engines: rows, rates, ratios and accuracy."""

from pathlib import Path

import pytest
import torch

from ane.bench.records import BenchRow
from benchmarks.__main__ import BENCHMARKS, arguments_parser

SHORT = ["--precision", "fp32,int8", "--calls", "2", "--rounds", "1", "--threads", "1", "--competitors", "torch"]


def measured(name: str, bundle: Path, *flags: str) -> list[BenchRow]:
    options = arguments_parser().parse_args([name, "--bundle", str(bundle), *SHORT, *flags])
    rows = list(BENCHMARKS[name].measure(options).rows)
    assert all(row.error is None and row.value.median > 0 and row.figures["core_ms"] > 0 for row in rows)
    return rows


def test_a_decoder_has_a_row_for_every_precision_and_number_of_lanes(random_bundle):
    rows = measured("decode", random_bundle, "--lanes", "1,2")
    assert [(row.competitor, row.what, row.settings) for row in rows] == [
        (f"torch:cpu {precision}", what, settings) for precision in ("fp32", "int8")
        for what, settings in (("prefill", {}), ("decoder step", {"lanes": 1}), ("decoder step", {"lanes": 2}))]
    assert all(row.figures["tokens_per_s"] > 0 for row in rows if row.what == "decoder step")


def test_denoising_states_its_accuracy(random_bundle):
    rows = measured("diffusion", random_bundle, "--frames", "16", "--utterances", "1,2")
    assert [row.settings for row in rows[:2]] == [{"frames": 16, "utterances": 1}, {"frames": 16, "utterances": 2}]
    assert "snr_db" not in rows[0].figures
    # random weights; without VNNI, activations are rounded to 7 bits instead of 8, 6 dB less
    assert rows[2].figures["snr_db"] > (10 if torch.cpu._is_vnni_supported() else 4)


def test_vocoders_state_their_real_time_factor(random_bundle):
    rows = measured("vocoders", random_bundle, "--frames", "16")
    assert [row.what for row in rows] == ["univnet", "hifigan"] * 2
    assert all(row.figures["real_time_factor"] > 0 for row in rows)


@pytest.mark.parametrize("name", ["decode", "vocoders"])
def test_a_competitor_that_cannot_run_is_a_row_with_its_error(random_bundle, name):
    options = arguments_parser().parse_args([name, "--bundle", str(random_bundle), "--competitors", "mil", "--rounds",
                                             "1"])
    row, = BENCHMARKS[name].measure(options).rows
    assert row.value is None
    assert "package" in row.error
