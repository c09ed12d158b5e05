"""Test the program's child processes, and the messages between processes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ane.system.child_process import ChildProcess, clean_environment
from ane.system.errors import UserError
from ane.system.json_process import JsonProcess, ProcessEndedError, ProcessTimeoutError
from tests.refusals import assert_refused

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
        assert_refused("no such thing", process.ask, "fail")
        assert process.ask("next") == {"request": "next"}, "it goes on after an error"
        assert 0 < process.cold_start < 60
    assert process._process.returncode == 0
    if sys.platform == "linux":
        assert process.peak_bytes > 10**6


@pytest.mark.parametrize(("request_", "message"), [("exit", "ended with status 1: out of luck"), ("kill", "SIGKILL")])
def test_a_process_that_dies_is_reported_in_one_line(request_, message):
    with pytest.raises(ProcessEndedError, match=message), JsonProcess(COMMAND) as process:
        process.ask(request_)


def test_a_program_that_does_not_answer_in_time_is_ended():
    with JsonProcess(COMMAND) as process:
        assert process.ask("next", limit=30) == {"request": "next"}
        with pytest.raises(ProcessTimeoutError, match=r"did not answer within 0\.5 seconds"):
            process.ask("hang", limit=0.5)
        assert process._process.returncode == -9
    with pytest.raises(ProcessTimeoutError):
        JsonProcess([sys.executable, "-c", "import time; time.sleep(60)"], limit=0.5)


def test_a_program_whose_first_line_is_an_error_is_ended():
    program = "import json, os, time; print(json.dumps({'error': str(os.getpid())}), flush=True); time.sleep(60)"
    with pytest.raises(UserError) as raised:
        JsonProcess([sys.executable, "-c", program])
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(raised.value)), 0)


def test_a_program_that_cannot_be_run_is_refused_with_advice():
    assert_refused(r"cannot run \./nothing.*install it", JsonProcess, ["./nothing"], advice="install it")
    assert_refused("ended with status 3", JsonProcess, [sys.executable, "-c", "raise SystemExit(3)"])


HOSTILE = "from pathlib import Path\nPath({mark!r}).touch()\nraise SystemExit(7)\n"
PROBE = "import json, os, resource, sys\n"


def printed(program: Path, code: str, **options) -> str:
    """What a module of ours prints that lies in a folder of ``sys.path``."""
    (program / "probe_module.py").write_text(PROBE + code)
    process = ChildProcess("probe_module", ("a", "b"), stdout=subprocess.PIPE, text=True, **options)
    return process.communicate(timeout=60)[0]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    modules = tmp_path / "modules"
    modules.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(modules)])
    return modules


def test_a_child_imports_the_whole_package(folder):
    assert printed(folder, "import ane\nprint(ane.UserError.__module__)") == "ane.system.errors\n"


def test_a_module_of_the_working_directory_is_never_run(folder, tmp_path, monkeypatch):
    """A module that lies beside the user's files, as under the name of a library."""
    here, mark = tmp_path / "here", tmp_path / "ran"
    here.mkdir()
    for name in ("soundfile", "numpy", "json", "runpy", "coremltools", "sounddevice"):
        (here / f"{name}.py").write_text(HOSTILE.format(mark=str(mark)))
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", str(here), *sys.path])
    assert printed(folder, "import numpy, soundfile\nprint(sys.argv[1:])") == "['a', 'b']\n"
    (here / "clip.wav").write_bytes(b"no sound")
    decoder = ChildProcess("ane.server.upload_decoder", ("clip.wav", "9", "16000"), stdout=subprocess.PIPE)
    assert "not sound" in json.loads(decoder.communicate(timeout=60)[0])["error"]
    ChildProcess("ane.audio", stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL).wait(120)
    assert not mark.exists()


def test_secrets_stay_in_this_process(folder, monkeypatch):
    for name in ("ANE_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "ANE_HOME", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "7")
    names = set(json.loads(printed(folder, "print(json.dumps(list(os.environ)))", environment={"GIVEN": "1"})))
    assert {"ANE_HOME", "OMP_NUM_THREADS", "GIVEN", "PATH"} <= names
    assert not names & {"ANE_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL"}
    assert clean_environment({"LC_ALL": "C", "OMP_TOKEN": "x", "EDITOR": "vi"}) == {"LC_ALL": "C"}


def test_limits_hold_and_standard_input_is_closed(folder):
    code = (
        "print(sys.stdin.read(), [resource.getrlimit(kind)[0] for kind in "
        "(resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)])"
    )
    assert printed(folder, code, memory=1 << 33, cpu_seconds=9, file_bytes=5) == f" [{1 << 33}, 9, 5, 0]\n"


def test_a_child_ends_when_its_parent_is_killed(folder):
    (folder / "probe_module.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n")
    code = (
        f"import sys; sys.path += {sys.path!r}\nfrom ane.system.child_process import ChildProcess\n"
        "ChildProcess('probe_module').wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 60
    while time.monotonic() < until and Path(f"/proc/{child}").exists():
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_child_that_has_ended_keeps_no_descriptor(folder):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        printed(folder, "")
    assert len(os.listdir("/proc/self/fd")) == before
