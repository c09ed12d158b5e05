"""A job survives the end of its process, and a full disk, at any instant; processes share it.

The whole campaign, at every call that changes a file: `python -m tests.books.campaign`; its result is campaign.json.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.books.campaign import RESULTS, in_child, kill_at_random, state, whole_run
from tests.books.stand_in import StandInSpeaker

CHUNKS = 42


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_a_sample_of_the_campaign_finds_nothing_wrong(tmp_path):
    command = [sys.executable, "-m", "tests.books.campaign", "--every", "140", "--kills", "0", "-o"]
    done = subprocess.run([*command, tmp_path / "c.json"], cwd=Path(__file__).parents[2], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "c.json").read_text())["trials"] >= 28


def test_the_committed_campaign_found_nothing_wrong():
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert result["failures"] == []
    assert result["trials"] >= 1000
    assert result["sigkills"] >= 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_processes_on_one_job_of_which_one_is_killed_speak_each_chunk_once(tmp_path):
    (tmp_path / "alone").mkdir()
    whole_run(tmp_path / "alone")
    assert kill_at_random(tmp_path / "shared", state(tmp_path / "alone"), 3) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_ends_at_a_chunk_loses_that_chunk_alone(tmp_path):
    def end(text: str) -> None:
        if "number 9" in text:
            os._exit(5)

    assert in_child(lambda: whole_run(tmp_path, StandInSpeaker(before=end))) == 5
    speaker = StandInSpeaker()
    whole_run(tmp_path, speaker)
    assert "number 9" in speaker.spoken[0]
    assert 0 < len(speaker.spoken) < CHUNKS
