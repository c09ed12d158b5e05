"""A name that no file can have, and a file that cannot be written, are one clear line."""

import os
import signal
import subprocess
import sys
import time


def test_a_disk_that_fills_up_leaves_the_old_file_and_no_temporary_files(tmp_path, python):
    """The process may write files of 4 KB at most, which fails in mid-write as a full disk does."""
    output = tmp_path / "out.wav"
    output.write_bytes(b"precious")
    limited = ("import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
               "from ane.cli import main; sys.exit(main(sys.argv[1:]))")
    done = subprocess.run([python, "-c", limited, "say", "hello", "--bundle=demo", "--preset=fastest", "-o", output],
                          cwd=tmp_path, env=os.environ | {"ANE_HOME": str(tmp_path / "home")}, capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "ane: error: cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert output.read_bytes() == b"precious"
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["out.wav"]


def test_ctrl_c_ends_the_run_at_once_and_writes_nothing(tmp_path, random_bundle):
    command = [sys.executable, "-m", "ane", "say", "hello there, this will take a while", "--candidates", "10000", "-o",
               tmp_path / "out.wav", "--bundle", random_bundle]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                               env=os.environ | {"ANE_HOME": str(tmp_path / "home")},
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))   # a job ignores it
    try:
        assert process.stderr is not None
        assert "random weights" in process.stderr.readline()        # the model is open, work begins
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not list(tmp_path.glob("*out*"))
