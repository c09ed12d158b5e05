"""Test that `ane convert` says how far it is and how much time is left, and first whether there is enough memory."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ane.bundles.family import find_family
from ane.cli import main
from ane.commands import convert
from converters.progress import ConversionProgress, memory_needed

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def measured_peaks() -> dict[str, float]:
    """GB of the largest networks at the official size; the decoder with all functions was measured later."""
    rows = json.loads((RESULTS / "2026-11-21-convert-amd-epyc.json").read_text())["networks"]
    peaks = {row["network"]: row["peak_gb"] for row in rows if row["network"] in ("diffusion", "clvp", "hifigan")}
    later = json.loads((RESULTS / "2026-11-23-decoder-official.json").read_text())
    return peaks | {"autoregressive": max(later["build"]["peak_gb"], later["verify"]["peak_gb"])}


@pytest.mark.parametrize(("network", "peak"), measured_peaks().items())
def test_the_formula_for_memory_fits_what_was_measured_at_the_official_size(network, peak):
    family = find_family("tortoise")
    official = SimpleNamespace(family=family, config=lambda name: family.networks[name].official())
    assert memory_needed(official, network) / 1e9 == pytest.approx(peak, abs=0.9)


@pytest.mark.parametrize(("gigabytes", "warned"), [(None, False), (2.4, True), (8, False)])
def test_little_memory_is_announced_before_the_conversion(
    random_bundle, tmp_path, monkeypatch, capsys, gigabytes, warned
):
    monkeypatch.setattr(convert, "memory_bytes", lambda: gigabytes and int(gigabytes * 1e9))
    assert (
        main(["convert", str(random_bundle), "--to", "coreml", "-o", str(tmp_path / "out"), "--networks", "rlg_auto"])
        == 0
    )
    line = (
        "converting rlg_auto takes about 2.0 GB of memory (an estimate: 2 GB and 3.6 times its weights in "
        "float32), and this machine has 2.4 GB: close other programs, or convert on a larger machine"
    )
    assert (line in " ".join(capsys.readouterr().err.split())) == warned


def test_it_counts_functions_and_estimates_the_time_left():
    """A function of a network takes as long as its weights are many; building takes a third of measuring."""
    now, lines = [0.0], []
    progress = ConversionProgress(
        lambda network, text: lines.append(f"{network}: {text}"),
        [("decoder", 3, 10), ("vocoder", 1, 5)],
        clock=lambda: now[0],
    )
    for package, names in enumerate((("prefill", "step", "state"), ("hifigan",))):
        for activity, seconds in (("building", 100), ("measuring", 300)):
            for name in names:
                progress.report(package, f"{activity} {name}")
                now[0] += seconds / (1, 2)[package]
    assert lines == [
        "decoder: building prefill, 1 of 3 functions",
        # 2.5 functions are left to build, and 3.5 to measure, which counts as equally slow
        "decoder: building step, 2 of 3 functions, about 10 min left",
        "decoder: building state, 3 of 3 functions, about 9 min left",
        "decoder: measuring prefill, 1 of 3 functions, about 7 min left",
        "decoder: measuring step, 2 of 3 functions, about 14 min left",  # measuring has turned out to be slower
        "decoder: measuring state, 3 of 3 functions, about 9 min left",
        "vocoder: building hifigan, 1 of 1 functions, about 4 min left",
        "vocoder: measuring hifigan, 1 of 1 functions, about 3 min left",
    ]
