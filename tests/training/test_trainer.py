"""The training loop: resuming, runs, learning rate."""

import itertools

import pytest
import torch

from ane.system.errors import UserError
from training import trainer
from training.trainer import PartSchedule, Trainer


def test_a_checkpoint_of_other_parameters_is_refused(tmp_path):
    torch.manual_seed(0)
    Trainer(tmp_path, torch.nn.Linear(3, 1), PartSchedule((1,), 0.1), "cpu").save()
    with pytest.raises(UserError, match="other parameters"):
        Trainer(tmp_path, torch.nn.Linear(4, 1), PartSchedule((1,), 0.1), "cpu")


def train_to(folder, steps=(8,), stop=None):
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 1)

    def loss(index, generator):
        if index == stop:
            raise KeyboardInterrupt
        x = torch.randn(4, 3, generator=generator)
        return {"loss": ((module(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()}

    Trainer(folder, module, PartSchedule(steps, rate=0.1, warmup=2), "cpu").run(loss)
    return module.state_dict()


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    uninterrupted = train_to(tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        train_to(tmp_path / "resumed", stop=5)
    resumed = train_to(tmp_path / "resumed")
    assert all(torch.equal(uninterrupted[key], resumed[key]) for key in resumed)


def test_a_schedule_of_legs_equals_runs_that_were_resumed_with_more_steps(tmp_path):
    runs = train_to(tmp_path / "runs", steps=(4, 8))
    train_to(tmp_path / "resumed", steps=(4,))
    resumed = train_to(tmp_path / "resumed", steps=(8,))
    assert all(torch.equal(runs[key], resumed[key]) for key in runs)
    single = train_to(tmp_path / "single", steps=(8,))
    assert not torch.equal(runs["weight"], single["weight"])


def test_the_rate_warms_up_and_falls_to_zero():
    schedule = PartSchedule((100,), rate=1.0, warmup=10)
    rates = [schedule.rate_at(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.0, abs=1e-6)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


def test_each_leg_has_the_rate_of_a_run_that_ends_with_it():
    runs = PartSchedule((50, 100), rate=1.0, warmup=10)
    for end, steps in ((50, range(50)), (100, range(50, 100))):
        single = PartSchedule((end,), rate=1.0, warmup=10)
        assert [runs.rate_at(step) for step in steps] == [single.rate_at(step) for step in steps]
