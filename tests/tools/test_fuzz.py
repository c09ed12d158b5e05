"""Test that the campaign ``fuzz`` notices faults, and learns from inputs that reach new lines."""

import json
import os
import sys
import time

import pytest

from tools.campaigns import fuzz
from tools.campaigns.fuzz_inputs import InputKind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def feed(read, folder, sources=(), good=b"a good input"):
    """The result of a short turn with this reader."""
    kind = InputKind([("a", good)], read, sources)
    return fuzz.turn(kind, list(kind.inputs), folder, 0.3, 1)


def fail(name, data):
    raise KeyError("x")


def end(name, data):
    os.abort()


def spin(name, data):
    began = time.process_time()
    while time.process_time() < began + 1:  # the late third tick of the clock comes after 0.6 s
        pass


def fill(name, data):
    return b"x" * (100 << 20)


@pytest.mark.parametrize(
    ("read", "wrong"),
    [(fail, "KeyError in test_fuzz.py"), (end, "status -6"), (spin, "more than 0.2 s"), (fill, "more than 64 MB")],
)
def test_errors_ends_and_inputs_that_take_long_or_much_memory_are_failures(tmp_path, monkeypatch, read, wrong):
    for name, value in (("SECONDS", 0.2), ("TICK", 0.1), ("MEMORY", 64 << 20), ("BATCH", 1)):
        monkeypatch.setattr(fuzz, name, value)
    found = feed(read, tmp_path)
    assert wrong in found["failures"][0]["wrong"]
    assert found["failures"][0]["file"] == "a"


def test_an_input_that_reaches_a_new_line_is_mutated_too(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "TRACED", 1)
    found = feed(mutated, tmp_path, ("tests/tools/test_fuzz.py",))
    assert len(found["corpus"]) > 1
    lines = fuzz.lines_of(("tests/tools/test_fuzz.py",))
    assert 0 < len(found["reached"] & lines) < len(lines)


def mutated(name, data):
    if b"good" not in data:
        return len(data)
    return 0


def test_turns_and_runs_add_up(tmp_path):
    output, home = tmp_path / "fuzz.json", os.environ.get("ANE_HOME")
    counts = []
    for _ in range(2):
        assert fuzz.main(["--minutes", "0.01", "--only", "messages", "-o", str(output)]) == 0
        counts.append(json.loads(output.read_text())["kinds"]["messages"]["inputs"])
    assert counts[1] > counts[0] > 0
    assert os.environ.get("ANE_HOME") == home, "later work in this process uses a folder that is gone"


def test_the_committed_figures_are_of_a_campaign_without_failures():
    result = json.loads(fuzz.RESULTS.read_text(encoding="utf-8"))
    assert [kind for kind, each in result["kinds"].items() if each["failures"]] == []
