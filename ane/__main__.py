"""The command `ane`, also `python -m ane`: Ctrl-C is one line from the first moment, while modules are imported."""

import sys
from contextlib import suppress

from ane.system.interruption import check_interrupted, interruptions


def main() -> int:
    """Import the command line and run it (``ane.cli.main``)."""
    with interruptions() as stops:
        try:
            from ane.cli import main as run

            check_interrupted()
            return run()
        except BaseException:
            if not stops.received:
                raise
            with suppress(OSError, AttributeError):     # standard error may be closed
                sys.stderr.write("ane: interrupted\n")
            return 128 + stops.received[0]


if __name__ == "__main__":
    sys.exit(main())
