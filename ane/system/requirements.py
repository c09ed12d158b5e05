"""Check whether this Python and this Mac can run the program.

Every Python 3 can import this file, so that an unsuitable Python can report the problem.
"""

import platform
import sys

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)  # as in pyproject.toml
OLDEST_MACOS = 14  # torch has no wheels for older systems
INSTALL = "install it with `uv tool install --python 3.12 .`, which brings a Python that can"


def python_problem(version=None):  # type: ignore[no-untyped-def]  # old Pythons reject union types
    """Return why a version of Python (default: this one) cannot run the program, or "" if it can."""
    major, minor = (version or sys.version_info)[:2]
    if OLDEST_PYTHON <= (major, minor) <= NEWEST_PYTHON:
        return ""
    return "Python {}.{} cannot run tortoise-ane, which needs Python {}.{} to {}.{}: {}".format(
        major, minor, *OLDEST_PYTHON, *NEWEST_PYTHON, INSTALL
    )


def mac_problem() -> str:
    """Return why this Mac cannot run the program, such as a Python for Intel.

    Returns "" if it can, and on other systems.
    """
    if sys.platform != "darwin":
        return ""
    from ane.system.machine import macos_at_least, macos_version, printed

    if platform.machine() == "x86_64":
        if printed("sysctl", "-n", "sysctl.proc_translated") == "1":
            return f"this Python is for Intel processors and runs under Rosetta: {INSTALL}"
        return "this Mac has an Intel processor, and tortoise-ane needs Apple silicon: use another Mac, or Linux"
    # Python's answer comes first, because it takes no time. It may be too old a version, but never too new
    if int(platform.mac_ver()[0].partition(".")[0] or 0) >= OLDEST_MACOS or macos_at_least(OLDEST_MACOS):
        return ""
    return f"this Mac has macOS {macos_version()}, and tortoise-ane needs macOS {OLDEST_MACOS} or newer: update it"
