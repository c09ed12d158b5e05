"""Sound while latents or mels come: joined, its pieces are the whole's samples, whatever the pieces that came."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ane.backends.base import check_inputs
from ane.bundles.family import Config
from ane.models.tortoise.networks.hifigan import Hifigan, HifiganConfig
from ane.models.tortoise.networks.univnet import UnivNet, UnivNetConfig
from ane.models.tortoise.packaged.vocoders import HifiganVocoder, UnivnetVocoder
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.stages import STAGES
from ane.models.tortoise.vocoding import (
    SCALES,
    LatentInterpolation,
    VocodingWindow,
    hifigan_sound,
    hifigan_stream,
    interpolate_latents,
    univnet_sound,
    univnet_stream,
)
from converters.tortoise.hifigan import hifigan
from converters.tortoise.univnet import univnet
from tests.backends.packaged.packages import FP32, functions, saved
from tests.random_model import draw

HIFIGAN = HifiganConfig(in_channels=12, upsample_initial_channel=32, cond_channels=8)
UNIVNET = UnivNetConfig(channel_size=4, noise_dim=6, kpnet_hidden_channels=8)
VOICE = np.random.default_rng(1).standard_normal((1, 8), dtype=np.float32)
NETWORKS = {"hifigan": (Hifigan, HIFIGAN), "univnet": (UnivNet, UNIVNET)}
both = pytest.mark.parametrize("vocoder", NETWORKS)


class Tiny:
    """A backend of the two vocoders that counts the frames of its calls."""

    def __init__(self, run: dict[str, Callable[..., np.ndarray]]):
        self.calls, self.frames = run, []

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        check_inputs(stage, STAGES[stage], inputs)
        self.frames.append(next(iter(inputs.values())).shape[-1])
        return self.calls[stage](**inputs)


def drawn(cls: type[nn.Module], config: Config) -> nn.Module:
    module, generator = cls(config), torch.Generator().manual_seed(5)
    for key, parameter in module.named_parameters():
        parameter.data = draw(key, parameter, generator) * (0.05 if "kernel_conv.weight" in key else 1)
    return module.eval().requires_grad_(False)


def on_torch(stage: str) -> Callable[..., np.ndarray]:
    network = drawn(*NETWORKS[stage])
    return lambda **inputs: network(**{key: torch.from_numpy(np.ascontiguousarray(array))
                                       for key, array in inputs.items()}).numpy()


@pytest.fixture(scope="module")
def torch_runs() -> dict[str, Callable[..., np.ndarray]]:
    return {stage: on_torch(stage) for stage in NETWORKS}


@pytest.fixture
def backend(torch_runs) -> Tiny:
    return Tiny(torch_runs)


def given_to(vocoder: str, length: int) -> np.ndarray:
    """Latents (length, D), or a mel (100, length)."""
    shape = (length, HIFIGAN.in_channels) if vocoder == "hifigan" else (100, length)
    return np.random.default_rng(length).standard_normal(shape, dtype=np.float32)


def pieces_of(whole: np.ndarray, sizes: list[int], axis: int) -> Iterator[np.ndarray]:
    """The whole in pieces of these sizes, over and over."""
    start, turn = 0, 0
    while start < whole.shape[axis]:
        size = sizes[turn % len(sizes)]
        yield whole.take(range(start, min(start + size, whole.shape[axis])), axis)
        start, turn = start + size, turn + 1


def noise() -> np.random.Generator:
    return Randomness(3).vocoder(0, 0)


def whole_and_pieces(backend: Tiny, vocoder: str, length: int, sizes: list[int],
                     pace: VocodingWindow) -> tuple[np.ndarray, list[np.ndarray]]:
    given = given_to(vocoder, length)
    if vocoder == "hifigan":
        return hifigan_sound(backend, VOICE, given), list(
            hifigan_stream(backend, HIFIGAN, VOICE, pieces_of(given, sizes, 0), pace))
    return univnet_sound(backend, UNIVNET, noise(), given), list(
        univnet_stream(backend, UNIVNET, noise(), pieces_of(given, sizes, 1), pace))


@both
@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 150), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
       first=st.integers(1, 30), window=st.integers(1, 90))
def test_pieces_join_to_the_whole(torch_runs, vocoder, length, sizes, first, window):
    length = length if vocoder == "univnet" else -(-length // 4)
    whole, pieces = whole_and_pieces(Tiny(torch_runs), vocoder, length, sizes, VocodingWindow(first, window))
    assert all(len(piece) and piece.dtype == np.float32 for piece in pieces)
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=0, atol=1e-5)


@both
def test_a_call_is_given_what_is_new_and_its_margins_never_all_so_far(backend, vocoder):
    whole, pieces = whole_and_pieces(backend, vocoder, 400, [1], VocodingWindow(12, 62))
    frames, margin = backend.frames[1:], NETWORKS[vocoder][1].margin        # the first call was the whole's
    assert len(whole) == sum(map(len, pieces)) == backend.frames[0] * 256
    assert len(pieces) == len(frames) > 6
    assert max(frames) == 62
    assert max(frames) < backend.frames[0] / 4
    assert frames[0] == 12 + margin


@both
def test_the_first_sound_comes_before_the_rest_of_the_latents_is_asked_for(backend, vocoder):
    asked = []

    def coming() -> Iterator[np.ndarray]:
        given = given_to(vocoder, 300)
        for piece in pieces_of(given, [1], 0 if vocoder == "hifigan" else 1):
            asked.append(1)
            yield piece

    stream = (hifigan_stream(backend, HIFIGAN, VOICE, coming()) if vocoder == "hifigan" else
              univnet_stream(backend, UNIVNET, noise(), coming()))
    assert len(next(stream)) > 0
    assert len(asked) < 35


@both
def test_closing_it_midway_stops_the_work_and_what_it_draws_from(backend, vocoder):
    closed = []

    def coming() -> Iterator[np.ndarray]:
        try:
            yield from pieces_of(given_to(vocoder, 300), [20], 0 if vocoder == "hifigan" else 1)
        finally:
            closed.append(True)

    source = coming()
    stream = (hifigan_stream(backend, HIFIGAN, VOICE, source) if vocoder == "hifigan" else
              univnet_stream(backend, UNIVNET, noise(), source))
    next(stream)
    calls = len(backend.frames)
    stream.close()
    assert closed == [True]
    assert len(backend.frames) == calls
    assert list(source) == []


@both
def test_of_nothing_there_is_no_sound(backend, vocoder):
    stream = (hifigan_stream(backend, HIFIGAN, VOICE, []) if vocoder == "hifigan" else
              univnet_stream(backend, UNIVNET, noise(), []))
    assert list(stream) == []
    assert backend.frames == []


@both
def test_on_packages_pieces_join_to_torchs_whole(torch_runs, tmp_path, vocoder):
    build, kind = {"hifigan": (hifigan, HifiganVocoder), "univnet": (univnet, UnivnetVocoder)}[vocoder]
    graphs = [build(drawn(*NETWORKS[vocoder]), 22)]
    packaged = Tiny({vocoder: kind(functions(graphs, saved(graphs, FP32, tmp_path)))})
    length = 20 if vocoder == "hifigan" else 80
    whole, _ = whole_and_pieces(Tiny(torch_runs), vocoder, length, [length], VocodingWindow())
    _, pieces = whole_and_pieces(packaged, vocoder, length, [7], VocodingWindow(10, 44))
    assert len(pieces) > 2
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=0, atol=3e-5)


@settings(max_examples=60, deadline=None)
@given(latents=st.integers(1, 700), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_frames_of_latents_that_come_bit_by_bit_are_the_very_numbers_of_the_whole(latents, sizes):
    x = np.random.default_rng(latents).standard_normal((latents, 3), dtype=np.float32)
    coming = LatentInterpolation()
    parts = [coming.feed(piece) for piece in pieces_of(x, sizes, 0)]
    np.testing.assert_array_equal(np.concatenate([*parts, coming.finish()], axis=1), interpolate_latents(x))
    kept = [0 if stage.columns is None else stage.columns.shape[1] for stage in coming._stages]
    assert max(kept) < 12       # of all that came, a few columns are kept


@pytest.mark.parametrize("latents", [1, 2, 3, 4, 29, 333, 604])
def test_interpolation_is_torchs(latents):
    x = np.random.default_rng(latents).standard_normal((latents, 5), dtype=np.float32)
    wanted = torch.from_numpy(x).T[None]
    for scale in SCALES:
        wanted = nn.functional.interpolate(wanted, scale_factor=scale, mode="linear")
    np.testing.assert_allclose(interpolate_latents(x), wanted[0].numpy(), atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(latents=st.integers(1, 60), more=st.integers(1, 20))
def test_a_frame_is_given_once_no_later_latent_changes_it_and_no_later(latents, more):
    x = np.random.default_rng(latents).standard_normal((latents + more, 5), dtype=np.float32)
    now = LatentInterpolation().feed(x[:latents])
    np.testing.assert_array_equal(now, interpolate_latents(x)[:, :now.shape[1]])
    assert now.shape[1] >= interpolate_latents(x[:latents]).shape[1] - 3 or latents < 4


def test_noise_drawn_bit_by_bit_is_what_is_drawn_at_once():
    from ane.models.tortoise.vocoding import draw_noise

    once, rng = draw_noise(noise(), UNIVNET, 50), noise()
    parts = [draw_noise(rng, UNIVNET, size) for size in (1, 7, 30, 12)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), once)
