"""A program that answers requests: until its input ends, and when it dies."""

import sys

import pytest

from ane.system.errors import UserError
from ane.system.json_process import JsonProcess, ProcessEndedError, ProcessTimeoutError

PROGRAM = """import json, os, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request == "exit":
        sys.exit("out of luck")
    if request == "hang":
        import time
        time.sleep(60)
    if request == "kill":
        os.kill(os.getpid(), 9)
    print(json.dumps({"error": "no such thing"} if request == "fail" else {"request": request}), flush=True)
"""
COMMAND = [sys.executable, "-c", PROGRAM]


def test_a_process_answers_until_its_input_ends_and_is_then_gone():
    with JsonProcess(COMMAND) as process:
        assert process.ready == {"ready": True}
        assert process.ask({"a": 1}) == {"request": {"a": 1}}
        assert 0 < process.cold_start < 60
    assert process._process.returncode == 0
    if sys.platform == "linux":
        assert process.peak_bytes > 10**6


@pytest.mark.parametrize(("request_", "message"), [("exit", "ended with status 1: out of luck"), ("kill", "SIGKILL")])
def test_a_process_that_dies_is_reported_in_one_line(request_, message):
    with pytest.raises(ProcessEndedError, match=message), JsonProcess(COMMAND) as process:
        process.ask(request_)


def test_an_error_in_an_answer_is_raised_and_the_process_goes_on():
    with JsonProcess(COMMAND) as process:
        with pytest.raises(UserError, match="no such thing"):
            process.ask("fail")
        assert process.ask("next") == {"request": "next"}


def test_a_program_that_does_not_answer_in_time_is_ended():
    with JsonProcess(COMMAND) as process:
        assert process.ask("next", limit=30) == {"request": "next"}
        with pytest.raises(ProcessTimeoutError, match=r"did not answer within 0\.5 seconds"):
            process.ask("hang", limit=0.5)
        assert process._process.returncode == -9
    with pytest.raises(ProcessTimeoutError):
        JsonProcess([sys.executable, "-c", "import time; time.sleep(60)"], limit=0.5)


def test_a_program_that_cannot_be_run_is_refused_with_advice():
    with pytest.raises(UserError, match=r"cannot run \./nothing.*install it"):
        JsonProcess(["./nothing"], advice="install it")
    with pytest.raises(UserError, match="ended with status 3"):
        JsonProcess([sys.executable, "-c", "raise SystemExit(3)"])
