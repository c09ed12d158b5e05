"""Energy from powermetrics, with its printed text."""

import sys
import time

import pytest

from ane.bench import energy

PRINTED = """
*** Sampled system activity (Fri Sep 11 13:41:46 2026 -0700) (200.00ms elapsed) ***

CPU Power: 823 mW
GPU Power: 26 mW
ANE Power: 151 mW
Combined Power (CPU + GPU + ANE): 1000 mW

*** Sampled system activity (Fri Sep 11 13:41:47 2026 -0700) (600.00ms elapsed) ***

ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 2000 mW
"""


def test_power_is_the_mean_over_time():
    assert energy.mean_watts(PRINTED) == pytest.approx(1.75)
    assert energy.mean_watts("") is None


def test_power_is_sampled_until_the_work_is_done(monkeypatch):
    """powermetrics cannot be ended by a signal, but it ends when its output is no longer read."""
    stand_in = f"import sys, time\nwhile True:\n print({PRINTED!r}, flush=True)\n time.sleep(0.02)"
    monkeypatch.setattr(energy, "COMMAND", (sys.executable, "-c", stand_in))
    started = time.perf_counter()
    result, joules = energy.measure_joules(lambda: time.sleep(0.5) or "done")
    assert result == "done"
    assert 0.5 * 1.75 <= joules <= 1.75 * (time.perf_counter() - started)


def test_the_reason_says_how_energy_can_be_measured(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    assert "macOS" in energy.reason_unavailable()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(energy, "COMMAND", ("false",))
    assert "sudo" in energy.reason_unavailable()
