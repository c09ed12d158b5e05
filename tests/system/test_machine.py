"""Facts about the machine."""

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ane.system import machine, version


def test_cores_are_those_this_process_may_run_on(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5} if pid == 0 else {1}, raising=False)
    assert machine.usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert machine.usable_cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.usable_cores() == 1


def test_peak_memory_follows_what_the_process_allocates():
    code = ("from ane.system.machine import peak_memory_bytes\n"
            "before = peak_memory_bytes(); block = bytearray(b'x') * (64 << 20); print(peak_memory_bytes() - before)\n")
    grown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert 32 << 20 < int(grown) < 128 << 20


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


def test_a_mac_is_asked_for_its_chip_and_build(monkeypatch):
    answers = {"machdep.cpu.brand_string": "Apple M2\n", "-buildVersion": "24D60\n"}
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.3", ("", "", ""), "arm64"))
    monkeypatch.setattr(subprocess, "run", lambda command, **_: SimpleNamespace(stdout=answers[command[-1]]))
    assert (machine.processor_name(), machine.system_version()) == ("Apple M2", "macOS 15.3 (24D60)")


def test_a_mac_that_gives_no_answer_has_its_architecture_for_a_name(monkeypatch):
    def fail(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.3", ("", "", ""), "arm64"))
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(subprocess, "run", fail)
    assert (machine.processor_name(), machine.system_version()) == ("arm64", "macOS 15.3")


def test_a_checkout_that_is_not_installed_says_so(monkeypatch):
    def missing(name: str) -> str:
        raise version.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(version.importlib.metadata, "version", missing)
    assert version.version() == "(not installed)"


def test_the_system_version_is_the_distributions(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "ubuntu", "VERSION_ID": "24.04"})
    assert machine.system_version() == "ubuntu 24.04"
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "arch"})
    assert machine.system_version() == "arch"
