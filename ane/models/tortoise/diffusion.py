"""Turn latents into a mel spectrogram by diffusion, as a whole or in windows.

The code follows upstream's utils/diffusion.py (OpenAI improved-diffusion) and api.py. The arithmetic on the noisy mel
is float32, as in upstream.

With windows, the sound of long speech can start early. The diffusion runs separately for each window of latents. Each
window overlaps the previous window. The overlapping frames get the same noise in both windows, so that the two mels
differ little there. The two mels are then cross-faded.

    first   ├────────┤
    next          ├──┼─────────────┤           up to twice as long as the previous window, at most ``size`` latents
    last               ├─────────────┼──┤      overlaps more than the others, so that it is not short
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ane.audio.mel import denormalise_mel
from ane.backends.base import Backend
from ane.backends.denoising import Denoiser, DenoisingStep
from ane.models.tortoise.schedule import SAMPLERS, Schedule
from ane.models.tortoise.settings import Diffusion
from ane.system.errors import UserError

MELS = 100

StepProgress = Callable[[int, int], None]  # takes the number of steps that are done and the number of all steps


def frame_count(latents: int) -> int:
    """Return how many mel frames at 24 kHz have the length of ``latents`` latents, rounded as in upstream.

    A latent is as long as four mel frames at 22.05 kHz.
    """
    return latents * 4 * 24000 // 22050


def denoising_steps(schedule: Schedule, diffusion: Diffusion, prediction: str = "epsilon") -> list[DenoisingStep]:
    """Compute the coefficients of all denoising steps, from the schedule's last index (most noise) down to 0.

    Args:
        schedule: Noise schedule.
        diffusion: Settings of the diffusion.
        prediction: Quantity that the network was trained to predict from the noisy mel x = √ᾱ·x0 + √(1−ᾱ)·ε. It is
            "epsilon" (ε), "x0", or "v" = √ᾱ·ε − √(1−ᾱ)·x0 (Salimans & Ho 2022).

    Raises:
        ValueError: ``prediction`` has another value.
    """
    return [
        DenoisingStep(
            timestep=int(schedule.timesteps[index]),
            **guidance_weights(schedule, index, diffusion),
            **x0_weights(schedule, index, prediction),
            **SAMPLERS[diffusion.sampler](schedule, index),
        )
        for index in reversed(range(len(schedule.betas)))
    ]


def guidance_weights(schedule: Schedule, index: int, diffusion: Diffusion) -> dict[str, float]:
    """Return the weights of the conditional and the unconditional prediction in one step.

    The guided prediction is (1 + c)·m_cond − c·m_uncond (Ho & Salimans 2022). In upstream and here, c = k·(1 − index /
    steps) rises from step to step. In a step without guidance, c = 0.
    """
    guided = diffusion.guidance_steps is None or index < diffusion.guidance_steps
    scale = (diffusion.guidance or 0.0) * (1 - index / len(schedule.betas)) * guided
    return {"conditional": 1 + scale, "unconditional": -scale}


def x0_weights(schedule: Schedule, index: int, prediction: str) -> dict[str, float]:
    """Return the weights of the noisy mel x and of the network's prediction in the estimate of the clean mel x0."""
    alpha_bar = schedule.alphas_cumprod[index]
    if prediction == "epsilon":
        return {
            "x0_from_x": schedule.sqrt_recip_alphas_cumprod[index],
            "x0_from_prediction": -schedule.sqrt_recipm1_alphas_cumprod[index],
        }
    if prediction == "v":
        return {"x0_from_x": np.sqrt(alpha_bar), "x0_from_prediction": -np.sqrt(1 - alpha_bar)}
    if prediction == "x0":
        return {"x0_from_x": 0.0, "x0_from_prediction": 1.0}
    raise ValueError(f"prediction must be epsilon, v or x0, got {prediction!r}")


def sample(
    denoiser: Denoiser,
    frames: Sequence[int],
    diffusion: Diffusion,
    rngs: Sequence[np.random.Generator],
    progress: StepProgress = lambda done, total: None,
    prediction: str = "epsilon",
) -> list[np.ndarray]:
    """Sample normalised mels (1, 100, L) float32 within ±1, with one call of the denoiser per step.

    Args:
        denoiser: Denoiser that is bound to the utterances.
        frames: Number of frames of each mel.
        diffusion: Settings of the diffusion.
        rngs: Random generator of each mel. It draws float32 normals (1, 100, L) for the initial noise x_T. For sampler
            ``p``, it draws as many again in every step, and the numbers of the last step are not used.
        progress: Function that is called after each step.
        prediction: Argument ``prediction`` for ``denoising_steps``.

    Raises:
        UserError: The denoiser returned NaN or an infinite number.
    """
    xs = [
        rng.standard_normal((1, MELS, length), dtype=np.float32) * np.float32(diffusion.temperature)
        for length, rng in zip(frames, rngs, strict=True)
    ]
    previous_x0s = [np.zeros_like(x) for x in xs]
    steps = denoising_steps(Schedule(diffusion.steps, diffusion.spacing), diffusion, prediction)
    for done, step in enumerate(steps, 1):
        noise = [
            rng.standard_normal(x.shape, dtype=np.float32)
            if diffusion.sampler == "p"
            else np.zeros(x.shape, np.float32)
            for x, rng in zip(xs, rngs, strict=True)
        ]
        outputs = denoiser(xs, step.timestep, step.guided)
        taken = [step.take(*arrays) for arrays in zip(xs, previous_x0s, outputs, noise, strict=True)]
        xs, previous_x0s = map(list, zip(*taken, strict=True))
        if not all(np.isfinite(array).all() for array in (*outputs, *xs)):
            raise UserError(
                "the diffusion decoder returned NaN or infinite values: the weights are damaged, or the "
                "precision is too low for them (use precision=fp32)"
            )
        progress(done, len(steps))
    return xs


def spectrograms(
    backend: Backend,
    latents: Sequence[np.ndarray],
    voice: np.ndarray,
    diffusion: Diffusion,
    rngs: Sequence[np.random.Generator],
    progress: StepProgress = lambda done, total: None,
    prediction: str = "epsilon",
    lengths: Sequence[int] = (),
) -> list[np.ndarray]:
    """Turn the latents of utterances into log-mels (1, 100, L) by diffusion, in batches that suit the backend.

    Args:
        backend: Backend that runs the denoiser.
        latents: Latents of each utterance, (N, D).
        voice: Diffusion latent of the voice, (1, C). All utterances have the same voice.
        diffusion: Settings of the diffusion.
        rngs: Random generator of each utterance (see ``sample``).
        progress: Function that is called with two numbers, summed over the utterances: how many steps are done, and how
            many there are.
        prediction: Argument ``prediction`` for ``denoising_steps``.
        lengths: Number of mel frames of each utterance. The default is ``frame_count``. Pass the numbers if the latents
            are a window of longer speech, because rounding may then lead to other numbers.
    """
    lengths = lengths or [frame_count(len(rows)) for rows in latents]
    total = diffusion.steps * len(lengths)
    mels: list[np.ndarray] = []
    for group in group_by_frames(lengths, backend.max_batched_frames):

        def report(done: int, _: int, before: int = diffusion.steps * len(mels), count: int = len(group)) -> None:
            progress(before + done * count, total)

        rows, random = [latents[index] for index in group], [rngs[index] for index in group]
        frames = [lengths[index] for index in group]
        denoiser = backend.denoiser([array[None] for array in rows], voice, frames)
        normalised = sample(denoiser, frames, diffusion, random, report, prediction)
        mels += [denormalise_mel(mel) for mel in normalised]
    return mels


def group_by_frames(lengths: Sequence[int], limit: int) -> list[range]:
    """Group consecutive utterances into batches of at most ``limit`` frames.

    An utterance with more than ``limit`` frames is alone in its batch.

    Returns the indices of each batch's utterances.
    """
    groups: list[range] = []
    total = 0
    for index, length in enumerate(lengths):
        if groups and total + length <= limit:
            groups[-1] = range(groups[-1].start, index + 1)
            total += length
        else:
            groups.append(range(index, index + 1))
            total = length
    return groups


@dataclass(frozen=True)
class Windows:
    """Lengths of the diffusion's windows, in latents (21.5 per second of speech).

    A window is at most twice as long as the previous one, so that playback does not stall. The defaults come from the
    measurements in benchmarks/results/windows-demo.json: windows change the mel less than another seed does.
    """

    first: int = 32  # length of the first window; speech that is no longer has only this window
    size: int = 128  # length of the longest window
    overlap: int = 12  # minimum overlap of consecutive windows

    def __post_init__(self) -> None:
        if not 1 <= self.overlap < self.first <= self.size:
            raise UserError(
                f"windows must satisfy 1 ≤ overlap < first ≤ size, got overlap {self.overlap}, first "
                f"{self.first}, size {self.size}",
                "windows",
            )


class WindowedDiffusion:
    """Turns latents that arrive in pieces into a log-mel by diffusion, window by window.

    ``feed`` takes latents (n, D) and yields consecutive frames (100, m). The frames do not depend on how you divide the
    latents among the calls. The number of frames is the same as in ``spectrograms``. If one window holds all latents,
    their values are the same, too.

    Args:
        backend: Backend that runs the denoiser.
        voice: Diffusion latent of the voice, (1, C).
        diffusion: Settings of the diffusion.
        rng: Random generator. It draws as in ``sample``, but only for frames that no earlier window had.
        windows: Lengths of the windows. ``None`` means the defaults of ``Windows``.
        progress: Function that is called with two numbers of the current window: how many steps are done, and how many
            it has.
        prediction: Argument ``prediction`` for ``denoising_steps``.
    """

    def __init__(
        self,
        backend: Backend,
        voice: np.ndarray,
        diffusion: Diffusion,
        rng: np.random.Generator,
        windows: Windows | None = None,
        progress: StepProgress = lambda done, total: None,
        prediction: str = "epsilon",
    ):
        self.backend, self.voice, self.diffusion, self.windows = backend, voice, diffusion, windows or Windows()
        self.progress, self.prediction = progress, prediction
        self.noise: Any = OverlappingNoise(rng)
        self.latents: Any = None  # latents since the start of the previous window, (n, D), or None
        self.first = 0  # index of the first latent in ``latents``
        self.start, self.size = 0, self.windows.first  # beginning and length of the next window
        self.overlapping: np.ndarray | None = None  # (100, frames): end of the previous window, to be faded out

    @property
    def needed(self) -> int:
        """Number of latents, counted from the first one, with which ``feed`` can yield the next mel frames."""
        return self.start + self.size + 1

    def feed(self, latents: np.ndarray) -> Iterator[np.ndarray]:
        """Append latents, and yield the mel frames that no later latent can change.

        The method computes a window once latents beyond the window's end arrive. The window's frames are final up to
        the start of the next window. The other frames are cross-faded with the next window.
        """
        self.latents = latents if self.latents is None else np.concatenate((self.latents, latents))
        while self.first + len(self.latents) >= self.needed:
            stop = self.start + self.size
            mel = self._cross_faded(self.start, stop)
            common = frame_count(stop) - frame_count(stop - self.windows.overlap)
            self.overlapping = mel[:, -common:]
            self.latents, self.first = self.latents[self.start - self.first :], self.start
            self.start, self.size = stop - self.windows.overlap, min(2 * self.size, self.windows.size)
            yield mel[:, :-common]

    def finish(self) -> Iterator[np.ndarray]:
        """Yield the remaining mel frames. Call this after the last latents."""
        received = self.first + (0 if self.latents is None else len(self.latents))
        if received:
            yield self._cross_faded(max(self.first, min(self.start, received - self.size)), received)

    def _cross_faded(self, start: int, stop: int) -> np.ndarray:
        """Turn latents ``start`` to ``stop`` into a mel, and cross-fade the mel with the end of the previous window."""
        frames = frame_count(stop) - frame_count(start)
        self.noise.start_window(frame_count(start))
        latents = self.latents[start - self.first : stop - self.first]
        [[mel]] = spectrograms(
            self.backend, [latents], self.voice, self.diffusion, [self.noise], self.progress, self.prediction, [frames]
        )
        if self.overlapping is None:
            return mel
        mel = mel[:, frame_count(self.start) - frame_count(start) :].copy()
        common = self.overlapping.shape[1]
        share = ((np.arange(common) + 0.5) / common).astype(np.float32)
        mel[:, :common] = (1 - share) * self.overlapping + share * mel[:, :common]
        return mel


class OverlappingNoise:
    """Draws the noise of windows like a random generator.

    Where two windows overlap, it returns the same noise twice.
    """

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.start = 0
        self.previous: list[np.ndarray] = []  # draws of the previous window for the frames that this window has, too
        self.draws: list[np.ndarray] = []

    def start_window(self, start: int) -> None:
        """Begin a window whose first mel frame is ``start``."""
        self.previous = [draw[..., start - self.start :] for draw in self.draws]
        self.start, self.draws = start, []

    def standard_normal(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        """Draw like ``numpy.random.Generator.standard_normal``. The last axis of ``shape`` runs over mel frames."""
        known = self.previous[len(self.draws)] if self.previous else np.empty((*shape[:-1], 0), dtype)
        new = self.rng.standard_normal((*shape[:-1], shape[-1] - known.shape[-1]), dtype=dtype)
        self.draws.append(np.concatenate((known, new), axis=-1))
        return self.draws[-1]
