"""Test that utterances denoised in one call get what they would get alone, and that windows of mels have no seams."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.denoising import Denoiser, bind_separately
from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise.diffusion import (
    MELS,
    Diffusion,
    WindowedDiffusion,
    Windows,
    frame_count,
    group_by_frames,
    sample,
    spectrograms,
)
from ane.models.tortoise.schedule import SAMPLERS
from tests.models.tortoise.test_vocoding import pieces_of
from tests.random_model import CONFIGS, random_model
from tests.refusals import assert_refused

WIDTH = CONFIGS["diffusion"].in_latent_channels
VOICE = np.random.default_rng(1).standard_normal((1, 2 * CONFIGS["diffusion"].model_channels), dtype=np.float32)
# largest error, as a share of the largest value. Sums of other shapes have another order
ROUNDING = {"fp32": 1e-4, "bf16": 0.1}

latent_counts = st.lists(st.integers(1, 30), min_size=1, max_size=4)  # number of latents of each utterance


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    return TorchBackend(random_model(), "cpu", "fp32", keep=True)


def random_latents(counts: Sequence[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.standard_normal((count, WIDTH), dtype=np.float32) for count in counts]


def generators(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in range(count)]


def assert_close(actual: np.ndarray, expected: np.ndarray, share: float) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=share * np.abs(expected).max())


@settings(deadline=None, max_examples=12)
@given(counts=latent_counts, timestep=st.integers(0, 3999), guided=st.booleans())
def test_a_prediction_in_a_batch_equals_that_of_the_utterance_alone(backend, counts, timestep, guided):
    latents, frames = [rows[None] for rows in random_latents(counts)], [frame_count(count) for count in counts]
    noisy = [
        rng.standard_normal((1, MELS, length), dtype=np.float32)
        for rng, length in zip(generators(len(counts)), frames, strict=True)
    ]
    together = backend.denoiser(latents, VOICE, frames)(noisy, timestep, guided)
    for rows, length, x, prediction in zip(latents, frames, noisy, together, strict=True):
        [alone] = backend.denoiser([rows], VOICE, [length])([x], timestep, guided)
        assert prediction.shape == alone.shape == (1 + guided, 2 * MELS, length)
        assert_close(prediction, alone, ROUNDING["fp32"])


@settings(deadline=None, max_examples=6)
@given(
    counts=latent_counts,
    limit=st.integers(0, 400),
    sampler=st.sampled_from(sorted(SAMPLERS)),
    guidance=st.sampled_from([None, 2.0]),
)
def test_a_spectrogram_does_not_depend_on_the_batch(backend, counts, limit, sampler, guidance):
    backend.max_batched_frames = limit
    diffusion, latents = Diffusion(3, sampler, guidance), random_latents(counts)
    together = spectrograms(backend, latents, VOICE, diffusion, generators(len(latents)))
    for rows, rng, mel in zip(latents, generators(len(latents)), together, strict=True):
        assert_close(mel, spectrograms(backend, [rows], VOICE, diffusion, [rng])[0], ROUNDING["fp32"])


def test_utterances_do_not_affect_each_other_in_bf16():
    backend, latents = TorchBackend(random_model(), "cpu", "bf16", keep=True), random_latents([30, 7])
    noisy = [np.zeros((1, MELS, frame_count(len(rows))), np.float32) for rows in latents]
    frames = [x.shape[-1] for x in noisy]
    denoisers = [
        backend.denoiser([rows[None] for rows in pair], VOICE, frames) for pair in (latents, [latents[0], -latents[1]])
    ]
    first, beside_another = (denoiser(noisy, 2000, True)[0] for denoiser in denoisers)
    np.testing.assert_array_equal(first, beside_another)
    [alone] = backend.denoiser([latents[0][None]], VOICE, frames[:1])(noisy[:1], 2000, True)
    assert_close(first, alone, ROUNDING["bf16"])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("broken", [0, 1])
def test_a_prediction_that_is_not_finite_is_refused_for_any_utterance(broken, value):
    class BrokenDenoiser(Denoiser):
        def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
            return [
                np.full((1, 2 * MELS, each.shape[-1]), value if index == broken else 0, np.float32)
                for index, each in enumerate(x)
            ]

    assert_refused(
        "the diffusion decoder returned NaN or infinite values",
        lambda: sample(BrokenDenoiser(), [5, 8], Diffusion(3, "ddim", None), generators(2)),
    )


@given(lengths=st.lists(st.integers(1, 1000), max_size=20), limit=st.integers(0, 3000))
def test_consecutive_utterances_are_grouped_up_to_the_limit_of_frames(lengths, limit):
    groups = group_by_frames(lengths, limit)
    assert [index for group in groups for index in group] == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or sum(lengths[index] for index in group) <= limit
    for group, following in pairwise(groups):
        assert sum(lengths[index] for index in group) + lengths[following.start] > limit


@pytest.mark.parametrize("limit", [0, 100, 10_000])
def test_progress_counts_the_steps_of_all_utterances(backend, limit):
    backend.max_batched_frames, reports = limit, []
    latents = random_latents([5, 20, 9])
    spectrograms(backend, latents, VOICE, Diffusion(4), generators(3), lambda *report: reports.append(report))
    assert reports == sorted(set(reports))
    assert reports[-1] == (12, 12)


def test_utterances_that_are_denoised_one_by_one_are_those_alone(backend):
    latents, frames = [rows[None] for rows in random_latents([3, 4])], [frame_count(3), frame_count(4)]
    separate = bind_separately(lambda rows, length: backend.denoiser([rows], VOICE, [length]), latents, frames)
    together = sample(separate, frames, Diffusion(2, "p", 2.0), generators(2))
    for rows, length, rng, mel in zip(latents, frames, generators(2), together, strict=True):
        alone = backend.denoiser([rows], VOICE, [length])
        np.testing.assert_array_equal(mel, sample(alone, [length], Diffusion(2, "p", 2.0), [rng])[0])


def test_no_utterances_give_no_spectrograms_and_no_latents_no_mel(backend):
    assert spectrograms(backend, [], VOICE, Diffusion(2), []) == []
    assert mels(FirstChannelBackend(), [], Windows()) == []


SILENT_VOICE = np.zeros((1, 4), np.float32)


class FirstChannelBackend:
    """A backend whose denoiser predicts, as the clean mel of a frame, the first number of its latent plus a share of
    the noise in ``x``: a frame then depends on its latent and its noise alone, not on the window."""

    max_batched_frames = 0

    def __init__(self, noise_share: float = 0.0):
        self.noise_share = noise_share
        self.latents: list[int] = []  # number of latents in each window
        self.first_values: list[float] = []

    def denoiser(self, utterances: list[np.ndarray], voice: np.ndarray, lengths: list[int]) -> "LinearDenoiser":
        [latents], [frames] = utterances, lengths
        self.latents.append(latents.shape[1])
        self.first_values.append(float(latents[0, 0, 0]))
        assert latents.dtype == np.float32
        codes = np.arange(frames) * latents.shape[1] // frames
        return LinearDenoiser(np.broadcast_to(latents[0, codes, 0], (1, MELS, frames)), self.noise_share)


class LinearDenoiser(Denoiser):
    def __init__(self, clean: np.ndarray, noise_share: float):
        self.clean, self.noise_share = clean, noise_share

    def __call__(self, x: list[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        mel = self.clean + np.float32(self.noise_share) * x[0]
        return [np.concatenate((mel, np.zeros_like(mel)), axis=1)]


def slope(latents: int) -> np.ndarray:
    """(N, 1): slowly rising values, so that a frame one latent further differs little."""
    return (np.arange(latents, dtype=np.float32)[:, None] - latents / 2) / 2000


def mels(*arguments) -> list[np.ndarray]:
    return list(arriving_mels(*arguments))


def arriving_mels(
    backend: FirstChannelBackend, pieces, windows: Windows | None, sampler: str = "ddim", steps: int = 2
) -> Iterator[np.ndarray]:
    diffused = WindowedDiffusion(
        backend, SILENT_VOICE, Diffusion(steps, sampler, None), np.random.default_rng(5), windows, prediction="x0"
    )
    for piece in pieces:
        yield from diffused.feed(piece)
    yield from diffused.finish()


def whole_mel(backend: FirstChannelBackend, latents: np.ndarray, sampler: str, steps: int) -> np.ndarray:
    """The mel (100, L) without windows."""
    [mel] = spectrograms(
        backend, [latents], SILENT_VOICE, Diffusion(steps, sampler, None), [np.random.default_rng(5)], prediction="x0"
    )
    return mel[0]


random_windows = st.tuples(st.integers(1, 10), st.integers(1, 20), st.integers(0, 40)).map(
    lambda drawn: Windows(drawn[0] + drawn[1], drawn[0] + drawn[1] + drawn[2], drawn[0])
)


@settings(max_examples=30, deadline=None)
@given(latents=st.integers(1, 200), sizes=st.lists(st.integers(1, 90), min_size=1, max_size=4), windows=random_windows)
def test_every_frame_is_returned_once_and_equals_that_of_the_whole(latents, sizes, windows):
    backend = FirstChannelBackend()
    pieces = mels(backend, pieces_of(slope(latents), sizes, 0), windows)
    whole = whole_mel(FirstChannelBackend(), slope(latents), "ddim", 2)
    assert all(piece.shape[1] for piece in pieces)
    joined = np.concatenate(pieces, axis=1)
    assert joined.shape == whole.shape == (MELS, frame_count(latents))
    np.testing.assert_allclose(joined, whole, atol=0.02)  # one more latent changes the mel by 0.007
    assert max(backend.latents) <= windows.size
    assert len(backend.latents) == 1 or min(backend.latents) >= min(windows.first, latents)  # no window is too short
    assert all(count <= 2 * previous for previous, count in pairwise(backend.latents))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("latents", [1, 7, 24])
def test_a_text_that_fits_one_window_has_the_mel_of_the_whole(sampler, latents):
    whole = whole_mel(FirstChannelBackend(0.3), slope(latents), sampler, 3)
    (piece,) = mels(FirstChannelBackend(0.3), pieces_of(slope(latents), [1], 0), Windows(24, 48, 8), sampler, 3)
    np.testing.assert_array_equal(piece, whole)


@settings(max_examples=20, deadline=None)
@given(latents=st.integers(1, 150), sizes=st.lists(st.integers(1, 90), min_size=1, max_size=4))
def test_the_mel_does_not_depend_on_the_pieces_that_latents_arrive_in(latents, sizes):
    windows = Windows(12, 40, 5)
    at_once, in_pieces = (
        np.concatenate(mels(FirstChannelBackend(0.3), pieces_of(slope(latents), each, 0), windows, "p"), axis=1)
        for each in ([latents], sizes)
    )
    np.testing.assert_array_equal(at_once, in_pieces)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_windows_share_the_noise_of_the_frames_where_they_overlap(sampler):
    """A cross-fade of mels from different noise would vary less than either."""
    level = np.zeros((400, 1), np.float32)
    joined = np.concatenate(mels(FirstChannelBackend(0.3), [level], Windows(40, 40, 20), sampler, 1), axis=1)
    overlaps = np.concatenate(
        [joined[:, frame_count(stop - 20) : frame_count(stop)] for stop in range(40, 400, 20)], axis=1
    )
    whole = whole_mel(FirstChannelBackend(0.3), level, sampler, 1)
    assert overlaps.std() == pytest.approx(whole.std(), rel=0.02)


class NumberingBackend(FirstChannelBackend):
    """A backend that predicts, for every frame of a window, a tenth of the number of windows before it."""

    def denoiser(self, latents: list[np.ndarray], voice: np.ndarray, frames: list[int]) -> LinearDenoiser:
        return super().denoiser([np.full_like(latents[0], len(self.latents) / 10)], voice, frames)


def test_overlapping_windows_are_cross_faded_in_a_straight_line():
    joined = np.concatenate(mels(NumberingBackend(), [np.zeros((60, 1), np.float32)], Windows(40, 40, 20)), axis=1)
    start, stop = frame_count(20), frame_count(40)
    first, second = joined[:, :start].mean(), joined[:, stop:].mean()
    share = (np.arange(stop - start) + 0.5) / (stop - start)
    assert second > first
    np.testing.assert_allclose(
        joined[:, start:stop] - first, np.broadcast_to(share * (second - first), (MELS, stop - start)), atol=1e-4
    )


def test_the_first_mel_needs_one_latent_more_than_its_window():
    requested = []

    def arriving() -> Iterator[np.ndarray]:
        for row in slope(100):
            requested.append(1)
            yield row[None]

    next(arriving_mels(FirstChannelBackend(), arriving(), Windows(16, 64, 4)))
    assert len(requested) == 17


def test_default_windows_grow_from_32_to_128_latents_and_overlap_by_12():
    backend, latents = FirstChannelBackend(), np.arange(400, dtype=np.float32)[:, None] / 1000
    list(arriving_mels(backend, [latents], None, steps=1))
    assert backend.latents == [32, 64, 128, 128, 128]
    starts = [round(1000 * value) for value in backend.first_values]
    assert starts == [0, 32 - 12, 84 - 12, 200 - 12, 400 - 128]  # the last window ends at the last latent


@pytest.mark.parametrize(("first", "size", "overlap"), [(8, 8, 8), (8, 4, 2), (8, 16, 0), (4, 16, 9)])
def test_windows_of_impossible_lengths_are_refused(first, size, overlap):
    assert_refused("overlap", Windows, first, size, overlap)
