"""The mel of windows: the whole's where one holds all, and otherwise as long, without seams, in bounded windows."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.models.tortoise.diffusion import MELS, SAMPLERS, Diffusion, frame_count, spectrogram
from ane.models.tortoise.windows import Windows, windowed_mels
from ane.system.errors import UserError

VOICE = np.zeros((1, 4), np.float32)


class Level:
    """A backend whose denoiser says that a frame's clean mel is the first number of the latent it belongs to, and the
    noise it was given in ``x``: what a window makes of a frame then depends on the frame and its noise alone."""

    def __init__(self, heard_noise: float = 0.0):
        self.heard_noise = heard_noise
        self.latents: list[int] = []        # of each window

    def denoiser(self, latents: np.ndarray, voice: np.ndarray, frames: int):
        self.latents.append(latents.shape[1])
        assert latents.dtype == np.float32
        codes = np.arange(frames) * latents.shape[1] // frames
        wanted = np.broadcast_to(latents[0, codes, 0], (1, MELS, frames))

        def said(x: np.ndarray, timestep: int, guided: bool) -> np.ndarray:
            mel = wanted + np.float32(self.heard_noise) * x
            return np.concatenate((mel, np.zeros_like(mel)), axis=1)

        return said


def slope(latents: int) -> np.ndarray:
    """(N, 1): levels that rise slowly, so that a frame which is of its neighbour's latent differs little."""
    return (np.arange(latents, dtype=np.float32)[:, None] - latents / 2) / 2000


def pieces_of(latents: np.ndarray, sizes: list[int]) -> Iterator[np.ndarray]:
    start, turn = 0, 0
    while start < len(latents):
        yield latents[start:start + sizes[turn % len(sizes)]]
        start, turn = start + sizes[turn % len(sizes)], turn + 1


def mels(backend: Level, pieces, windows: Windows, sampler: str = "ddim", steps: int = 2) -> list[np.ndarray]:
    return list(windowed_mels(backend, pieces, VOICE, Diffusion(steps, sampler, None), np.random.default_rng(5),
                              windows, prediction="x0"))


lengths = st.tuples(st.integers(1, 10), st.integers(1, 20), st.integers(0, 40)).map(
    lambda drawn: Windows(drawn[0] + drawn[1], drawn[0] + drawn[1] + drawn[2], drawn[0]))


@settings(max_examples=60, deadline=None)
@given(latents=st.integers(1, 200), sizes=st.lists(st.integers(1, 90), min_size=1, max_size=4), windows=lengths)
def test_every_frame_is_given_once_and_is_the_wholes(latents, sizes, windows):
    backend = Level()
    pieces = mels(backend, pieces_of(slope(latents), sizes), windows)
    whole = spectrogram(Level(), slope(latents), VOICE, Diffusion(2, "ddim", None), np.random.default_rng(5),
                        prediction="x0")[0]
    assert all(piece.shape[1] for piece in pieces)
    joined = np.concatenate(pieces, axis=1)
    assert joined.shape == whole.shape == (MELS, frame_count(latents))
    np.testing.assert_allclose(joined, whole, atol=0.02)        # a latent's step is 0.007
    assert max(backend.latents) <= windows.size
    assert len(backend.latents) == 1 or min(backend.latents) >= min(windows.first, latents)     # none is short
    assert all(now <= 2 * before for before, now in zip(backend.latents, backend.latents[1:], strict=False))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("latents", [1, 7, 24])
def test_a_text_that_fits_one_window_is_what_it_is_without_windows(sampler, latents):
    whole = spectrogram(Level(0.3), slope(latents), VOICE, Diffusion(3, sampler, None), np.random.default_rng(5),
                        prediction="x0")[0]
    piece, = mels(Level(0.3), pieces_of(slope(latents), [1]), Windows(24, 48, 8), sampler, 3)
    np.testing.assert_array_equal(piece, whole)


@settings(max_examples=20, deadline=None)
@given(latents=st.integers(1, 150), sizes=st.lists(st.integers(1, 90), min_size=1, max_size=4))
def test_the_mel_does_not_depend_on_the_pieces_that_latents_come_in(latents, sizes):
    windows = Windows(12, 40, 5)
    at_once, by_and_by = (np.concatenate(mels(Level(0.3), pieces_of(slope(latents), some), windows, "p"), axis=1)
                          for some in ([latents], sizes))
    np.testing.assert_array_equal(at_once, by_and_by)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_neighbours_are_given_the_same_noise_where_they_overlap(sampler):
    """Were it not so, two mels of different noise would be mixed there, and a mixture varies less than either."""
    level = np.zeros((400, 1), np.float32)
    joined = np.concatenate(mels(Level(0.3), [level], Windows(40, 40, 20), sampler, 1), axis=1)
    overlaps = np.concatenate([joined[:, frame_count(stop - 20):frame_count(stop)]
                               for stop in range(40, 400, 20)], axis=1)
    whole = spectrogram(Level(0.3), level, VOICE, Diffusion(1, sampler, None), np.random.default_rng(5),
                        prediction="x0")
    assert overlaps.std() == pytest.approx(whole.std(), rel=0.02)


def test_the_first_mel_comes_when_its_window_is_full_and_one_more_latent_is_there():
    asked = []

    def coming() -> Iterator[np.ndarray]:
        for row in slope(100):
            asked.append(1)
            yield row[None]

    next(windowed_mels(Level(), coming(), VOICE, Diffusion(2, "ddim", None), np.random.default_rng(5),
                       Windows(16, 64, 4), prediction="x0"))
    assert len(asked) == 17


def test_closing_it_midway_stops_the_work_and_what_it_draws_from():
    closed, backend = [], Level()

    def coming() -> Iterator[np.ndarray]:
        try:
            yield from pieces_of(slope(200), [20])
        finally:
            closed.append(True)

    stream = windowed_mels(backend, coming(), VOICE, Diffusion(2, "ddim", None), np.random.default_rng(5),
                           Windows(16, 64, 4), prediction="x0")
    next(stream)
    stream.close()
    assert closed == [True]
    assert len(backend.latents) == 1


def test_of_no_latents_there_is_no_mel():
    assert mels(Level(), [], Windows()) == []


@pytest.mark.parametrize(("first", "size", "overlap"), [(8, 8, 8), (8, 4, 2), (8, 16, 0), (4, 16, 9)])
def test_windows_that_cannot_overlap_are_refused(first, size, overlap):
    with pytest.raises(UserError, match="overlap"):
        Windows(first, size, overlap)
