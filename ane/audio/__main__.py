"""Play the sound that arrives on standard input. ``playback.PlayerProcess`` runs this program as a child process.

    python -m ane.audio ARGUMENTS

ARGUMENTS is a JSON list with the arguments of ``playback.playing``. The sound arrives in pieces. A piece begins with
its number of samples (4 bytes, little-endian), and the samples (float32) follow. If playing fails, the program prints
the error and exits with status 1.
"""

import json
import sys

import numpy as np

from ane.audio.playback import playing
from ane.system.errors import UserError


def main() -> None:
    pieces = sys.stdin.buffer
    try:
        with playing(*json.loads(sys.argv[1])) as play:
            while header := pieces.read(4):
                play(np.frombuffer(pieces.read(4 * int.from_bytes(header, "little")), "<f4"))
    except UserError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(1)
    except KeyboardInterrupt:  # the parent gets the interruption too, and reports it
        sys.exit(1)


if __name__ == "__main__":
    main()
