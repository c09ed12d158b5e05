"""Let many threads share the lanes of a real decoder. `python -m tools.campaigns lanes` does the same for longer."""

import pytest

from tools.campaigns.lanes import run


@pytest.mark.parametrize(("interval", "calls"), [(0.005, 0), (0.0005, 2), (0.00001, 1)])
def test_threads_that_share_lanes_get_what_they_get_alone_and_leave_nothing(interval: float, calls: int) -> None:
    found = run(threads=24, prompts=2, interval=interval, calls=calls, codes=14, patience=120)
    assert (found["wrong"], found["stuck"]) == ([], 0)
    assert (found["leaks"], found["prompts"]) == ({"lanes": 0, "prompts": 0, "prefixes": 0, "turns": 0}, 48)
    assert {"cancelled", "failing", "left", "slow"} <= found["fates"].keys()
