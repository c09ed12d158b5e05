"""Report facts about this machine: its cores, memory, processor and system version."""

import os
import platform
import re
import resource
import subprocess
import sys
from functools import cache
from pathlib import Path


def usable_cores() -> int:
    """Return the number of cores that this process may run on, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Return the size of the physical memory, or ``None`` if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def peak_memory_bytes(pid: int | None = None) -> int | None:
    """Return the largest resident memory that a process has had so far, in bytes.

    On Linux, the function reads it from /proc, because ``ru_maxrss`` of getrusage starts with the parent's value.

    Args:
        pid: Number of the process. ``None`` means this process. Only Linux reports other processes.

    Returns:
        The number of bytes, or ``None`` if the system does not report it.
    """
    try:
        status = Path(f"/proc/{pid or 'self'}/status").read_text()
    except OSError:
        status = ""
    peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    if peak:
        return int(peak[1]) * 1024
    if pid not in (None, os.getpid()):
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def processor_name() -> str:
    """Return the name of the processor, such as "Apple M2 Pro", or its architecture if the name is unknown."""
    if sys.platform == "darwin":
        return printed("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        cpuinfo = ""
    name = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return name[1].strip() if name else platform.processor() or platform.machine()


@cache
def macos_version() -> str:
    """Return the version of macOS, such as "15.3", or "" on other systems.

    The function asks the program ``sw_vers``, and ``platform.mac_ver`` only if ``sw_vers`` fails. For a Python that was
    built with an older SDK, ``platform.mac_ver`` returns 16 instead of 26
    (https://github.com/python/cpython/issues/135675).
    """
    return printed("sw_vers", "-productVersion") or platform.mac_ver()[0]


def macos_at_least(*wanted: int) -> bool:
    """Return whether this Mac has macOS ``wanted`` or a newer version."""
    return tuple(int(part) for part in macos_version().split(".") if part.isdigit()) >= wanted


def system_version() -> str:
    """Return the name and version of the operating system, such as "ubuntu 24.04" or "macOS 15.3 (24D60)"."""
    if sys.platform == "darwin":
        build = printed("sw_vers", "-buildVersion")
        return f"macOS {macos_version()}".rstrip() + (f" ({build})" if build else "")
    try:
        release = platform.freedesktop_os_release()
        return f"{release['ID']} {release.get('VERSION_ID', '')}".strip()
    except OSError:
        return f"{platform.system()} {platform.version()}"


def printed(*command: str) -> str:
    """Run a command, and return its standard output, or "" if the command fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
