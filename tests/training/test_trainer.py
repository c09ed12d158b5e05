"""Test the training loop, and `python -m training` from the start, in which tones replace the teachers."""

import itertools
import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import ane
from tests.refusals import assert_refused
from training import trainer
from training.__main__ import main
from training.recipe import TRAINED_PARTS
from training.trainer import PartSchedule, TrainedPart, Trainer, export


def part_in(folder, steps=(8,), **schedule):
    settings = PartSchedule(steps=steps, rate=0.1, warmup=2, batch=4, **schedule)
    return TrainedPart(folder, settings, "cpu", folder / "start")


def train_to(part, stop=None, size=3):
    torch.manual_seed(0)
    module = torch.nn.Linear(size, 1)
    loop = Trainer(module, part)

    def loss(index, generator):
        if index == stop:
            raise KeyboardInterrupt
        x = torch.randn(4, 3, generator=generator)
        return {"loss": ((module(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()}

    loop.run(loss)
    return loop


def weights(loop):
    return {name: tensor.clone() for name, tensor in loop.result().state_dict().items()}


def equal(one, other):
    return all(torch.equal(one[key], other[key]) for key in one)


def test_a_checkpoint_of_other_parameters_is_refused(tmp_path):
    train_to(part_in(tmp_path))
    assert_refused("other parameters", lambda: train_to(part_in(tmp_path), size=4))


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    uninterrupted = weights(train_to(part_in(tmp_path / "uninterrupted")))
    with pytest.raises(KeyboardInterrupt):
        train_to(part_in(tmp_path / "resumed"), stop=5)
    assert equal(uninterrupted, weights(train_to(part_in(tmp_path / "resumed"))))


def test_a_schedule_of_runs_equals_runs_that_were_resumed_with_more_steps(tmp_path):
    runs = weights(train_to(part_in(tmp_path / "runs", (4, 8))))
    train_to(part_in(tmp_path / "resumed", (4,)))
    assert equal(runs, weights(train_to(part_in(tmp_path / "resumed", (8,)))))
    assert not equal(runs, weights(train_to(part_in(tmp_path / "single", (8,)))))


def test_a_call_stops_at_its_limit_of_time_and_the_next_goes_on(tmp_path):
    assert train_to(part_in(tmp_path, minutes=0)).step == 0
    assert train_to(part_in(tmp_path, minutes=1e-9)).step == 1
    assert train_to(part_in(tmp_path)).step == 8


def test_the_result_is_the_mean_of_the_weights_and_can_be_exported_to_go_on_from(tmp_path):
    loop = train_to(part_in(tmp_path))
    raw = loop.module.weight.detach().clone()
    mean = weights(loop)
    assert not torch.equal(raw, mean["weight"])
    assert equal(mean, weights(train_to(part_in(tmp_path))))  # the weights are read again from the folder
    last = train_to(part_in(tmp_path / "single", average=0.0))
    assert torch.equal(last.module.weight.detach().clone(), weights(last)["weight"])

    (tmp_path / "next").mkdir()
    export(loop.checkpoint, tmp_path / "next" / "start")
    started = Trainer(torch.nn.Linear(3, 1), part_in(tmp_path / "next", minutes=0))
    assert (started.step, started.began, len(started.curve)) == (8, 8, len(loop.curve))
    torch.testing.assert_close(weights(started)["weight"], mean["weight"], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("steps", "message"), [((), "ascending"), ((4, 4), "ascending"), ((0,), "positive")])
def test_steps_are_positive_and_ascending(steps, message):
    with pytest.raises(ValidationError, match=message):
        PartSchedule(steps=steps, rate=1.0, batch=1)


def test_the_rate_warms_up_and_falls_to_zero_also_after_a_new_start():
    schedule = PartSchedule(steps=(100,), rate=1.0, warmup=10, batch=1)
    rates = [schedule.rate_at(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert (max(rates), rates[100]) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-6))
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))
    assert schedule.rate_at(50, began=50) == pytest.approx(rates[50] / 10)
    assert schedule.rate_at(60, began=50) == rates[60]


def test_each_run_has_the_rate_of_a_run_that_ends_with_it():
    runs = PartSchedule(steps=(50, 100), rate=1.0, warmup=10, batch=1)
    for end, steps in ((50, range(50)), (100, range(50, 100))):
        single = PartSchedule(steps=(end,), rate=1.0, warmup=10, batch=1)
        assert [runs.rate_at(step) for step in steps] == [single.rate_at(step) for step in steps]


def arguments(output, wordnet, *more):
    return ["-o", str(output), "--wordnet", str(wordnet), "--threads", "1", "--workers", "1", "--device", "cpu", *more]


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
    assert (source["steps"], source["teachers"]) == (dict.fromkeys(TRAINED_PARTS, 2), ["tones", "tones"])
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
def test_bad_arguments_give_one_line(tmp_path, wordnet, capsys, given, message):
    with pytest.raises(SystemExit) as ended:
        main(arguments(tmp_path / "run", wordnet, *given))
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_the_package_that_users_install_has_no_training():
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert "training" not in pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
