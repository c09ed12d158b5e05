"""Play sound on a device while it arrives, with the library miniaudio.

    with playing(24000) as play, closing(stream):
        for piece in stream:
            play(piece)

The producer appends pieces to a queue, and waits while the queue is full. A thread of the device takes samples from it.
An error on either side, or Ctrl-C, stops both: the device is closed, the next ``play`` raises, and no thread is left.
"""

import contextlib
import json
import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from threading import Condition
from typing import Any

import numpy as np

from ane.audio.devices import find_device, real_backends
from ane.audio.writer import pcm16
from ane.system.child_process import ChildProcess
from ane.system.errors import UserError
from ane.system.streams import silent_c_libraries

PLAYER = "ane.audio"  # module of the child process that plays
PERIOD_MS = 100  # milliseconds of sound per period, which the device takes in one call
PERIODS = 3  # number of periods that the device buffers
STALLED_SECONDS = 10.0  # seconds without taking samples after which the device has failed
MAX_QUEUED = 60.0  # seconds of queued sound at which the producer waits, and at which playing starts at the latest
ASSUMED_REMAINING = 10.0  # seconds of sound that are assumed to follow if the total is not known
SAFETY = 1.25  # factor for the sound that is queued before playing starts, because the rate varies

_ADVICE = "check the device, or write a file instead, with -o speech.wav"


class PlayerError(UserError):
    """The sound device failed. The producer of the sound did not."""


class ProductionRate:
    """The rate at which pieces of sound are produced. The wait for the first piece counts until the second arrives."""

    def __init__(self, now: float):
        self.produced = self.longest_wait = 0.0  # seconds of sound, and seconds of the longest wait for a piece
        self.pieces, self._last = 0, now
        self._counted = self._waited = 0.0  # seconds of sound, and seconds of waiting for it

    def record(self, now: float, seconds: float) -> None:
        """Record a piece of ``seconds`` of sound that arrives at the time ``now`` in seconds."""
        if self.pieces == 1:
            self._counted = self._waited = self.longest_wait = 0.0
        wait = now - self._last
        self._last, self.pieces, self.produced = now, self.pieces + 1, self.produced + seconds
        self._counted, self._waited = self._counted + seconds, self._waited + wait
        self.longest_wait = max(self.longest_wait, wait)

    @property
    def rate(self) -> float:
        """Seconds of sound per second, or infinity if the sound took no time."""
        return self._counted / self._waited if self._waited else float("inf")

    def required(self, remaining: float) -> float:
        """Return the seconds of sound to queue before playing starts, so that the queue does not run empty.

        Producing the ``remaining`` seconds of sound takes remaining / rate seconds, and so many seconds are played
        during that time. In addition, a piece can be played only when it is complete. The result is therefore
        SAFETY · (longest_wait + max(0, 1/rate − 1) · remaining).
        """
        return SAFETY * (self.longest_wait + max(0.0, 1 / self.rate - 1) * remaining)


class DefaultSoundDevice:
    """A sound device for 16-bit mono sound.

    Args:
        backends: Backends of miniaudio. ``None`` means all backends of real devices.
        name: Name or number of the device. ``None`` means the system's default.

    Attributes:
        open: Whether the device is open. ``close`` sets it to False.

    Raises:
        OSError: There is no device, or it cannot be opened.
    """

    def __init__(self, sample_rate: int, backends: Sequence[Any] | None = None, name: str | None = None):
        import miniaudio  # takes 0.1 s

        backends = real_backends() if backends is None else backends
        self._error, self.sample_rate, self.open = miniaudio.MiniaudioError, sample_rate, True
        try:
            with silent_c_libraries():
                self._device = miniaudio.PlaybackDevice(
                    miniaudio.SampleFormat.SIGNED16,
                    1,
                    sample_rate,
                    PERIOD_MS,
                    callback_periods=PERIODS,
                    backends=list(backends),
                    app_name="tortoise-ane",
                    device_id=find_device(name).handle if name else None,
                )
        except self._error as error:
            raise OSError(_text(error)) from error

    def start(self, callback: Generator[bytes, int, None]) -> None:
        """Start a thread that calls ``callback.send(frames)`` for samples. Raises OSError if that fails."""
        try:
            self._device.start(callback)
        except self._error as error:
            raise OSError(_text(error)) from error

    def close(self) -> None:
        """Stop immediately. ``callback`` is not called any more."""
        self.open = False
        self._device.close()


class Player:
    """A queue of sound that a device empties after playing has started.

    Args:
        expected: Estimated total seconds of sound. ``None`` means that it is not known.
        at_once: Whether playing starts with the first piece.
    """

    def __init__(self, device: DefaultSoundDevice, sample_rate: int, expected: float | None, at_once: bool):
        self.device, self.sample_rate, self.expected, self.at_once = device, sample_rate, expected, at_once
        self.production = ProductionRate(time.monotonic())
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._started: float | None = None  # time at which playing started
        self._taken_at = 0.0  # time at which the device last took samples
        self._silence = 0  # number of frames that the device took since the queue was empty
        self._changed = Condition()

    @property
    def queued_seconds(self) -> float:
        return self._queued_bytes / (2 * self.sample_rate)

    def feed(self, audio: np.ndarray) -> None:
        """Append audio (n,) float32, and wait until the queue is below its limit.

        Raises:
            PlayerError: The device failed.
        """
        data = memoryview(pcm16(audio).tobytes())
        if not data:
            return
        with self._changed:
            self.production.record(time.monotonic(), len(audio) / self.sample_rate)
            self._queue.append(data)
            self._queued_bytes += len(data)
            begin = self._started is None and self._has_enough()
        if begin:
            self._start()
        with self._changed:
            while self._started is not None and self.queued_seconds > MAX_QUEUED:
                self._wait()
            self._check()

    def finish(self) -> None:
        """Play the rest of the queue and wait for its end. Raises PlayerError if the device fails."""
        if self._started is None:
            if not self._queued_bytes:
                return
            self._start()
        buffered = PERIODS * PERIOD_MS * self.sample_rate // 1000  # number of frames in the device's buffer
        with self._changed:
            while self._queued_bytes or self._silence < buffered:
                self._wait()

    def close(self) -> None:
        self.device.close()

    def _has_enough(self) -> bool:
        known = self.production
        remaining = ASSUMED_REMAINING if self.expected is None else max(self.expected - known.produced, 0.0)
        return self.at_once or self.queued_seconds >= min(known.required(remaining), MAX_QUEUED)

    def _start(self) -> None:
        """Start the device. The caller must not have the lock, because the device may ask for samples early."""
        self._started = self._taken_at = time.monotonic()
        callback = self._samples()
        next(callback)
        try:
            self.device.start(callback)
        except OSError as error:
            raise PlayerError(f"the sound device cannot be started ({error}): {_ADVICE}") from error

    def _samples(self) -> Generator[bytes, int, None]:
        frames = yield b""
        while True:
            frames = yield self._take(2 * frames)

    def _take(self, wanted: int) -> bytes:
        """Remove ``wanted`` bytes from the queue, and add silence if it has fewer. The device's thread calls this."""
        taken = bytearray()
        with self._changed:
            while self._queue and len(taken) < wanted:
                piece = self._queue.popleft()
                rest = wanted - len(taken)
                taken += piece[:rest]
                if len(piece) > rest:
                    self._queue.appendleft(piece[rest:])
            self._queued_bytes -= len(taken)
            self._silence = 0 if taken else self._silence + wanted // 2
            self._taken_at = time.monotonic()
            self._changed.notify_all()
        return bytes(taken.ljust(wanted, b"\0"))

    def _wait(self) -> None:
        self._changed.wait(STALLED_SECONDS / 2)
        self._check()

    def _check(self) -> None:
        if self._started is not None and time.monotonic() - self._taken_at > STALLED_SECONDS:
            raise PlayerError(f"the sound device stopped before the end of the sound: {_ADVICE}")


class PlayerProcess:
    """A player in a child process (``ane.audio.__main__``). It has the methods of ``Player``.

    It is for engines that block this process. coremltools holds the GIL during a prediction, but the callback of a
    sound device is Python code and has to wait for the GIL. A prediction that is longer than the device's buffer would
    therefore cause a gap.

    Args:
        expected: The argument of ``playing``.
        at_once: The argument of ``playing``.
        program: Program of the child (see ``ChildProcess``). It gets the rate, ``expected`` and ``at_once`` as JSON.
    """

    def __init__(
        self,
        sample_rate: int,
        expected: float | None,
        at_once: bool = False,
        name: str | None = None,
        program: str | Sequence[str] = PLAYER,
    ):
        arguments = json.dumps([sample_rate, expected, at_once, *([name] if name else [])])
        self._process = ChildProcess(program, [arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def feed(self, audio: np.ndarray) -> None:
        """Append audio (n,) float32, and wait until the child has room. Raises PlayerError if the device failed."""
        samples = np.ascontiguousarray(audio, "<f4")
        try:
            self._process.stdin.write(len(samples).to_bytes(4, "little") + samples.tobytes())
            self._process.stdin.flush()
        except OSError:
            self._raise_failure()

    def finish(self) -> None:
        """Wait for the end of the sound. Raises PlayerError if the device fails."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if self._process.wait():
            self._raise_failure()

    def close(self) -> None:
        """Stop immediately."""
        with contextlib.suppress(OSError), self._process:  # leaving Popen's block closes its pipes and waits
            self._process.kill()

    def _raise_failure(self) -> None:
        status = self._process.wait()
        message = self._process.stdout.read().decode(errors="replace").strip()
        raise PlayerError(message or f"the process that plays ended (exit status {status})")


@contextlib.contextmanager
def playing(
    sample_rate: int,
    expected: float | None = None,
    at_once: bool = False,
    name: str | None = None,
    device: DefaultSoundDevice | None = None,
    blocked: bool = False,
) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that plays audio (n,) float32 at ``sample_rate`` Hz after the audio of earlier calls.

    Playing starts when the rest will probably follow without a gap (see ``ProductionRate``). The end of the block waits
    until everything has been played. An error in the block stops the sound immediately.

    Args:
        expected: Estimated total seconds of sound. ``None`` means that it is not known.
        at_once: Whether playing starts with the first piece.
        name: Name or number of the device. ``None`` means the system's default.
        device: Open device from ``check_sound_device``, which is used if it has this rate. ``None`` opens one.
        blocked: Whether the engine blocks this process too long to play (``Backend.blocks_python``), so that a child
            process must play.

    Raises:
        UserError: There is no sound device, or samples are NaN or infinite.
        PlayerError: The device failed before the end.
    """
    player: Player | PlayerProcess
    if device is not None and (blocked or device.sample_rate != sample_rate or not device.open):
        device.close()
        device = None
    if blocked:
        player = PlayerProcess(sample_rate, expected, at_once, *([name] if name else []))
    else:
        player = Player(device or open_device(sample_rate, *([name] if name else [])), sample_rate, expected, at_once)
    try:
        yield player.feed
        player.finish()
    finally:
        player.close()


def play(
    audio: np.ndarray, sample_rate: int, device: DefaultSoundDevice | None = None, name: str | None = None
) -> None:
    """Play audio (S,) float32 and wait for its end. Raises the errors of ``playing``."""
    with playing(sample_rate, name=name, device=device) as feed:
        feed(audio)


def check_sound_device(sample_rate: int = 24000, name: str | None = None) -> DefaultSoundDevice:
    """Open and return a sound device, before any work is done. Raises UserError if there is none."""
    return open_device(sample_rate, *([name] if name else []))


def open_device(sample_rate: int, name: str | None = None) -> DefaultSoundDevice:
    """Open a sound device, by default the system's. Raises UserError if there is none."""
    try:
        return DefaultSoundDevice(sample_rate, name=name)
    except OSError as error:
        raise UserError(f"no sound device can be opened ({error}): {_ADVICE}") from error


def _text(error: Exception) -> str:
    """Return the message of a MiniaudioError, whose arguments are a text and a number."""
    return f"miniaudio: {' '.join(map(str, error.args))}"
