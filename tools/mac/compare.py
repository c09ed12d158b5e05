"""Print the dB between the mels of sounds that should be equal: `python -m tools.mac.compare EXPECTED FOUND…`."""

import sys
from collections.abc import Sequence

import soundfile

from ane.audio.mel import diffusion_mel
from ane.system.decibels import snr_db


def main(names: Sequence[str]) -> int:
    """Print a line for each sound after the first, which they are compared with."""
    expected, rate = soundfile.read(names[0], dtype="float32")
    for name in names[1:]:
        found, _ = soundfile.read(name, dtype="float32")
        result = f"{len(found) / rate:.2f} s instead of {len(expected) / rate:.2f} s, so other codes"
        if len(found) == len(expected):
            result = f"{snr_db(diffusion_mel(expected), diffusion_mel(found)):.1f} dB"
        sys.stdout.write(f"{name} and {names[0]}: {result}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
