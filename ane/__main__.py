"""Run the command `ane`, also as `python -m ane`. Ctrl-C prints only one line, even while modules are imported."""

import sys
from contextlib import suppress

from ane.system.requirements import OLDEST_PYTHON, mac_problem, python_problem


def main() -> int:
    """Run the command line (``ane.cli.main``). If this machine cannot run the program, say why instead."""
    problem = python_problem()
    if sys.version_info >= OLDEST_PYTHON:
        problem = problem or mac_problem()
    if problem:
        sys.stderr.write(f"ane: {problem}\n")
    if sys.version_info < OLDEST_PYTHON:  # an older Python cannot even import the rest
        return 1
    from ane.system.interruption import check_interrupted, interruptions

    with interruptions() as stops:
        try:
            from ane.cli import main as run

            check_interrupted()
            return run()
        except BaseException:
            if not stops.received:
                raise
            with suppress(OSError, AttributeError):  # standard error may be closed
                sys.stderr.write("ane: interrupted\n")
            return 128 + stops.received[0]


if __name__ == "__main__":
    sys.exit(main())
