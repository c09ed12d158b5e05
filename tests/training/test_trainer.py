"""Test the training loop: resuming, runs, time limits, exported weights, learning rate."""

import itertools

import pytest
import torch
from pydantic import ValidationError

from ane.system.errors import UserError
from training import trainer
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
    with pytest.raises(UserError, match="other parameters"):
        train_to(part_in(tmp_path), size=4)


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
    assert max(rates) == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.0, abs=1e-6)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))
    assert schedule.rate_at(50, began=50) == pytest.approx(rates[50] / 10)
    assert schedule.rate_at(60, began=50) == rates[60]


def test_each_run_has_the_rate_of_a_run_that_ends_with_it():
    runs = PartSchedule(steps=(50, 100), rate=1.0, warmup=10, batch=1)
    for end, steps in ((50, range(50)), (100, range(50, 100))):
        single = PartSchedule(steps=(end,), rate=1.0, warmup=10, batch=1)
        assert [runs.rate_at(step) for step in steps] == [single.rate_at(step) for step in steps]
