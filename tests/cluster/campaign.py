"""A book on a cluster that loses a worker and then its head: the resumed job equals that of one machine.

    python -m tests.cluster.campaign [--chunks 60]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import soundfile

from ane.books.store import JobStore

SETTINGS = ["--preset", "fastest", "--seed", "3", "--threads", "1", "-q"]


def started(folder: Path, output: str, *more: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "ane", "read", "book.txt", "-o", output, *SETTINGS, *more],
                            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(job: subprocess.Popen, folder: Path, chunks: int) -> None:
    """Until so many chunks are done. RuntimeError when the job ends before."""
    while job.poll() is None:
        if (folder / "cluster.wav.job" / "job.sqlite").exists():
            store = JobStore(folder / "cluster.wav.job")
            done, _, _ = store.progress()
            store.close()
            if done >= chunks:
                return
        time.sleep(0.2)
    raise RuntimeError(f"the job ended with {job.returncode} before {chunks} chunks were done")


def kill(job: subprocess.Popen, name: str) -> None:
    """Kill one process of the job's cluster whose command has this in it."""
    found = [child for child in psutil.Process(job.pid).children(recursive=True) if name in " ".join(child.cmdline())]
    found[0].kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=60, metavar="N")
    chunks = parser.parse_args().chunks
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "book.txt").write_text("".join(f"This is line {number} of the book.\n\n"
                                                 for number in range(1, chunks + 1)), encoding="utf-8")
        assert started(folder, "alone.wav").wait() == 0
        job = started(folder, "cluster.wav", "--ray", "--workers", "2")
        wait_for(job, folder, chunks // 5)
        kill(job, "ray::Worker")
        wait_for(job, folder, chunks // 2)
        kill(job, "gcs_server")
        first = job.wait()
        assert started(folder, "cluster.wav", "--ray", "--workers", "2").wait() == 0
        sounds = [soundfile.read(folder / output, dtype="int16")[0] for output in ("alone.wav", "cluster.wav")]
        equal = bool(np.array_equal(*sounds))
        sys.stdout.write(json.dumps({"chunks": chunks, "exit status after the head was killed": first,
                                     "seconds of sound": round(len(sounds[0]) / 24000, 1), "equal": equal}) + "\n")
    return not equal


if __name__ == "__main__":
    sys.exit(main())
