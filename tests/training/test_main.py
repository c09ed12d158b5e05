"""`python -m training`, with a stand-in for the teacher and two steps of every part."""

import json
import shutil
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import torch

import ane
from ane.bundles import demo_bundle
from training.__main__ import main
from training.recipe import FOLDER, TRAINED_PARTS

QUICK = FOLDER / "quick.toml"


def arguments(output, teacher, wordnet, *more, config=QUICK):
    return ["-o", str(output), "--config", str(config), "--flite", str(teacher), "--wordnet", str(wordnet),
            "--threads", "1", "--workers", "1", "--device", "cpu", *more]


def train(*run, **options):
    return subprocess.run([sys.executable, "-m", "training", *arguments(*run, **options)], capture_output=True,
                          text=True, timeout=600, check=False)


@pytest.fixture
def refusal(capsys):
    """``refusal(…)``: the error of a run that is refused, in this process."""
    def run(*given, **options):
        with pytest.raises(SystemExit) as ended:
            main(arguments(*given, **options))
        assert ended.value.code == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    return run


def quick_with(folder, *replaced, earlier=None):
    """The quick recipe with replaced text, and optionally an earlier voice."""
    text = QUICK.read_text(encoding="utf-8")
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    if earlier:
        text = text.replace("[parts]", f'[earlier_voice]\nbundle = "{earlier}"\n\n[parts]')
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_one_command_makes_a_bundle_that_speaks_and_resumes_with_more_steps(tmp_path, teacher, wordnet):
    out = tmp_path / "run"
    first = train(out, teacher, wordnet)
    assert first.returncode == 0, first.stderr
    assert (out / "bundle" / "MODEL.md").read_text().startswith("# The embedded voice")
    assert (out / "autoregressive" / "curve.png").stat().st_size > 1000
    synthesizer = ane.load(out / "bundle", threads=1)
    assert synthesizer.model.trained
    assert not synthesizer.model.clones
    denoiser = synthesizer.backend.denoiser([np.zeros((1, 4, 192), np.float32)], np.zeros((1, 160), np.float32), [17])
    [predicted] = denoiser([np.ones((1, 100, 17), np.float32)], 900, False)
    assert (predicted[:, 100:] == -1).all()             # the fixed variance
    source = json.loads((out / "bundle" / "bundle.json").read_text())["source"]
    assert source["steps"] == dict.fromkeys(TRAINED_PARTS, 2)
    assert source["teachers"] == ["flite rms", "flite slt"]
    assert "initialised_from" not in source
    assert np.isfinite(synthesizer.speak("hello", seed=1, preset="fastest").audio).all()

    longer = quick_with(tmp_path, ("rlg_auto = { steps = [2]", "rlg_auto = { steps = [2, 3]"))
    main(arguments(out, teacher, wordnet, "--parts", "rlg_auto", config=longer))
    curve = json.loads((out / "rlg_auto" / "curve.json").read_text())
    assert [point["step"] for point in curve] == [2, 3]

    shutil.rmtree(out / "univnet")
    warm = quick_with(tmp_path, ("univnet = { steps = [2]", "univnet = { steps = [1]"), earlier="demo")
    main(arguments(out, teacher, wordnet, "--parts", "univnet", config=warm))
    ours = torch.load(out / "univnet" / "checkpoint.pt", weights_only=True)["module"]
    for key, theirs in ane.load("demo").model.tensors("univnet").items():
        torch.testing.assert_close(ours[key], theirs.float(), atol=1e-3, rtol=0)      # after one step
    assert json.loads((out / "initialised_from.json").read_text())["bundle"] == ane.load("demo").model.identity


@pytest.mark.parametrize(("arguments", "message"), [
    (("--parts", "ears"), "choose from texts"), (("--wordnet", "/nowhere"), "wordnet-base"),
    (("--config", "/nowhere.toml"), "/nowhere.toml is not a training recipe")])
def test_bad_arguments_give_one_line(tmp_path, teacher, wordnet, refusal, arguments, message):
    assert message in refusal(tmp_path / "run", teacher, wordnet, *arguments)


def test_an_unsuitable_earlier_voice_is_refused_before_any_work(tmp_path, teacher, wordnet, refusal, random_bundle):
    for bundle, message in ((random_bundle, "it must have the voices rms and slt"), ("/nowhere", "/nowhere")):
        assert message in refusal(tmp_path / "run", teacher, wordnet, config=quick_with(tmp_path, earlier=bundle))
        assert not (tmp_path / "run").exists()


def test_a_missing_teacher_is_reported_with_its_package(tmp_path, wordnet):
    result = train(tmp_path / "run", tmp_path / "nothing", wordnet, "--parts", "shards")
    assert result.returncode == 1
    assert "install it (Debian: flite)" in result.stderr


def test_the_package_that_users_install_has_no_training():
    pyproject = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert "training" not in pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    card = (demo_bundle() / "MODEL.md").read_text(encoding="utf-8")
    assert "In a clone of the repository, `python -m training" in card
