"""Test the limits on child processes if the kernel refuses RLIMIT_AS, as macOS does on Apple Silicon."""

import asyncio
import io
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from fastapi import UploadFile

from ane.books.pdf import read_pdf
from ane.server.settings import Limits
from ane.server.uploads import decode_upload
from ane.system.child_process import ChildProcess
from tests.books.book_files import write_pdf

SETRLIMIT = "import resource, sys\ndef refuse(*_):\n    raise ValueError('not allowed')\nresource.setrlimit = refuse\n"


@pytest.fixture
def mac_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent / "darwin"), *sys.path])


def run_module(folder: Path, code: str, **limits: int) -> tuple[int, str]:
    """Return the status and the standard error of a child whose module is ``code``."""
    (folder / "probe_module.py").write_text(code)
    process = ChildProcess("probe_module", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **limits)
    errors = process.communicate(timeout=120)[1]
    return process.returncode, errors


def test_a_pdf_is_read(mac_children: None, tmp_path: Path) -> None:
    pages = [[(50, 500, 12, "The turtle was first, after all.")]]
    [chapter] = read_pdf(write_pdf(tmp_path / "a.pdf", pages), {}).chapters
    assert chapter.blocks[0].text == "The turtle was first, after all."


def test_an_upload_is_decoded(mac_children: None) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.linspace(-0.5, 0.5, 16000, dtype=np.float32), 16000, "FLOAT", format="WAV")
    file.seek(0)
    audio, rate = asyncio.run(decode_upload(UploadFile(file), Limits(), 60.0, 16000))
    assert (len(audio), rate) == (16000, 16000)


def test_memory_is_bounded(mac_children: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    code = (
        "import time\nheld = []\nfor _ in range(20):\n"
        "    held.append(bytearray(b'x') * (25 << 20))\n    time.sleep(0.05)\n"
    )
    assert run_module(tmp_path, code, memory=2 << 30) == (0, "")
    assert run_module(tmp_path, code, memory=300 << 20) == (1, "it needs more memory than it may use\n")


def test_a_child_whose_memory_alone_is_limited_leaves_no_core_file(
    mac_children: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        assert run_module(
            tmp_path,
            "import resource, sys\nsys.exit(7 if any(resource.getrlimit(resource.RLIMIT_CORE)) else 8)",
            memory=2 << 30,
        ) == (8, "")
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


def test_a_limit_that_the_system_refuses_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(SETRLIMIT)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert run_module(tmp_path, "", memory=2 << 30, cpu_seconds=9, file_bytes=0) == (0, "")
