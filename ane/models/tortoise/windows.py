"""Latents to a mel in windows, so that sound can start after the first window, however long the speech is.

Each window of latents is diffused separately. It overlaps the previous one, and the two mels are cross-faded there.
Overlapping frames get the same noise in both windows, so that the two mels differ little.

    first   ├────────┤
    next          ├──┼─────────────┤           each is up to twice as long as the previous one, at most ``size``
    last               ├─────────────┼──┤      the last overlaps more, so that it is not short
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ane.backends.base import Backend
from ane.models.tortoise.diffusion import Diffusion, StepProgress, frame_count, no_step_progress, spectrograms
from ane.system.errors import UserError


@dataclass(frozen=True)
class Windows:
    """Lengths in latents, 21.5 per second.

    Attributes:
        first: length of the first window. Shorter speech is diffused in one piece.
        size: length of the longest window. Each is at most twice as long as the previous one, so that playback does not
            stall.
        overlap: minimum overlap of consecutive windows.

    The defaults were chosen with benchmarks/results/windows-demo.json: they change the mel less than another seed does.
    """

    first: int = 32
    size: int = 128
    overlap: int = 12

    def __post_init__(self):
        if not 1 <= self.overlap < self.first <= self.size:
            raise UserError(f"windows must satisfy 1 ≤ overlap < first ≤ size, got overlap {self.overlap}, first "
                            f"{self.first}, size {self.size}", "windows")


class WindowedDiffusion:
    """Latents (n, D) that arrive incrementally → log-mel pieces (100, m).

    The result depends on the latents, not on the pieces they arrive in. The joined pieces have as many frames as
    ``ane.models.tortoise.diffusion.spectrograms`` returns, and are equal to it when one window holds all.

    Args:
        voice: the voice's diffusion latent (1, C).
        rng: draws for each window what ``spectrograms`` draws, but only for frames that no earlier window had.
        progress: called with the steps done and all steps of the current window.

    Attributes:
        start, stop: of the next window.
    """

    def __init__(self, backend: Backend, voice: np.ndarray, diffusion: Diffusion, rng: np.random.Generator,
                 windows: Windows | None = None, progress: StepProgress = no_step_progress,
                 prediction: str = "epsilon"):
        self.backend, self.voice, self.diffusion, self.windows = backend, voice, diffusion, windows or Windows()
        self.progress, self.prediction = progress, prediction
        self.noise = OverlappingNoise(rng)
        self.latents: np.ndarray | None = None      # from the start of the previous window on
        self.first = 0                              # index of the first latent in ``latents``
        self.start, self.size = 0, self.windows.first
        self.overlapping: np.ndarray | None = None  # (100, frames): end of the previous window, to be faded out

    def feed(self, latents: np.ndarray) -> Iterator[np.ndarray]:
        """Append latents, and yield the mel of every window that is complete and not the last."""
        self.latents = latents if self.latents is None else np.concatenate((self.latents, latents))
        while self.received > self.stop:
            yield self.next_window()

    def finish(self) -> Iterator[np.ndarray]:
        """Yield the mel of all remaining latents."""
        if self.received:
            yield self.last_window()

    @property
    def received(self) -> int:
        return self.first + (0 if self.latents is None else len(self.latents))

    @property
    def stop(self) -> int:
        return self.start + self.size

    def next_window(self) -> np.ndarray:
        """The next window's mel up to where the window after it begins: (100, frames)."""
        start, stop = self.start, self.stop
        mel = self._cross_faded(start, stop)
        common = frame_count(stop) - frame_count(stop - self.windows.overlap)
        self.overlapping = mel[:, -common:]
        self.latents, self.first = self.latents[start - self.first:], start
        self.start, self.size = stop - self.windows.overlap, min(2 * self.size, self.windows.size)
        return mel[:, :-common]

    def last_window(self) -> np.ndarray:
        """The mel of all remaining latents: (100, frames)."""
        return self._cross_faded(max(self.first, min(self.start, self.received - self.size)), self.received)

    def _cross_faded(self, start: int, stop: int) -> np.ndarray:
        """The mel of latents ``start`` … ``stop``, cross-faded with the end of the previous window."""
        frames = frame_count(stop) - frame_count(start)
        self.noise.start_window(frame_count(start))
        latents = self.latents[start - self.first:stop - self.first]
        [[mel]] = spectrograms(self.backend, [latents], self.voice, self.diffusion, [self.noise], self.progress,
                               self.prediction, [frames])
        if self.overlapping is None:
            return mel
        mel = mel[:, frame_count(self.start) - frame_count(start):].copy()
        common = self.overlapping.shape[1]
        share = ((np.arange(common) + 0.5) / common).astype(np.float32)
        mel[:, :common] = (1 - share) * self.overlapping + share * mel[:, :common]
        return mel


class OverlappingNoise:
    """In place of a window's random generator; frames that the previous window had get the previous window's noise."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.start = 0
        self.previous: list[np.ndarray] = []        # draws of the previous window, from this window's start on
        self.draws: list[np.ndarray] = []

    def start_window(self, start: int) -> None:
        """Begin a window whose first frame is ``start``."""
        self.previous = [draw[..., start - self.start:] for draw in self.draws]
        self.start, self.draws = start, []

    def standard_normal(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        """As ``numpy.random.Generator.standard_normal``; the last axis of ``shape`` is the window's frames."""
        known = self.previous[len(self.draws)] if self.previous else np.empty((*shape[:-1], 0), dtype)
        new = self.rng.standard_normal((*shape[:-1], shape[-1] - known.shape[-1]), dtype=dtype)
        self.draws.append(np.concatenate((known, new), axis=-1))
        return self.draws[-1]
