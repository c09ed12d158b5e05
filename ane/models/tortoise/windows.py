"""Latents to a mel in windows: speech of any length begins after its first window, and no window grows with it.

Each window of latents is diffused on its own. It overlaps the one before it, and there the two mels fade into each
other. Where windows overlap they are given the same noise, so that there they are two drafts of one mel, not two mels.

    first   ├────────┤
    then          ├──┼─────────────┤           the next is twice as long, until it is ``size``
    last               ├─────────────┼──┤      the last reaches back until it is as long, so that none is short
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ane.audio.mel import denormalise_mel
from ane.backends.base import Backend
from ane.models.tortoise.diffusion import Diffusion, Progress, frames_of, sample, silent
from ane.system.errors import UserError
from ane.system.iterators import closing_source


@dataclass(frozen=True)
class Windows:
    """Lengths in latents, 21.5 of them to a second.

    Attributes:
        first: of the first window, after which there is sound. A text that has no more is diffused in one go.
        size: of the longest; each is at most twice as long as the one before it, so that sound lasts meanwhile.
        overlap: what two neighbours have in common, at least.

    The defaults are measured on the embedded bundle, on three texts of 285 to 313 latents (benchmarks.windows): they
    part from the mel of the whole by 1.3 dB (dpm++2m, 12 steps) and 1.2 dB (p, 30 steps), less than the whole does on
    other noise (2.5 and 1.4 dB); 24, 96 and 8 by 2.1 and 2.0 dB, 16, 64 and 4 by 2.3 and 2.1 dB, and an overlap of 4 in
    place of 12 by 1.4 and 1.3 dB. Of 126 words a recogniser got 16 and 12 wrong, of the whole 16 and 8.
    Of single sentences: benchmarks/results/windows-demo.json.
    """

    first: int = 32
    size: int = 128
    overlap: int = 12

    def __post_init__(self):
        if not 1 <= self.overlap < self.first <= self.size:
            raise UserError(f"windows of {self.first} latents at first and {self.size} at most cannot overlap by "
                            f"{self.overlap}: overlap < first ≤ size")


def windowed_mels(backend: Backend, latents: Iterable[np.ndarray], voice: np.ndarray, diffusion: Diffusion,
                  rng: np.random.Generator, windows: Windows | None = None, progress: Progress = silent,
                  prediction: str = "epsilon") -> Iterator[np.ndarray]:
    """Latents (n, D) that come by and by, and the voice's diffusion latent (1, C) → log-mel (100, m), piece by piece.

    What is given depends on the latents alone, not on the pieces they come in. Joined, the pieces have as many frames
    as ``ane.models.tortoise.diffusion.spectrogram`` gives, and are the same where one window holds all. Closing it closes
    ``latents``, too.

    Args:
        rng: for each window what ``sample`` draws, of the frames alone that no window before it had.
        progress: called with the steps done and the steps of a window.
    """
    mel = Windowed(backend, voice, diffusion, rng, windows or Windows(), progress, prediction)
    with closing_source(latents):
        for piece in latents:
            mel.take(piece)
            while mel.given > mel.stop:         # one more at least: this is not the last
                yield denormalise_mel(mel.window())
        if mel.given:
            yield denormalise_mel(mel.last())


class Windowed:
    """Windows over latents that come by and by; ``start`` and ``stop`` are those of the next one."""

    def __init__(self, backend: Backend, voice: np.ndarray, diffusion: Diffusion, rng: np.random.Generator,
                 windows: Windows, progress: Progress, prediction: str):
        self.backend, self.voice, self.diffusion, self.windows = backend, voice, diffusion, windows
        self.progress, self.prediction = progress, prediction
        self.noise = Noise(rng)
        self.latents: np.ndarray | None = None      # from the start of the window before
        self.first = 0                              # the latent that the first of them is
        self.start, self.size = 0, windows.first
        self.held: np.ndarray | None = None         # (100, frames) of the window before, to fade out

    @property
    def given(self) -> int:
        return self.first + (0 if self.latents is None else len(self.latents))

    @property
    def stop(self) -> int:
        return self.start + self.size

    def take(self, latents: np.ndarray) -> None:
        self.latents = latents if self.latents is None else np.concatenate((self.latents, latents))

    def window(self) -> np.ndarray:
        """The next window's mel up to where the one after it begins: (100, frames), normalised."""
        start, stop = self.start, self.stop
        mel = self._faded(start, stop)
        common = frames_of(stop) - frames_of(stop - self.windows.overlap)
        self.held = mel[:, -common:]
        self.latents, self.first = self.latents[start - self.first:], start
        self.start, self.size = stop - self.windows.overlap, min(2 * self.size, self.windows.size)
        return mel[:, :-common]

    def last(self) -> np.ndarray:
        """The mel of all that is left: (100, frames), normalised."""
        return self._faded(max(self.first, min(self.start, self.given - self.size)), self.given)

    def _faded(self, start: int, stop: int) -> np.ndarray:
        """The mel of latents ``start`` … ``stop`` from what is held on, which fades into it."""
        frames = frames_of(stop) - frames_of(start)
        self.noise.over(frames_of(start), frames_of(stop))
        denoiser = self.backend.denoiser(self.latents[None, start - self.first:stop - self.first], self.voice, frames)
        mel = sample(denoiser, frames, self.diffusion, self.noise, self.progress, self.prediction)[0]
        if self.held is None:
            return mel
        mel = mel[:, frames_of(self.start) - frames_of(start):].copy()
        common = self.held.shape[1]
        share = ((np.arange(common) + 0.5) / common).astype(np.float32)
        mel[:, :common] = (1 - share) * self.held + share * mel[:, :common]
        return mel


class Noise:
    """Stands in for a window's random generator: where the window before was, each draw is that window's."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.start = self.stop = 0
        self.before: list[np.ndarray] = []      # draws of the window before, from this one's start on
        self.draws: list[np.ndarray] = []

    def over(self, start: int, stop: int) -> None:
        """Begin a window of the frames ``start`` … ``stop``."""
        self.before = [draw[..., start - self.start:] for draw in self.draws]
        self.start, self.stop, self.draws = start, stop, []

    def standard_normal(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        """As of a generator; the last axis of ``shape`` is the window's frames."""
        known = self.before[len(self.draws)] if self.before else np.empty((*shape[:-1], 0), dtype)
        new = self.rng.standard_normal((*shape[:-1], shape[-1] - known.shape[-1]), dtype=dtype)
        self.draws.append(np.concatenate((known, new), axis=-1))
        return self.draws[-1]
