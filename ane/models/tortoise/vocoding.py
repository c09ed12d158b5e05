"""Latents or a mel to sound, all at once or while they come: the stages hifigan and univnet, every frame rendered once.

HiFi-GAN hears latents at the rate of mel frames: stretched linearly twice, from 22050/1024 Hz to 22050/256 Hz to
24000/256 Hz, as upstream does (models/hifigan_decoder.py, inference). UnivNet hears a mel and a noise.

While more is to come, a frame can be rendered when the ``margin`` frames after it are there (``ane.models.tortoise.networks.receptive_field``).
Then the network is given the frames that are new and a margin on either side, never all so far, and the sound of the
new ones is that of the whole. At the beginning and at the end nothing is cut off, so what the networks pad there
themselves (zeros, mirrored noise, silence) is as it is in the whole.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ane.backends.base import Backend
from ane.models.tortoise.networks.hifigan import HifiganConfig
from ane.models.tortoise.networks.univnet import SILENT_FRAMES, UnivNetConfig
from ane.system.iterators import closing_source

SCALES = 1024 / 256, 24000 / 22050      # frames a latent at 22050 Hz; then what the output's 24000 Hz make of them


@dataclass(frozen=True)
class Pace:
    """How much is rendered at a time, in frames of 256 samples (10.7 ms).

    Attributes:
        first: new ones that the first sound has at least: it is to be heard soon.
        window: of a later call, the margins included: a call costs as much as all that it is given. 62 are those of
            the larger bucket that converted vocoders have. When much comes at once, a call may have more.
    """

    first: int = 12
    window: int = 62

    def new(self, done: int, ready: int, margin: int) -> int:
        """Frames to render now when ``done`` are rendered and ``ready`` can be: none while a call is not worth it."""
        few = max(self.window - 2 * margin, self.first) if done else self.first
        return ready - done if ready - done >= 2 * few else few if ready - done >= few else 0


def hifigan_sound(backend: Backend, conditioning: np.ndarray, latents: np.ndarray) -> np.ndarray:
    """Latents (N, D) and the voice's conditioning latent (1, D), float32 → (256·⌊4·N·24000/22050⌋,) float32."""
    return backend.run("hifigan", frames=interpolated(latents)[None], conditioning=conditioning)[0, 0]


def univnet_sound(backend: Backend, config: UnivNetConfig, rng: np.random.Generator, mel: np.ndarray) -> np.ndarray:
    """A log-mel (100, L) float32 → (256·L,) float32. Draws the noise of L + 10 frames from ``rng``."""
    noise = draw_noise(rng, config, mel.shape[1] + SILENT_FRAMES)
    return backend.run("univnet", mel=mel[None], noise=noise[None])[0, 0]


def hifigan_stream(backend: Backend, config: HifiganConfig, conditioning: np.ndarray, latents: Iterable[np.ndarray],
                   pace: Pace | None = None) -> Iterator[np.ndarray]:
    """``hifigan_sound`` of latents that come by and by, (n, D) each: pieces of its samples, (m,) float32.

    Closing it closes ``latents``, too.
    """
    frames = Interpolation()
    renderer = Renderer(config.margin, pace or Pace(), lambda columns: backend.run(
        "hifigan", frames=columns[None], conditioning=conditioning)[0, 0])
    with closing_source(latents):
        for piece in latents:
            yield from renderer.feed(frames.feed(piece))
        yield from renderer.finish(frames.finish())


def univnet_stream(backend: Backend, config: UnivNetConfig, rng: np.random.Generator, mels: Iterable[np.ndarray],
                   pace: Pace | None = None) -> Iterator[np.ndarray]:
    """``univnet_sound`` of a mel that comes by and by, (100, n) each: pieces of its samples, (m,) float32.

    Closing it closes ``mels``, too.
    """
    bands, ahead = config.n_mel_channels, draw_noise(rng, config, SILENT_FRAMES)

    def render(columns: np.ndarray) -> np.ndarray:      # what lies ahead is heard at the end alone
        noise = np.concatenate((columns[bands:], ahead), axis=1)
        return backend.run("univnet", mel=columns[None, :bands], noise=noise[None])[0, 0]

    renderer = Renderer(config.margin, pace or Pace(), render)
    with closing_source(mels):
        for mel in mels:
            noise = np.concatenate((ahead, draw_noise(rng, config, mel.shape[1])), axis=1)
            now, ahead = np.split(noise, [mel.shape[1]], axis=1)
            yield from renderer.feed(np.concatenate((mel, now)))
        yield from renderer.finish()


def draw_noise(rng: np.random.Generator, config: UnivNetConfig, frames: int) -> np.ndarray:
    """UnivNet's noise, a row a frame, so that all that is drawn bit by bit is what is drawn at once: (Z, frames)."""
    return rng.standard_normal((frames, config.noise_dim), dtype=np.float32).T


class Renderer:
    """A vocoder on columns (C, n) that come by and by, a frame each.

    Args:
        margin: frames at either side that the sound of a frame depends on.
        run: columns (C, w) → their sound (256·w,), as if nothing were before and after them.
    """

    def __init__(self, margin: int, pace: Pace, run: Callable[[np.ndarray], np.ndarray]):
        self.margin, self.pace, self.run = margin, pace, run
        self.columns: np.ndarray | None = None      # those that frames to come depend on
        self.first = self.done = 0                  # the frame that the first of them is, and frames rendered

    @property
    def given(self) -> int:
        return self.first + (0 if self.columns is None else self.columns.shape[1])

    def feed(self, columns: np.ndarray) -> Iterator[np.ndarray]:
        """The sound that can be rendered now and is worth a call: (m,) float32, or nothing."""
        self._take(columns)
        new = self.pace.new(self.done, self.given - self.margin, self.margin)
        if new:
            yield self._render(self.done + new)

    def finish(self, columns: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """The rest, with the last columns if they were kept for this: (m,) float32, or nothing."""
        if columns is not None:
            self._take(columns)
        if self.given > self.done:
            yield self._render(self.given)

    def _take(self, columns: np.ndarray) -> None:
        self.columns = columns if self.columns is None else np.concatenate((self.columns, columns), axis=1)

    def _render(self, stop: int) -> np.ndarray:
        window = self.columns[:, :stop + self.margin - self.first]
        sound = self.run(window)
        hop = len(sound) // window.shape[1]
        new = sound[(self.done - self.first) * hop:(stop - self.first) * hop]
        kept = max(stop - self.margin, self.first)
        self.columns, self.first, self.done = self.columns[:, kept - self.first:], kept, stop
        return new


def interpolated(latents: np.ndarray) -> np.ndarray:
    """Latents (N, D) at the rate of frames: (D, ⌊⌊4·N⌋·24000/22050⌋) float32."""
    return Interpolation().finish(latents)


class Interpolation:
    """``interpolated`` of latents that come by and by: the very same numbers, each as soon as it is settled."""

    def __init__(self):
        self._stretches = [Stretch(scale) for scale in SCALES]

    def feed(self, latents: np.ndarray) -> np.ndarray:
        """Latents (n, D) → the frames (D, m) that no later latent changes and that were not given before."""
        return self._through(latents, ended=False)

    def finish(self, latents: np.ndarray | None = None) -> np.ndarray:
        """The rest, with the last latents if they were kept for this: (D, m)."""
        return self._through(latents, ended=True)

    def _through(self, latents: np.ndarray | None, ended: bool) -> np.ndarray:
        columns = None if latents is None else latents.T
        for stretch in self._stretches:
            columns = stretch.feed(columns, ended)
        return columns


class Stretch:
    """torch's linear interpolation with a scale factor given, not aligned at corners, of columns that come by and by.

    Output i lies at (i + 0.5) / scale − 0.5 of the input, whatever the input's length; the last ones see the last
    column twice. A length that the scale does not change makes it a copy, as torch does.
    """

    def __init__(self, scale: float):
        self.scale = scale
        self.columns: np.ndarray | None = None      # those that outputs to come lie between
        self.first = self.done = 0                  # the column that the first of them is, and outputs given

    def feed(self, columns: np.ndarray | None, ended: bool) -> np.ndarray:
        """Columns (C, n) → outputs (C, m): those that lie between columns that are there, or when ``ended`` the rest.

        After n columns in all, ⌊n·scale⌋ are given.
        """
        if columns is not None:
            self.columns = columns if self.columns is None else np.concatenate((self.columns, columns), axis=1)
        if self.columns is None:
            return np.empty((0, 0), np.float32)
        given = self.first + self.columns.shape[1]
        count = int(given * self.scale)
        if count == given:          # while this may be the end, none is settled
            return self.columns if ended else self.columns[:, :0]
        source = self._sources(self.done, count)
        if not ended:
            source = source[np.floor(source) + 1 < given]
        before = np.minimum(source.astype(np.int64), given - 1)
        after = np.minimum(before + 1, given - 1)
        part = source - before.astype(np.float32)
        out = self.columns[:, before - self.first] * (1 - part) + self.columns[:, after - self.first] * part
        self.done += len(source)
        kept = min(int(self._sources(self.done, self.done + 1)[0]), given)
        self.columns, self.first = self.columns[:, kept - self.first:], kept
        return out

    def _sources(self, start: int, stop: int) -> np.ndarray:
        """Where in the input outputs ``start`` … ``stop`` lie: (stop − start,) float32.

        torch rounds 1/scale to float32, then the rest once (UpSample.h: compilers make one fused multiply-add of it).
        """
        places = np.arange(start, stop) + 0.5
        return np.maximum(np.float64(np.float32(1 / self.scale)) * places - 0.5, 0).astype(np.float32)
