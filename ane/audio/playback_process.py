"""A player in a child process, for engines that hold this one.

coremltools holds the GIL during a prediction, and the callback of a sound device is Python code, which then waits:
every prediction that is longer than what the device buffers would be a gap. The child has a GIL of its own.

``python -m ane.audio.playback_process RATE [EXPECTED]`` plays the pieces on its standard input, each a number of
samples (4 bytes, little-endian) and the samples (float32). It prints why it failed, and exits with 1.
"""

import contextlib
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

from ane.system.child_process import ChildProcess

MODULE = "ane.audio.playback_process"


class PlayerProcess:
    """Plays in a child process what it is fed; the methods are those of ``ane.audio.playback.Player``.

    Args:
        expected: estimate of the seconds of sound in all, or None.
        program: of the child (``ChildProcess``), which gets the rate and ``expected`` as arguments.
    """

    def __init__(self, sample_rate: int, expected: float | None, program: str | Sequence[str] = MODULE):
        arguments = [str(sample_rate), *([] if expected is None else [str(expected)])]
        self._process = ChildProcess(program, arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def feed(self, audio: np.ndarray) -> None:
        """Append audio (n,) float32; returns when the child has room for it. PlayerError when the device failed."""
        assert self._process.stdin is not None
        samples = np.ascontiguousarray(audio, "<f4")
        try:
            self._process.stdin.write(len(samples).to_bytes(4, "little") + samples.tobytes())
            self._process.stdin.flush()
        except OSError:
            self._raise_failure()

    def finish(self) -> None:
        """Wait for the end of the sound. PlayerError when the device fails."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if self._process.wait():
            self._raise_failure()

    def close(self) -> None:
        """Stop at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _raise_failure(self) -> None:
        from ane.audio.playback import PlayerError

        assert self._process.stdout is not None
        status = self._process.wait()
        message = self._process.stdout.read().decode(errors="replace").strip()
        raise PlayerError(message or f"the process that plays ended (exit status {status})")


def main() -> None:
    from ane.audio.playback import playing
    from ane.system.errors import UserError

    rate, expected = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else None
    pieces = sys.stdin.buffer
    try:
        with playing(rate, expected, own_process=True) as play:
            while header := pieces.read(4):
                play(np.frombuffer(pieces.read(4 * int.from_bytes(header, "little")), "<f4"))
    except UserError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(1)
    except KeyboardInterrupt:       # the parent got it too, and reports it
        sys.exit(1)


if __name__ == "__main__":
    main()
