"""``ane verify``: what it shows, writes and refuses, and what --force makes good."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from ane.bundles.bundle import Bundle
from ane.cli import main, parser
from ane.commands import verify as command
from tests.small_bundle import spoil, write_small_bundle

DECODER, DREAMER = (f"packages/{network}-fp16.mlpackage" for network in ("autoregressive", "rlg_auto"))


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
        ["autoregressive-fp16", "prefill_32", "holds"], ["autoregressive-fp16", "step_2_64", "holds"],
        ["autoregressive-fp16", "state_2_64", "holds"], ["rlg_auto-fp16", "ar_random", "holds"]]
    assert "On mil, against float32 torch" in out


def test_a_network_is_chosen(run, small):
    status, out, _ = run("--bundle", small, "--network", "rlg_auto", "--against", "mil:fp16", "--narrow-norms")
    assert status == 0
    assert [row[1] for row in rows(out)] == ["ar_random"]
    assert "On mil:fp16, narrow norms" in out


def test_the_values_of_one_function_are_shown(run, small):
    _, out, _ = run("--bundle", small, "--function", "step_2_64", "--against", "mil:fp16", "--layers")
    assert [row[0] for row in rows(out) if row[0].startswith("gpt.h.1")] == [
        f"gpt.h.1{inside}" for inside in (".ln_1", ".attn", ".ln_2", ".mlp.c_fc", ".mlp", "")]
    assert [row[-1] for row in rows(out)].count("worst") == 1
    assert "operations that lose most against float32" in out


def test_many_functions_are_shown_in_a_row_each(run, small):
    _, out, _ = run("--bundle", small, "--layers")
    assert ["autoregressive-fp16", "step_2_64", "21"] in [row[:3] for row in rows(out)]
    assert "gpt.h.1.mlp.c_fc" not in out


def test_json_and_a_plot_are_written(run, small, tmp_path):
    pytest.importorskip("matplotlib")
    status, _, _ = run("--bundle", small, "--layers", "--against", "mil:fp16", "--json", tmp_path / "found.json",
                       "--plot", tmp_path / "found.png")
    assert status == 0
    report = json.loads((tmp_path / "found.json").read_text())
    step = next(one for one in report["functions"] if one["function"] == "step_2_64")
    assert step["passed"]
    assert step["values"][0]["module"] == "gpt.h.0.ln_1"
    assert len(step["operations"]) > 80
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")


def test_json_goes_to_standard_output_alone(run, small):
    _, out, _ = run("--bundle", small, "--network", "rlg_auto", "--json", "-")
    assert json.loads(out)["against"] == "mil"


def test_a_wrong_weight_is_told_in_a_line_with_its_layer(run, copy, tmp_path):
    spoil(copy, DECODER, "step_2_64", "gpt__h__1__mlp__c_fc")
    status, out, err = run("--bundle", copy, "--layers", "--json", tmp_path / "found.json")
    assert status == 1
    assert err.count("\n") == 1
    assert "3 of 4 functions fall short: autoregressive-fp16, prefill_32: " in err
    assert "drifting from gpt.h.1.mlp.c_fc on; --force converts such packages anew" in err
    assert "falls short" in out
    assert json.loads((tmp_path / "found.json").read_text())["functions"][0]["drift"] == "gpt__h__1__mlp__c_fc"


@pytest.mark.parametrize("harm", ["spoilt", "changed", "missing"])
def test_force_makes_what_falls_short_again_and_nothing_else(run, copy, small, harm):
    weights = next((copy / DECODER).rglob("weight.bin"))
    if harm == "spoilt":
        spoil(copy, DECODER, "step_2_64", "gpt__h__0__attn")
    elif harm == "changed":
        weights.write_bytes(weights.read_bytes()[::-1])
    else:
        weights.unlink()
    assert run("--bundle", copy)[0] == 1
    kept = {file: file.stat().st_ino for file in (copy / DREAMER).rglob("*") if file.is_file()}
    status, out, err = run("--bundle", copy, "--force")
    assert (status, err) == (0, "")
    assert "Converted anew: autoregressive-fp16" in out
    assert {file: file.stat().st_ino for file in kept} == kept
    Bundle(copy).verify()
    assert sorted(path.relative_to(copy) for path in copy.rglob("*")) == sorted(
        path.relative_to(small) for path in small.rglob("*"))
    assert [path.name for path in copy.parent.iterdir() if path.name.startswith(".")] == []
    assert run("--bundle", copy)[0] == 0


def test_force_leaves_a_sound_bundle_alone(run, copy):
    def stamp() -> tuple[int, int]:
        return (copy / "bundle.json").stat().st_ino, (copy / "bundle.json").stat().st_mtime_ns

    before = stamp()
    status, out, _ = run("--bundle", copy, "--force")
    assert status == 0
    assert "anew" not in out
    assert stamp() == before


@pytest.mark.parametrize(("arguments", "said"), [
    (("--network", "cvvp"), "--network cvvp: random has no package of it; there are autoregressive, rlg_auto"),
    (("--function", "step_9_9"), "--function step_9_9: no package has it; there are prefill_32, step_2_64, "),
    (("--narrow-norms",), "--narrow-norms has no effect on --against mil: it is for mil:fp16"),
    (("--compute-units", "CPU_ONLY"), "--compute-units has no effect on --against mil: it is for coreml"),
    (("--plot", "found.png"), "--plot draws what --layers finds: add --layers"),
    (("--json", "/dev/null/found.json"), "cannot write /dev/null/found.json"),
    (("--layers", "--network", "rlg_auto", "--plot", "/dev/null/found.png"), "cannot write /dev/null/found.png"),
])
def test_what_is_wrong_is_said_in_a_line(run, small, arguments, said):
    status, out, err = run("--bundle", small, *arguments)
    assert (status, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_bundle_without_packages_is_refused(run, small):
    status, _, err = run("--bundle", small.parent / "plain")
    assert status == 1
    assert "holds no Core ML packages: make them with `ane convert" in err
    assert err.count("\n") == 1


def test_a_plot_of_an_unknown_kind_is_refused(run, small, tmp_path):
    pytest.importorskip("matplotlib")
    status, _, err = run("--bundle", small, "--network", "rlg_auto", "--layers", "--plot", tmp_path / "found.xyz")
    assert status == 1
    assert "found.xyz: " in err
    assert err.count("\n") == 1


def test_matplotlib_is_asked_for_by_name(run, small, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, _, err = run("--bundle", small, "--layers", "--plot", "found.png")
    assert status == 1
    assert "--plot needs matplotlib: pip install 'tortoise-ane[plots]'" in err


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has it")
def test_core_ml_is_of_a_mac(run, small):
    status, _, err = run("--bundle", small, "--against", "coreml")
    assert status == 1
    assert "Core ML runs on macOS only" in err


def test_the_choices_are_those_there_are():
    from ane.backends.coreml.engine import UNITS
    from converters.proof.verify import RUNNERS

    assert command.RUNNERS == RUNNERS
    assert sorted(command.UNITS) == sorted(UNITS)


def test_the_command_is_known():
    assert parser().parse_args(["verify"]).handler is command.verify_command
