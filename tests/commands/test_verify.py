"""``ane verify``: what it prints, writes and refuses."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from ane.cli import main
from ane.commands import packages, progress
from tests.small_bundle import spoil, write_small_bundle

DECODER, RANDOM_LATENTS = (f"packages/{network}-fp16.mlpackage" for network in ("autoregressive", "rlg_auto"))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_small_bundle(tmp_path_factory.mktemp("bundles"), ["autoregressive", "rlg_auto"])


@pytest.fixture
def copy(small, tmp_path) -> Path:
    return shutil.copytree(small, tmp_path / "copy")


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(progress, "INTERVAL", float("inf"))     # no plain progress lines, however slow the machine


@pytest.fixture
def run(capsys):
    """Run the command: exit status, standard output, standard error."""
    def running(*arguments) -> tuple[int, str, str]:
        status = main(["verify", *map(str, arguments)])
        return status, *capsys.readouterr()

    return running


def rows(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]


def test_every_function_is_shown(run, small):
    status, out, err = run("--bundle", small)
    assert (status, err) == (0, "")
    assert [row[:2] + row[-1:] for row in rows(out)] == [
        ["autoregressive-fp16", "prefill_32", "passes"], ["autoregressive-fp16", "step_2_64", "passes"],
        ["autoregressive-fp16", "state_2_64_64", "passes"], ["autoregressive-fp16", "store_32_64", "passes"],
        ["rlg_auto-fp16", "ar_random", "passes"]]
    assert "On mil, compared with float32 torch" in out


def test_the_report_begins_with_a_sentence_a_network_and_fits_100_columns(run, small):
    lines = run("--bundle", small)[1].splitlines()
    text = " ".join(" ".join(lines[:5]).split())
    assert re.match(r"autoregressive: all 4 functions pass; nearest to its threshold is \w+, [\d.]+ dB above it\. "
                    r"rlg_auto: its function passes; nearest to its threshold is ar_random, [\d.]+ dB above it\.", text)
    assert max(map(len, lines)) <= 100
    assert "FUNCTIONS of converters/*/functions.py" in " ".join(" ".join(lines).split()), "where thresholds come from"


def test_networks_and_a_function_are_chosen(run, small):
    for networks, function in (("rlg_auto", ()), ("rlg_auto,autoregressive", ("--function", "ar_random"))):
        status, out, _ = run("--bundle", small, "--networks", networks, *function, "--against", "mil:fp16",
                             "--narrow-norms")
        assert status == 0
        assert [row[1] for row in rows(out)] == ["ar_random"]
        assert "On mil:fp16, narrow norms" in out


def test_the_values_of_one_function_are_shown(run, small):
    _, out, _ = run("--bundle", small, "--function", "step_2_64", "--against", "mil:fp16", "--layers")
    assert [row[0] for row in rows(out) if row[0].startswith("gpt.h.1")] == [
        f"gpt.h.1{inside}" for inside in (".ln_1", ".attn", ".ln_2", ".mlp.c_fc", ".mlp", "")]
    assert [row[-1] for row in rows(out)].count("worst") == 1
    assert "operations that lose most against float32" in out


def test_several_functions_are_shown_in_one_row_each(run, small):
    _, out, _ = run("--bundle", small, "--layers")
    assert ["autoregressive-fp16", "step_2_64", "21"] in [row[:3] for row in rows(out)]
    assert "gpt.h.1.mlp.c_fc" not in out


def test_json_is_written(run, small, tmp_path):
    status, _, _ = run("--bundle", small, "--layers", "--against", "mil:fp16", "--json", tmp_path / "found.json")
    assert status == 0
    report = json.loads((tmp_path / "found.json").read_text())
    step = next(one for one in report["functions"] if one["function"] == "step_2_64")
    assert step["passed"]
    assert step["values"][0]["module"] == "gpt.h.0.ln_1"
    assert len(step["operations"]) > 80


def test_tensors_of_the_values_are_kept(run, small, tmp_path):
    """Of every value; residual streams of the package are times their scale."""
    status, out, _ = run("--bundle", small, "--function", "step_2_64", "--layers", "--dump", tmp_path / "x.npz",
                         "--json", tmp_path / "found.json")
    [found] = json.loads((tmp_path / "found.json").read_text())["functions"]
    tensors = np.load(tmp_path / "x.npz")
    assert status == 0
    assert sorted(tensors) == sorted(f"autoregressive-fp16/step_2_64/{value['module']}/{which}"
                                     for value in found["values"] for which in ("reference", "package"))
    error = tensors["autoregressive-fp16/step_2_64/gpt.h.1/reference"] - tensors[
        "autoregressive-fp16/step_2_64/gpt.h.1/package"]
    [value] = [value for value in found["values"] if value["module"] == "gpt.h.1"]
    assert np.abs(error).max() == pytest.approx(value["error"], rel=1e-3)
    assert value["elements"]["count"] == error.size
    assert "out of tolerance" in out


def test_json_goes_to_standard_output_alone(run, small):
    _, out, _ = run("--bundle", small, "--networks", "rlg_auto", "--json", "-")
    assert json.loads(out)["against"] == "mil"


def test_a_wrong_weight_is_reported_in_one_line_with_its_layer(run, copy, tmp_path):
    spoil(copy, DECODER, "step_2_64", "gpt__h__1__mlp__c_fc")
    status, out, err = run("--bundle", copy, "--layers", "--json", tmp_path / "found.json")
    assert status == 1
    assert err.count("\n") == 1
    assert "4 of 5 functions failed: autoregressive-fp16, prefill_32: " in err
    assert "from the operation conv gpt__h__1__mlp__c_fc on" in err
    assert "fails" in out
    assert json.loads((tmp_path / "found.json").read_text())["functions"][0]["drift"] == "gpt__h__1__mlp__c_fc"


@pytest.mark.parametrize(("arguments", "message"), [
    (("--networks", "cvvp"), "cvvp: random has no package of it; there are autoregressive, rlg_auto"),
    (("--function", "step_9_9"), "--function step_9_9: no package has it; there are prefill_32, step_2_64, "),
    (("--narrow-norms",), "--narrow-norms has no effect on --against mil: it is for mil:fp16"),
    (("--compute-units", "CPU_ONLY"), "--compute-units has no effect on --against mil: it is for coreml"),
    (("--dump", "found.npz"), "--dump has no effect without --layers"),
    (("--tolerance", "1e-3"), "--tolerance has no effect without --layers"),
    (("--layers", "--dump", "found.txt"), "--dump found.txt: the file must end in .npz"),
    (("--layers", "--dump", "/dev/null/found.npz"), "cannot write /dev/null/found.npz"),
    (("--json", "/dev/null/found.json"), "cannot write /dev/null/found.json"),
])
def test_an_error_is_one_line(run, small, arguments, message):
    status, out, err = run("--bundle", small, *arguments)
    assert (status, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_bundle_without_packages_is_refused(run, small):
    status, _, err = run("--bundle", small.parent / "plain")
    assert status == 1
    assert "has no Core ML packages: make them with `ane convert" in err
    assert err.count("\n") == 1


@pytest.mark.skipif(sys.platform == "darwin", reason="Core ML runs on a Mac")
def test_core_ml_runs_on_a_mac_only(run, small):
    status, _, err = run("--bundle", small, "--against", "coreml")
    assert status == 1
    assert "Core ML runs on macOS only; --against mil interprets the same packages here" in err
    assert "backend" not in err


@pytest.mark.skipif(sys.platform == "darwin", reason="Core ML runs on a Mac")
def test_core_ml_off_macos_is_refused_before_the_embedded_bundle_is_converted(run, monkeypatch):
    monkeypatch.setattr(packages, "cached_packages", lambda *_: pytest.fail("it converts"))
    status, _, err = run("--against", "coreml")
    assert status == 1
    assert "Core ML runs on macOS only" in err
