"""Playing sound while it arrives: through a pipe to a player, or on a device by the library sounddevice.

    with playing(24000) as play, closing(stream):
        for piece in stream:
            play(piece)

Two ends with a queue between them. Who makes the sound hands over its pieces, and waits when the queue is full; a
thread hands them on to the player. An error at either end, or Ctrl-C, ends both: the player is killed, the next
``play`` raises, nothing runs on.
"""

import importlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ane.audio.files import pcm16
from ane.system.errors import UserError
from ane.system.files import write_whole

# programs that play 16-bit mono from standard input, the first there is taken; ffplay's default is mono, and versions
# differ on how to say so
PLAYERS = {
    "paplay": ("--raw", "--format=s16le", "--channels=1", "--rate={rate}"),
    "aplay": ("-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", "{rate}", "-"),
    "ffplay": ("-nodisp", "-autoexit", "-loglevel", "error", "-f", "s16le", "-sample_rate", "{rate}", "-i", "-"),
    "play": ("-q", "-t", "raw", "-e", "signed", "-b", "16", "-c", "1", "-r", "{rate}", "-"),
    "pw-play": ("--raw", "--format=s16", "--channels=1", "--rate={rate}", "-"),
}
BLOCK = 4800        # bytes handed on at a time: a tenth of a second, so that a stop is soon heard


class PlayerError(UserError):
    """The player is at fault, not what makes the sound."""


@dataclass(frozen=True)
class Buffering:
    """When to begin, and how far the making may be ahead of the playing. All in seconds of sound.

    Attributes:
        ahead: sound that waits in the queue at most, a piece aside. Playing begins at the latest when it is full.
        unknown: sound that is taken to be still to come when nobody knows.
        caution: what is needed is multiplied by it, for no measured rate lasts.
    """

    ahead: float = 60.0
    unknown: float = 10.0
    caution: float = 1.25

    def needed(self, rate: float, longest: float, left: float) -> float:
        """What must be there before playing begins, so that it does not catch up with the making.

        Sound is made at ``rate``, in seconds of it a second, the longest wait for a piece was ``longest`` seconds, and
        ``left`` is still to come. That takes left / rate, in which so much more than ``left`` is played; a piece that
        is on its way is only heard when it is whole: caution · (longest + max(0, 1/rate − 1) · left).
        """
        return self.caution * (longest + max(0.0, 1 / rate - 1) * left)


class Production:
    """How fast sound is made, in pieces. The wait for the first counts as long as there is no other."""

    def __init__(self, now: float):
        self.last = now
        self.made = self.sound = self.spent = self.longest = 0.0        # made: all of it; the others: what is counted
        self.pieces = 0

    def note(self, now: float, seconds: float) -> None:
        """A piece of so many seconds of sound, at the time ``now`` in seconds."""
        if self.pieces == 1:
            self.sound = self.spent = self.longest = 0.0
        waited = now - self.last
        self.last, self.pieces, self.made = now, self.pieces + 1, self.made + seconds
        self.sound, self.spent, self.longest = self.sound + seconds, self.spent + waited, max(self.longest, waited)

    @property
    def rate(self) -> float:
        """Seconds of sound a second; infinite when it took none."""
        return self.sound / self.spent if self.spent else float("inf")


class Outlet(Protocol):
    """Where bytes of 16-bit mono become sound."""

    name: str

    def write(self, data: bytes) -> None:
        """Blocks while there is no room. OSError when it plays no more."""

    def finish(self) -> None:
        """Wait until all has been played. OSError, with what it said, when it was not."""

    def stop(self) -> None:
        """Be silent at once; may be called at any time, from any thread."""

    def close(self) -> None:
        """Let go of what it holds, after it has finished or was stopped and nobody writes any more."""

    def ended(self) -> bool:
        """Whether it plays no more."""

    def complaint(self) -> str:
        """The last it said, if it has ended."""


class Program:
    """A player that reads standard input. It has a process group of its own: Ctrl-C is ours to handle."""

    def __init__(self, name: str, sample_rate: int):
        self.name, self.gone = name, False
        command = [name, *(part.format(rate=sample_rate) for part in PLAYERS[name])]
        self.said = tempfile.TemporaryFile(prefix="ane-play-")      # noqa: SIM115 (``close`` closes it)
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                            stderr=self.said, bufsize=0, start_new_session=True)
        except OSError as error:
            self.said.close()
            raise UserError(f"cannot start {name}: {error.strerror}") from error

    def write(self, data: bytes) -> None:
        write_whole(self.process.stdin, data)

    def finish(self) -> None:
        self.process.stdin.close()
        if self.process.wait():
            raise OSError(f"{self.name} failed")
        self.gone = True

    def stop(self) -> None:
        if self.gone or self.process.returncode is not None:        # its number may be another's
            return
        self.gone = True
        with suppress(ProcessLookupError, PermissionError):     # all of it has ended; macOS calls that the latter
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait()

    def close(self) -> None:
        with suppress(OSError):
            self.process.stdin.close()
        self.said.close()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def complaint(self) -> str:
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it gave no reason"


class Device:
    """The default device, by the library sounddevice (PortAudio)."""

    name = "sounddevice"

    def __init__(self, library: Any, sample_rate: int):
        self.library, self.error = library, "it gave no reason"
        self._ended = False
        try:
            self.stream = library.RawOutputStream(samplerate=sample_rate, channels=1, dtype="int16")
            self.stream.start()
        except library.PortAudioError as error:
            raise UserError(f"no sound device can be opened: {error}; write a file instead") from error

    def write(self, data: bytes) -> None:
        self._guarded(self.stream.write, data)

    def finish(self) -> None:
        self._guarded(self.stream.stop, False)

    def stop(self) -> None:
        self._ended = True
        self.stream.abort(ignore_errors=True)

    def close(self) -> None:
        self.stream.close(ignore_errors=True)

    def ended(self) -> bool:
        return self._ended

    def complaint(self) -> str:
        return self.error

    def _guarded(self, call: Callable, *arguments: Any) -> None:
        try:
            call(*arguments)
        except self.library.PortAudioError as error:
            self.error, self._ended = str(error), True
            raise OSError(str(error)) from error


class Player:
    """A queue and the thread that empties it into an outlet once playing has begun."""

    def __init__(self, outlet: Outlet, sample_rate: int, expected: float | None, buffering: Buffering):
        self.outlet, self.rate, self.expected, self.buffering = outlet, sample_rate, expected, buffering
        self.production = Production(time.monotonic())
        self.queue: deque[bytes] = deque()
        self.waiting = 0                            # bytes in the queue
        self.begun = self.over = self.stopped = False
        self.failed = False                         # the outlet refused
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._hand_on, name="playing", daemon=True)
        self.thread.start()

    @property
    def buffered(self) -> float:
        """Seconds in the queue."""
        return self.waiting / (2 * self.rate)

    def feed(self, audio: np.ndarray) -> None:
        """Add audio (n,) float32; returns when the queue has room again. UserError when the player is gone."""
        data = pcm16(audio).tobytes()
        if not data:
            return
        with self.changed:
            self._check()
            self.production.note(time.monotonic(), len(audio) / self.rate)
            self.queue.extend(data[start:start + BLOCK] for start in range(0, len(data), BLOCK))
            self.waiting += len(data)
            self.begun = self.begun or self._enough()
            self.changed.notify_all()
            while self.begun and not self.failed and self.buffered > self.buffering.ahead:
                self.changed.wait()
            self._check()

    def finish(self) -> None:
        """Play what is left and wait for its end. UserError when the player fails."""
        with self.changed:
            self.begun = self.over = True
            self.changed.notify_all()
        self.thread.join()
        with self.changed:
            self._check()
        try:
            self.outlet.finish()
        except OSError as error:
            raise self._complaint() from error

    def stop(self) -> None:
        """Be silent at once and leave nothing running."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
        self.outlet.stop()
        self.thread.join()
        self.outlet.close()

    def _enough(self) -> bool:
        made = self.production
        left = self.buffering.unknown if self.expected is None else max(self.expected - made.made, 0.0)
        return self.buffered >= min(self.buffering.needed(made.rate, made.longest, left), self.buffering.ahead)

    def _hand_on(self) -> None:
        while True:
            with self.changed:
                while not self.stopped and not (self.begun and (self.queue or self.over)):
                    self.changed.wait()
                if self.stopped or not self.queue:
                    return
                block = self.queue.popleft()
            try:
                self.outlet.write(block)
            except OSError:
                with self.changed:
                    self.failed = True
                    self.changed.notify_all()
                return
            with self.changed:
                self.waiting -= len(block)
                self.changed.notify_all()

    def _check(self) -> None:
        if self.failed or self.outlet.ended():
            raise self._complaint()

    def _complaint(self) -> "PlayerError":
        self.outlet.stop()      # so that it has said all
        return PlayerError(f"{self.outlet.name} stopped before the sound was over ({self.outlet.complaint()}); "
                         "check the sound device, or write a file instead")


@contextmanager
def playing(sample_rate: int, expected: float | None = None,
            buffering: Buffering | None = None) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that plays audio (n,) float32 at ``sample_rate`` Hz after what it was given before.

    The first sound is held back until the rest is likely to follow without a gap (``Buffering``). The block's end waits
    until all has been heard; an error in the block silences it at once.

    Args:
        expected: seconds of sound in all, as far as one knows.

    Raises:
        UserError: nothing to play with, or it stopped before the end.
    """
    player = Player(find_outlet(sample_rate), sample_rate, expected, buffering or Buffering())
    try:
        yield player.feed
        player.finish()
    finally:
        player.stop()


def find_outlet(sample_rate: int) -> Outlet:
    """The first program of ``PLAYERS`` that the machine has, else sounddevice. UserError when it has neither."""
    name = player_name()
    return Program(name, sample_rate) if name else Device(_sounddevice(), sample_rate)


def check_player() -> None:
    """Raise UserError, before any work is done, when there is nothing to play with."""
    if player_name() is None:
        _sounddevice()


def player_name() -> str | None:
    return next((name for name in PLAYERS if shutil.which(name)), None)


def _sounddevice() -> Any:
    try:
        return importlib.import_module("sounddevice")
    except (ImportError, OSError) as error:         # OSError: without PortAudio
        raise UserError(f"nothing plays sound while it comes: install one of {', '.join(PLAYERS)} (alsa-utils, ffmpeg "
                        "or sox), or pip install 'tortoise-ane[play]', or write a file instead") from error
