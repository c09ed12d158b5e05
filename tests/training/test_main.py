"""Test `python -m training` from the start: tones replace the teachers, and each part trains for two steps."""

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

import ane
from training.__main__ import main
from training.recipe import TRAINED_PARTS

ROOT = Path(__file__).parents[2]


def arguments(output, wordnet, *more):
    return ["-o", str(output), "--wordnet", str(wordnet), "--threads", "1", "--workers", "1", "--device", "cpu", *more]


@pytest.fixture
def refusal(capsys):
    """``refusal(…)``: the error of a run that is refused, in this process."""

    def run(*given):
        with pytest.raises(SystemExit) as ended:
            main(arguments(*given))
        assert ended.value.code == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    return run


def test_one_command_makes_a_bundle_that_speaks_and_its_weights_start_another_run(tmp_path, wordnet):
    out = tmp_path / "run"
    main(arguments(out, wordnet, "--tiny", "2"))
    card = (out / "bundle" / "MODEL.md").read_text()
    assert card.startswith("# The embedded voice")
    assert "In a clone of the repository, `python -m training" in card
    synthesizer = ane.load(out / "bundle", threads=1)
    assert synthesizer.model.trained
    assert not synthesizer.model.clones
    denoiser = synthesizer.backend.denoiser([np.zeros((1, 4, 192), np.float32)], np.zeros((1, 160), np.float32), [17])
    [predicted] = denoiser([np.ones((1, 100, 17), np.float32)], 900, False)
    assert (predicted[:, 100:] == -1).all()  # these channels hold the fixed variance
    source = json.loads((out / "bundle" / "bundle.json").read_text())["source"]
    assert source["steps"] == dict.fromkeys(TRAINED_PARTS, 2)
    assert source["teachers"] == ["tones", "tones"]
    assert np.isfinite(synthesizer.speak("hello", seed=1, preset="fastest").audio).all()

    main(arguments(out, wordnet, "--tiny", "3", "--parts", "rlg_auto,weights"))  # continues the training
    curve = json.loads((out / "rlg_auto" / "curve.json").read_text())
    assert [point["step"] for point in curve] == [2, 3]

    # trains only this part, for one step
    main(arguments(out, wordnet, "--tiny", "9", "--minutes", "1e-9", "--parts", "univnet"))
    assert json.loads((out / "univnet" / "curve.json").read_text())[-1]["step"] == 3

    shutil.copytree(out / "speech", tmp_path / "other" / "speech")
    main(
        arguments(
            tmp_path / "other",
            wordnet,
            "--tiny",
            "4",
            "--start",
            str(out / "weights"),
            "--parts",
            "codes,autoregressive",
        )
    )
    curve = json.loads((tmp_path / "other" / "autoregressive" / "curve.json").read_text())
    assert [point["step"] for point in curve] == [2, 2, 3, 3, 4, 4]  # every step has its validation


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--parts", "ears"), "choose from texts"),
        (("--wordnet", "/nowhere"), "wordnet-base"),
        (("--config", "/nowhere"), "as a part of a training recipe"),
        (("--start", "/nowhere"), "no such folder"),
    ],
)
def test_bad_arguments_give_one_line(tmp_path, wordnet, refusal, given, message):
    assert message in refusal(tmp_path / "run", wordnet, *given)


def test_the_package_that_users_install_has_no_training():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "training" not in pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
