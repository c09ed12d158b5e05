"""``python -m ane.audio ARGUMENTS``: play what arrives on standard input (``playback.PlayerProcess``).

The arguments are those of ``playback.playing``, a list in JSON. Each piece is a number of samples (4 bytes,
little-endian) and the samples (float32). It prints why it failed, and exits with 1.
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
    except KeyboardInterrupt:  # the parent got it too, and reports it
        sys.exit(1)


if __name__ == "__main__":
    main()
