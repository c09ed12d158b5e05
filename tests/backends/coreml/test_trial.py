"""The child process of first loads states which of its limits was exceeded."""

import sys

import pytest

from ane.backends.coreml import trial

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")


def test_a_slow_start_is_reported_with_its_own_limit_and_is_no_answer_of_core_ml(monkeypatch, tmp_path):
    monkeypatch.setattr(trial.CoreMLTrial, "command", SLEEP)
    monkeypatch.setattr(trial, "START_LIMIT", 0.6)
    with pytest.raises(trial.TrialStartError, match=r"did not start within 0\.01 minutes"):
        trial.CoreMLTrial(1800.0).load(tmp_path, "main", "ALL", {})
    assert not issubclass(trial.TrialStartError, trial.UnansweredError)         # which is remembered


def test_a_slow_answer_is_reported_with_the_limit_of_an_answer(monkeypatch, tmp_path):
    command = (*SLEEP[:2], f"print('{{\"ready\": true}}', flush=True); {SLEEP[2]}")
    monkeypatch.setattr(trial.CoreMLTrial, "command", command)
    with pytest.raises(trial.UnansweredError, match=r"did not finish within 0\.02 minutes"):
        trial.CoreMLTrial(1.2).compile(tmp_path, tmp_path)
