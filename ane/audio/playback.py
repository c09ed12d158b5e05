"""Play sound on a device while the sound arrives, with the library miniaudio.

    with playing(24000) as play, closing(stream):
        for piece in stream:
            play(piece)

``play`` appends a piece to a queue, and waits while the queue is full. A thread of the device takes samples from the
queue. If the device fails, the next ``play`` raises an error. If the block raises an error, or you press Ctrl-C, the
device is closed. No thread remains in either case.
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
PERIOD_MS = 100  # the device takes this many milliseconds of sound, one period, in one call
PERIODS = 3  # the device buffers this many periods
STALLED_SECONDS = 10.0  # a device that takes no samples for this many seconds has failed
MAX_QUEUED = 60.0  # if this many seconds of sound are queued, ``feed`` waits. Playing starts at the latest then
ASSUMED_REMAINING = 10.0  # if the total length is not known, this many seconds of sound are assumed to follow
SAFETY = 1.25  # factor for the sound to queue before playing starts, because the production rate varies

_ADVICE = "check the device, or write a file instead, with -o speech.wav"


class PlayerError(UserError):
    """An error of the sound device, as opposed to an error of the program that makes the sound."""


class ProductionRate:
    """Measures the rate at which pieces of sound are produced.

    When the second piece arrives, the measurement starts again without the first piece, because the wait for the first
    piece says little about the rate.
    """

    def __init__(self, now: float):
        self.produced = self.longest_wait = 0.0  # seconds of all sound, and of the longest wait for a piece
        self.pieces, self._last = 0, now
        self._counted = self._waited = 0.0  # seconds of counted sound, and of the wait for it

    def record(self, now: float, seconds: float) -> None:
        """Record that a piece with ``seconds`` seconds of sound arrives at the time ``now`` (in seconds)."""
        if self.pieces == 1:
            self._counted = self._waited = self.longest_wait = 0.0
        wait = now - self._last
        self._last, self.pieces, self.produced = now, self.pieces + 1, self.produced + seconds
        self._counted, self._waited = self._counted + seconds, self._waited + wait
        self.longest_wait = max(self.longest_wait, wait)

    @property
    def rate(self) -> float:
        """Seconds of sound produced per second, or infinity if producing the sound took no time."""
        return self._counted / self._waited if self._waited else float("inf")

    def required(self, remaining: float) -> float:
        """Return how many seconds of sound to queue before playing starts, so that the queue never becomes empty.

        Producing the ``remaining`` seconds of sound takes remaining / rate seconds, and the device plays all this time.
        The device can play a piece only when the piece is complete, so the longest wait for a piece is added. The
        result is SAFETY · (longest_wait + max(0, 1/rate − 1) · remaining).
        """
        return SAFETY * (self.longest_wait + max(0.0, 1 / self.rate - 1) * remaining)


class DefaultSoundDevice:
    """A sound device for 16-bit mono sound.

    Args:
        sample_rate: Sample rate of the sound in Hz.
        backends: Backends of miniaudio. ``None`` means all backends of real devices.
        name: Name or number of the device. ``None`` means the system's default device.

    Attributes:
        open: Whether the device is open. ``close`` sets it to False.

    Raises:
        OSError: The device does not exist, or cannot be opened.
    """

    def __init__(self, sample_rate: int, backends: Sequence[Any] | None = None, name: str | None = None):
        import miniaudio  # imported here, because the import takes 0.1 s

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
        """Start a thread that gets samples from ``callback.send(frames)``. Raises OSError if the device fails."""
        try:
            self._device.start(callback)
        except self._error as error:
            raise OSError(_text(error)) from error

    def close(self) -> None:
        """Stop immediately. The device does not call ``callback`` again."""
        self.open = False
        self._device.close()


class Player:
    """A queue of sound from which a device takes samples after playing has started.

    Args:
        device: The device.
        sample_rate: Sample rate of the sound in Hz.
        expected: Estimated length of the whole sound in seconds. ``None`` means that nobody knows it.
        at_once: Whether playing starts with the first piece of sound.
    """

    def __init__(self, device: DefaultSoundDevice, sample_rate: int, expected: float | None, at_once: bool):
        self.device, self.sample_rate, self.expected, self.at_once = device, sample_rate, expected, at_once
        self.production = ProductionRate(time.monotonic())
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._started: float | None = None  # time at which playing started
        self._taken_at = 0.0  # time at which the device last took samples
        self._silence = 0  # number of silent frames that the device took since the queue became empty
        self._changed = Condition()

    @property
    def queued_seconds(self) -> float:
        return self._queued_bytes / (2 * self.sample_rate)

    def feed(self, audio: np.ndarray) -> None:
        """Append audio (n,) float32 to the queue, and wait while the queue is full.

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
        """Play the rest of the queue, and wait until it has been heard. Raises PlayerError if the device fails."""
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
        """Start the device. The caller must not hold the lock, because the device may ask for samples immediately."""
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
        """Take ``wanted`` bytes from the queue. If it has fewer, add silence. The device's thread calls this method."""
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
    """A player in a child process (``ane.audio.__main__``), with the same methods as ``Player``.

    Use it with an engine that blocks this process. For example, coremltools holds the GIL during a prediction, and the
    callback of a sound device is Python code, which needs the GIL. If the device's buffer became empty during a
    prediction, there would be a gap in the sound.

    Args:
        sample_rate: Sample rate of the sound in Hz.
        expected: Estimated length of the whole sound in seconds, as for ``playing``.
        at_once: Whether playing starts with the first piece of sound, as for ``playing``.
        name: Name or number of the device. ``None`` means the system's default device.
        program: Program of the child process (see ``ChildProcess``). It gets the other arguments as JSON.
    """

    def __init__(
        self,
        sample_rate: int,
        expected: float | None,
        at_once: bool,
        name: str | None = None,
        program: str | Sequence[str] = PLAYER,
    ):
        arguments = json.dumps([sample_rate, expected, at_once, *([name] if name else [])])
        self._process = ChildProcess(program, [arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def feed(self, audio: np.ndarray) -> None:
        """Send audio (n,) float32 to the child process, and wait while the child's queue is full.

        Raises:
            PlayerError: The child could not play.
        """
        samples = np.ascontiguousarray(audio, "<f4")
        try:
            self._process.stdin.write(len(samples).to_bytes(4, "little") + samples.tobytes())
            self._process.stdin.flush()
        except OSError:
            self._raise_failure()

    def finish(self) -> None:
        """Wait until the child has played all sound. Raises PlayerError if the device fails."""
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
    """Open a sound device, and yield a function that plays audio (n,) float32 after the audio of earlier calls.

    Playing starts when the sound will probably continue without a gap (see ``ProductionRate``). At the end of the
    ``with`` block, wait until all sound has been played. An error in the block stops the sound immediately.

    Args:
        sample_rate: Sample rate of the audio in Hz.
        expected: Estimated length of the whole sound in seconds. ``None`` means that you do not know it.
        at_once: Whether playing starts with the first piece of sound.
        name: Name or number of the device. ``None`` means the system's default device.
        device: Open device from ``check_sound_device``. If it has another sample rate, it is closed and a new device is
            opened. ``None`` opens a device.
        blocked: Whether the engine blocks Python for too long (``Backend.blocks_python``), so that a child process must
            play the sound.

    Raises:
        UserError: The sound device does not exist, or samples are NaN or infinite.
        PlayerError: The device failed before the end of the sound.
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
    """Play audio (S,) float32, and wait until it ends. Raises the same errors as ``playing``."""
    with playing(sample_rate, name=name, device=device) as feed:
        feed(audio)


def check_sound_device(sample_rate: int = 24000, name: str | None = None) -> DefaultSoundDevice:
    """Open a sound device before the work begins, and return it. Raises UserError if there is none."""
    return open_device(sample_rate, *([name] if name else []))


def open_device(sample_rate: int, name: str | None = None) -> DefaultSoundDevice:
    """Open the sound device with this name, or the system's default device. Raises UserError if there is none."""
    try:
        return DefaultSoundDevice(sample_rate, name=name)
    except OSError as error:
        raise UserError(f"no sound device can be opened ({error}): {_ADVICE}") from error


def _text(error: Exception) -> str:
    """Return the message of a MiniaudioError, whose arguments are a text and a number."""
    return f"miniaudio: {' '.join(map(str, error.args))}"
