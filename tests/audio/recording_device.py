"""Provide sounds for tests of playback, and a stand-in for a sound device that records what is played."""

import threading
import time

import numpy as np

FRAMES = 240  # frames per call. A real device takes as many in 10 ms at 24 kHz


class RecordingDevice:
    """Replaces the default device: ``monkeypatch.setattr(ane.audio.playback, "open_device", RecordingDevice())``.

    Attributes:
        fails_after: it takes no samples any more after so many bytes; None: never.
        open: until ``close``. opened: how often. paused: while set it takes nothing.
    """

    def __init__(self, fails_after: int | None = None):
        self.fails_after = fails_after
        self.sample_rate = 0
        self.taken = bytearray()
        self.open, self.opened, self.paused = False, 0, threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, sample_rate: int) -> "RecordingDevice":
        self.sample_rate, self.open, self.opened = sample_rate, True, self.opened + 1
        return self

    def start(self, callback) -> None:
        self._thread = threading.Thread(target=self._take, args=(callback,), name="recording-device", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.open = False
        if self._thread is not None:
            self._thread.join(timeout=20)

    @property
    def started(self) -> bool:
        return self._thread is not None

    @property
    def played(self) -> np.ndarray:
        """All samples (S,) int16 without the silence after them."""
        return np.trim_zeros(np.frombuffer(bytes(self.taken), "<i2"), "b")

    def _take(self, callback) -> None:
        while self.open:
            if not self.paused.is_set() and (self.fails_after is None or len(self.taken) < self.fails_after):
                self.taken += callback.send(FRAMES)
            time.sleep(0.0005)


RATE = 22050


def tone(seconds: float = 1.0, rate: int = RATE, peak: float = 0.5) -> np.ndarray:
    return (peak * np.sin(2 * np.pi * 220 * np.arange(round(seconds * rate)) / rate)).astype(np.float32)
