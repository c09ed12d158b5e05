"""Turn latents or a mel into sound with one of Tortoise's vocoders, as a whole or as a stream.

HiFi-GAN takes latents that are interpolated to the rate of mel frames. They are interpolated linearly twice, from
22050/1024 Hz to 22050/256 Hz and then to 24000/256 Hz, as in upstream (models/hifigan_decoder.py, inference). UnivNet
takes a mel and noise, and BigVGAN takes a mel. A source filter, trained for its model, takes latents or a mel.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ane.backends.base import Backend
from ane.backends.windows import StreamingWindow, Windowed
from ane.models.tortoise.diffusion import WindowedDiffusion
from ane.models.tortoise.networks.hifigan import HifiganConfig
from ane.models.tortoise.networks.univnet import SILENT_FRAMES, UnivNetConfig
from ane.models.vocoders.bigvgan import BigVGANConfig
from ane.models.vocoders.convnext import SourceFilterConfig
from ane.models.vocoders.source_filter import PARAMETERS, SourceFilter
from ane.system.timeline import Timeline

LARGEST = 254  # largest number of frames in one call of a source filter's network
SCALES = 1024 / 256, 24000 / 22050  # frames at 22050 Hz per latent, and frames at 24000 Hz per frame at 22050 Hz


class HifiganSound:
    """Makes sound with HiFi-GAN from latents (n, D) that arrive in pieces.

    N latents become 256·⌊4·N·24000/22050⌋ float32 samples. The samples do not depend on how you divide the latents
    among the calls of ``feed``.

    Args:
        backend: Backend that runs the network.
        config: Config of the network.
        conditioning: The voice's conditioning latent, (1, D) float32.
        window: Argument ``window`` for ``Windowed``.
    """

    def __init__(
        self, backend: Backend, config: HifiganConfig, conditioning: np.ndarray, window: StreamingWindow | None = None
    ):
        self.frames = LatentInterpolation()
        self.vocoder = Windowed(
            backend,
            "hifigan",
            config.margin,
            lambda columns: backend.run("hifigan", frames=columns[None], conditioning=conditioning)[0, 0],
            window,
        )

    @property
    def needed(self) -> int:
        """Number of latents, counted from the first one, with which ``feed`` can yield the next sound."""
        return self.frames.needed(self.vocoder.needed)

    def feed(self, latents: np.ndarray) -> Iterator[np.ndarray]:
        return self.vocoder.feed(self.frames.feed(latents))

    def finish(self, latents: np.ndarray | None = None) -> Iterator[np.ndarray]:
        return self.vocoder.finish(self.frames.finish(latents))


class UnivnetSound:
    """Makes sound with UnivNet from a log-mel (100, n) that arrives in pieces: 256 float32 samples per frame.

    Args:
        backend: Backend that runs the network.
        config: Config of the network.
        rng: Random generator that draws the noise. The noise has 10 frames more than the mel.
        window: Argument ``window`` for ``Windowed``.
    """

    def __init__(
        self, backend: Backend, config: UnivNetConfig, rng: np.random.Generator, window: StreamingWindow | None = None
    ):
        self.config, self.rng = config, rng
        self.ahead = draw_noise(rng, config, SILENT_FRAMES)

        def run(columns: np.ndarray) -> np.ndarray:
            """Make sound from columns, which have the mel and its noise.

            After the noise comes ``self.ahead``, noise for frames that have not arrived. It changes the sound only in
            the last call.
            """
            mel, noise = np.split(columns, [config.n_mel_channels])
            noise = np.concatenate((noise, self.ahead), axis=1)
            return backend.run("univnet", mel=mel[None], noise=noise[None])[0, 0]

        self.vocoder = Windowed(backend, "univnet", config.margin, run, window)

    def feed(self, mel: np.ndarray) -> Iterator[np.ndarray]:
        noise = np.concatenate((self.ahead, draw_noise(self.rng, self.config, mel.shape[1])), axis=1)
        now, self.ahead = np.split(noise, [mel.shape[1]], axis=1)
        return self.vocoder.feed(np.concatenate((mel, now)))

    def finish(self, mel: np.ndarray | None = None) -> Iterator[np.ndarray]:
        if mel is not None:
            yield from self.feed(mel)
        yield from self.vocoder.finish()


def bigvgan_sound(backend: Backend, config: BigVGANConfig, window: StreamingWindow | None = None) -> Windowed:
    """Create a BigVGAN for a log-mel (100, n) that arrives in pieces.

    The vocoder makes 256 float32 samples per frame.
    """
    return Windowed(
        backend, "bigvgan", config.margin, lambda columns: backend.run("bigvgan", mel=columns[None])[0, 0], window
    )


class SourceFilterSound:
    """Makes sound with a source filter from input that arrives in pieces: 256 float32 samples per mel frame.

    Args:
        backend: Backend that runs the network.
        stage: "source_filter", whose input is latents (n, D), or "mel_source_filter", whose input is a mel (100, n).
        config: Config of the network.
        rng: Random generator that draws the noise.
        window: Argument ``window`` for ``Windowed``.
    """

    def __init__(
        self,
        backend: Backend,
        stage: str,
        config: SourceFilterConfig,
        rng: np.random.Generator,
        window: StreamingWindow | None = None,
    ):
        self.frames = LatentInterpolation() if stage == "source_filter" else None
        self.sound = SourceFilter(rng)
        if window:
            window = replace(window, largest=LARGEST, growth=2)  # the network is small and its margins are wide
        self.parameters = Windowed(
            backend,
            stage,
            config.margin,
            lambda columns: backend.run(
                stage, frames=columns.T[None], mask=np.ones((1, columns.shape[1]), np.float32)
            ).ravel(),
            window,
        )

    @property
    def needed(self) -> int:
        """Number of latents or mel frames, counted from the first one, with which ``feed`` can yield the next sound."""
        return self.frames.needed(self.parameters.needed) if self.frames else self.parameters.needed

    def feed(self, columns: np.ndarray) -> Iterator[np.ndarray]:
        return self._filtered(self.parameters.feed(self.frames.feed(columns) if self.frames else columns))

    def finish(self, columns: np.ndarray | None = None) -> Iterator[np.ndarray]:
        yield from self._filtered(self.parameters.finish(self.frames.finish(columns) if self.frames else columns))
        yield self.sound.finish()

    def _filtered(self, parameters: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        return (self.sound.feed(rows.reshape(-1, PARAMETERS)) for rows in parameters)


class DiffusedSound:
    """Makes sound from latents that arrive in pieces. It runs the diffusion in windows, then a vocoder on the mels."""

    def __init__(self, windows: WindowedDiffusion, vocoder: Any, timeline: Timeline):
        self.windows, self.vocoder, self.timeline = windows, vocoder, timeline

    @property
    def needed(self) -> int:
        """Number of latents, counted from the first one, with which ``feed`` runs the next window of the diffusion."""
        return self.windows.needed

    def feed(self, latents: np.ndarray) -> Iterator[np.ndarray]:
        return self._vocoded(self.windows.feed(latents))

    def finish(self, latents: np.ndarray | None = None) -> Iterator[np.ndarray]:
        if latents is not None:
            yield from self.feed(latents)
        yield from self._vocoded(self.windows.finish())
        yield from self.vocoder.finish()

    def _vocoded(self, mels: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for mel in self.timeline.record_each("diffuse", mels):
            yield from self.vocoder.feed(mel)


def vocoder_of(networks: Collection[str], diffused: bool) -> str:
    """Return the name of a model's vocoder: the network that makes sound from a mel, or from latents.

    A vocoder that was trained for the model is preferred to an official one.

    Args:
        networks: Names of the model's networks.
        diffused: Whether the settings use diffusion, so that the vocoder gets a mel.
    """
    choices = ("mel_source_filter", "bigvgan", "univnet") if diffused else ("source_filter", "hifigan")
    return next((name for name in choices if name in networks), choices[-1])


def make_vocoder(
    backend: Backend,
    stage: str,
    config: Any,
    conditioning: np.ndarray,
    rng: np.random.Generator,
    window: StreamingWindow | None = None,
) -> Any:
    """Create the object that makes one chunk's sound with the vocoder ``stage``.

    You pass its methods ``feed`` and ``finish`` a mel (100, n), or latents (n, D). ``finish`` takes the last columns of
    the chunk, and yields all remaining sound. The latents include the latent of the stop code, as in upstream's
    api_fast.py. ``HifiganSound`` and ``UnivnetSound`` explain the arguments.
    """
    if stage == "hifigan":
        return HifiganSound(backend, config, conditioning, window)
    if stage == "bigvgan":
        return bigvgan_sound(backend, config, window)
    if stage == "univnet":
        return UnivnetSound(backend, config, rng, window)
    return SourceFilterSound(backend, stage, config, rng, window)


def hifigan_sound(backend: Backend, conditioning: np.ndarray, latents: np.ndarray) -> np.ndarray:
    """Turn latents (N, D) into sound with one call of HiFi-GAN."""
    return backend.run("hifigan", frames=interpolate_latents(latents)[None], conditioning=conditioning)[0, 0]


def draw_noise(rng: np.random.Generator, config: UnivNetConfig, frames: int) -> np.ndarray:
    """Draw UnivNet's noise, (Z, frames), frame by frame. Several calls draw the same numbers as one large call."""
    return rng.standard_normal((frames, config.noise_dim), dtype=np.float32).T


def interpolate_latents(latents: np.ndarray) -> np.ndarray:
    """Interpolate latents (N, D) to the rate of frames: (D, ⌊⌊4·N⌋·24000/22050⌋) float32."""
    return LatentInterpolation().finish(latents)


class LatentInterpolation:
    """Interpolates latents that arrive in pieces. The frames have the same values as with ``interpolate_latents``."""

    def __init__(self) -> None:
        self._stages = [LinearInterpolation(scale) for scale in SCALES]

    def feed(self, latents: np.ndarray | None, ended: bool = False) -> np.ndarray:
        """Append latents (n, D), and return the new frames (D, m) that no later latent can change.

        If no more latents follow (``ended``), this returns all remaining frames.
        """
        columns = None if latents is None else latents.T
        for stage in self._stages:
            columns = stage.feed(columns, ended)
        return columns

    def finish(self, latents: np.ndarray | None = None) -> np.ndarray:
        """Append the last latents (n, D), if given, and return the remaining frames (D, m)."""
        return self.feed(latents, ended=True)

    def needed(self, frames: int) -> int:
        """Return the least number of latents with which ``feed`` can have returned ``frames`` frames."""
        for stage in reversed(self._stages):
            frames = stage.needed(frames)
        return frames


class LinearInterpolation:
    """Interpolates columns that arrive incrementally, like torch's linear interpolation with align_corners=False.

    Output i lies at position (i + 0.5) / scale − 0.5 of the input, whatever the input's length. Beyond the last column,
    the last column is repeated. If the scale does not change the number of columns, they are copied, as in torch.
    """

    def __init__(self, scale: float):
        self.scale = scale
        self.columns: np.ndarray | None = None  # received columns on which later outputs depend
        self.first = self.done = 0  # index of the first column in ``columns``, and number of outputs returned

    def feed(self, columns: np.ndarray | None, ended: bool) -> np.ndarray:
        """Append columns (C, n), and return the new outputs (C, m) that need no later columns.

        If no more columns follow (``ended``), this returns all remaining outputs: ⌊n·scale⌋ for n columns in total.
        """
        if columns is not None:
            self.columns = columns if self.columns is None else np.concatenate((self.columns, columns), axis=1)
        if self.columns is None:
            return np.empty((0, 0), np.float32)
        received = self.first + self.columns.shape[1]
        count = int(received * self.scale)
        if count == received:  # as many outputs as columns: torch's interpolation then copies the columns
            return self.columns if ended else self.columns[:, :0]
        source = self._sources(np.arange(self.done, count))
        if not ended:
            source = source[np.floor(source) + 1 < received]
        before = np.minimum(source.astype(np.int64), received - 1)
        after = np.minimum(before + 1, received - 1)
        weight = source - before.astype(np.float32)
        out = self.columns[:, before - self.first] * (1 - weight) + self.columns[:, after - self.first] * weight
        self.done += len(source)
        needed = min(int(self._sources(self.done)), received)
        self.columns, self.first = self.columns[:, needed - self.first :], needed
        return out

    def needed(self, outputs: int) -> int:
        """Return the least number of columns with which ``feed`` can have returned ``outputs`` outputs."""
        return int(self._sources(outputs - 1)) + 2

    def _sources(self, outputs: np.ndarray | int) -> np.ndarray:
        """Return the positions in the input at which outputs lie, in float32.

        The rounding is the same as in torch. torch rounds 1/scale to float32. Then torch rounds the position only once,
        because the compiler turns the formula in torch's UpSample.h into a fused multiply-add.
        """
        return np.maximum(np.float64(np.float32(1 / self.scale)) * (outputs + 0.5) - 0.5, 0).astype(np.float32)
