"""Programs whose standard streams are closed or full."""

import subprocess
import sys

import pytest


def run(code: str, redirections: str) -> subprocess.CompletedProcess:
    start = "from ane.system.streams import repair_standard_streams; import sys; repair_standard_streams()\n"
    return subprocess.run(["sh", "-c", f'"$0" -c "$1" {redirections}', sys.executable, start + code],
                          capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
@pytest.mark.parametrize("redirections", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ""])
def test_closed_streams_can_be_used_and_their_numbers_are_not_given_to_files(tmp_path, redirections):
    code = (f"file = open({str(tmp_path / 'file')!r}, 'w')\n"
            "print('out'); print('err', file=sys.stderr); sys.stdin.read(); sys.stdout.isatty(); sys.stderr.flush()\n"
            "sys.exit(0 if file.fileno() > 2 else 3)")
    result = run(code, redirections + (" < /dev/null" if "<&-" not in redirections else ""))
    assert result.returncode == 0, result.stderr
    assert result.stdout == ("" if ">&- " in redirections + " " and redirections != "2>&-" else "out\n")
    assert result.stderr == ("" if "2>&-" in redirections else "err\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
def test_messages_to_a_full_device_do_not_change_the_outcome():
    code = ("from rich.console import Console\n"
            "Console(stderr=True).print('a message'); print('another', file=sys.stderr, flush=True); sys.exit(0)")
    assert run(code, "2> /dev/full").returncode == 0


def test_only_a_stream_that_was_closed_is_said_to_be():
    code = "from ane.system.streams import is_closed; sys.stderr.write(str(is_closed(sys.stdout)))"
    assert run(code, ">&-").stderr == "True"
    assert run(code, "> /dev/null").stderr == "False"
