"""Test facts about the machine, decibels, and the time that each phase of a call takes."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from ane.system import machine, version
from ane.system.decibels import snr_db
from ane.system.timeline import Timeline, closing_source


def test_cores_are_those_this_process_may_run_on(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5} if pid == 0 else {1}, raising=False)
    assert machine.usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert machine.usable_cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.usable_cores() == 1


def test_peak_memory_follows_what_the_process_allocates():
    code = (
        "from ane.system.machine import peak_memory_bytes\n"
        "before = peak_memory_bytes(); block = bytearray(b'x') * (64 << 20); print(peak_memory_bytes() - before)\n"
    )
    grown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert 32 << 20 < int(grown) < 128 << 20


@pytest.mark.parametrize(("system", "expected"), [("darwin", 7000), ("freebsd", 7000 * 1024)])
def test_peak_memory_without_proc_is_that_of_getrusage_in_bytes_on_a_mac_and_else_in_kib(monkeypatch, system, expected):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(machine.Path, "read_text", lambda path: (_ for _ in ()).throw(FileNotFoundError))
    monkeypatch.setattr(machine.resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=7000))
    assert machine.peak_memory_bytes() == expected


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_peak_memory_of_another_process_is_read_while_it_runs():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert 0 < machine.peak_memory_bytes(process.pid) < 1 << 30
        process.communicate(b"\n", timeout=60)
    assert machine.peak_memory_bytes(process.pid) is None


def test_a_processor_is_named_as_its_maker_does_or_else_by_its_architecture(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    names = []
    for text in ("processor : 0\nmodel name\t: Some CPU @ 2 GHz \nmodel name : other\n", "no name\n"):
        monkeypatch.setattr(machine.Path, "read_text", lambda path, text=text: text)
        names.append(machine.processor_name())
    assert names == ["Some CPU @ 2 GHz", "aarch64"]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (
            {"machdep.cpu.brand_string": "Apple M2\n", "-productVersion": "26.4\n", "-buildVersion": "25E60\n"},
            ("Apple M2", "macOS 26.4 (25E60)"),
        ),
        ({}, ("arm64", "macOS 16.4")),
    ],
)
def test_a_mac_is_asked_for_its_chip_and_build_or_else_named_by_its_architecture(monkeypatch, answers, expected):
    """Python itself has the wrong version, where it was built with an older SDK."""

    def answer(command, **_):
        if command[-1] not in answers:
            raise FileNotFoundError
        return SimpleNamespace(stdout=answers[command[-1]])

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("16.4", ("", "", ""), "arm64"))
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(subprocess, "run", answer)
    machine.macos_version.cache_clear()
    assert (machine.processor_name(), machine.system_version()) == expected
    machine.macos_version.cache_clear()


def test_a_checkout_that_is_not_installed_says_so(monkeypatch):
    missing = version.importlib.metadata.PackageNotFoundError("tortoise-ane")
    monkeypatch.setattr(version.importlib.metadata, "version", MagicMock(side_effect=missing))
    assert version.version() == "(not installed)"


def test_the_system_version_is_the_distributions(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "ubuntu", "VERSION_ID": "24.04"})
    assert machine.system_version() == "ubuntu 24.04"
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "arch"})
    assert machine.system_version() == "arch"


SIGNAL = np.array([3.0, -4.0])


@pytest.mark.parametrize(
    ("reference", "actual", "decibels"),
    [
        (SIGNAL, [3.0, -4.5], 20.0),  # power ratio 25 / 0.25
        (SIGNAL, [3.0, 1.0], 0.0),  # power ratio 25 / 25
        (SIGNAL, [3.0, 46.0], -20.0),  # power ratio 25 / 2500
        (torch.from_numpy(SIGNAL), torch.tensor([3.0, -4.5]), 20.0),
        (SIGNAL, 2 * SIGNAL, 0.0),
        (2 * SIGNAL, SIGNAL, 10 * np.log10(4)),
        (SIGNAL, SIGNAL, np.inf),
        ([0.0, 0.0], [0.0, 0.0], np.inf),
        # the square of this value overflows half precision
        (np.full(100_000, 200, np.float16), np.full(100_000, 100, np.float16), 10 * np.log10(4)),
        # there is no signal, or a number is not finite
        ([0.0, 0.0], [0.0, 1e-9], -np.inf),
        ([1.0, 2.0], [1.0, np.nan], -np.inf),
        ([1.0, 2.0], [np.inf, 2.0], -np.inf),
        ([np.nan, 2.0], [1.0, 2.0], -np.inf),
    ],
)
def test_decibels_are_the_ratio_of_the_sums_of_squares(reference, actual, decibels):
    assert snr_db(reference, actual) == pytest.approx(decibels)


def test_different_shapes_are_refused():
    with pytest.raises(ValueError, match=r"the same shape, got \(2,\) and \(1,\)"):
        snr_db(SIGNAL, [3.0])


def noted(closed: list[bool]) -> Iterator[int]:
    """Three numbers; the end of the generator is added to the list."""
    try:
        yield from range(3)
    finally:
        closed.append(True)


def clock():
    """A clock that advances by a second at each look."""
    seconds = iter(range(100))
    return lambda: next(seconds)


def test_a_stage_within_a_stage_interrupts_it():
    timeline = Timeline(clock())
    with timeline.record("vocode"), timeline.record("decode"), timeline.record("read"):
        pass
    spans = [(span.phase, span.start, span.end) for span in timeline.spans]
    assert [phase for phase, *_ in spans] == ["vocode", "decode", "read", "decode", "vocode"]
    assert all(end <= start for (_, _, end), (_, start, _) in pairwise(spans))
    assert timeline.seconds_by_phase() == {"vocode": 2, "decode": 2, "read": 1}
    assert list(timeline.seconds_by_phase()) == ["vocode", "decode", "read"]


def test_computing_an_item_is_work_of_its_stage_and_what_is_done_with_it_is_not():
    timeline = Timeline(clock())

    def items() -> Iterator[int]:
        yield 1
        raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        [(timeline.now(), timeline.now()) for _ in timeline.record_each("decode", items())]
    assert timeline.seconds_by_phase() == {"decode": 2}  # the times of the item and of the error


def test_the_text_is_ready_at_the_start_unless_it_is_marked_later_and_the_first_sound_is_marked_once():
    timeline = Timeline(clock())
    assert (timeline.text_ready, timeline.first_audio) == (0, None)
    timeline.mark_text_ready()
    timeline.mark_first_audio()
    timeline.mark_first_audio()
    assert (timeline.text_ready, timeline.first_audio) == (1, 2)


def test_a_source_is_closed_however_the_block_ends():
    closed = []
    source = noted(closed)
    with closing_source(source):
        next(source)
    assert closed == [True]
    source = noted(closed)
    next(source)
    with pytest.raises(ValueError, match="half"), closing_source(source):
        raise ValueError("half")
    assert closed == [True, True]


def test_a_recorded_source_is_closed_with_its_reader():
    closed = []
    reader = Timeline().record_each("decode", noted(closed))
    next(reader)
    reader.close()
    assert closed == [True]
