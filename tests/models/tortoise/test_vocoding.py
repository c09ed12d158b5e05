"""Test that sound from latents or mels that arrive in parts equals the sound from all of them, however divided."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ane.backends import load_backend
from ane.backends.base import RowLimit, check_inputs
from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.kernels import has_kernel
from ane.backends.windows import WHOLE, StreamingWindow
from ane.bundles import open_model
from ane.bundles.family import Config
from ane.models.tortoise.family import STAGES
from ane.models.tortoise.networks.hifigan import Hifigan, HifiganConfig
from ane.models.tortoise.networks.univnet import SILENT_FRAMES, UnivNet, UnivNetConfig
from ane.models.tortoise.sampling import Randomness
from ane.models.tortoise.vocoding import (
    LARGEST,
    SCALES,
    HifiganSound,
    LatentInterpolation,
    SourceFilterSound,
    UnivnetSound,
    draw_noise,
    hifigan_sound,
    interpolate_latents,
)
from ane.system.decibels import snr_db
from converters.coreml.coreml_package import CoreMLOptions
from converters.onnx.onnx_package import OnnxOptions, OnnxTarget
from tests.conversions import converted
from tests.random_model import draw

STREAMED = StreamingWindow()
HIFIGAN = HifiganConfig(in_channels=12, upsample_initial_channel=16, cond_channels=8)
UNIVNET = UnivNetConfig(channel_size=4, noise_dim=6, kpnet_hidden_channels=8)
VOICE = np.random.default_rng(1).standard_normal((1, 8), dtype=np.float32)
NETWORKS = {"hifigan": (Hifigan, HIFIGAN), "univnet": (UnivNet, UNIVNET)}
both_vocoders = pytest.mark.parametrize("vocoder", NETWORKS)


class VocoderBackend:
    """A backend of the two vocoders that records the frames of each call."""

    def __init__(self, networks: dict[str, Callable[..., np.ndarray]]):
        self.networks, self.frames = networks, []

    def row_limit(self, stage: str) -> RowLimit:
        return RowLimit()

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        check_inputs(stage, STAGES[stage], inputs)
        self.frames.append(next(iter(inputs.values())).shape[-1])
        return self.networks[stage](**inputs)


def random_network(cls: type[nn.Module], config: Config) -> nn.Module:
    module, generator = cls(config), torch.Generator().manual_seed(5)
    for key, parameter in module.named_parameters():
        parameter.data = draw(key, parameter, generator) * (0.05 if "kernel_conv.weight" in key else 1)
    return module.eval().requires_grad_(False)


def vocoder_on_torch(stage: str) -> Callable[..., np.ndarray]:
    network = random_network(*NETWORKS[stage])
    return lambda **inputs: network(
        **{key: torch.from_numpy(np.ascontiguousarray(array)) for key, array in inputs.items()}
    ).numpy()


@pytest.fixture(scope="module")
def torch_vocoders() -> dict[str, Callable[..., np.ndarray]]:
    return {stage: vocoder_on_torch(stage) for stage in NETWORKS}


@pytest.fixture
def backend(torch_vocoders) -> VocoderBackend:
    return VocoderBackend(torch_vocoders)


def random_input(vocoder: str, length: int) -> np.ndarray:
    """Latents (length, D), or a mel (100, length)."""
    shape = (length, HIFIGAN.in_channels) if vocoder == "hifigan" else (100, length)
    return np.random.default_rng(length).standard_normal(shape, dtype=np.float32)


def pieces_of(whole: np.ndarray, sizes: list[int], axis: int) -> Iterator[np.ndarray]:
    """The array in pieces of these sizes, cyclically."""
    start, turn = 0, 0
    while start < whole.shape[axis]:
        size = sizes[turn % len(sizes)]
        yield whole.take(range(start, min(start + size, whole.shape[axis])), axis)
        start, turn = start + size, turn + 1


def split(vocoder: str, length: int, sizes: list[int]) -> Iterator[np.ndarray]:
    """``random_input`` in pieces."""
    return pieces_of(random_input(vocoder, length), sizes, 0 if vocoder == "hifigan" else 1)


def noise() -> np.random.Generator:
    return Randomness(3).vocoder(0, 0)


def stream(
    backend: VocoderBackend, vocoder: str, pieces: Iterable[np.ndarray], window: StreamingWindow | None = STREAMED
) -> Iterator[np.ndarray]:
    sound = (
        HifiganSound(backend, HIFIGAN, VOICE, window)
        if vocoder == "hifigan"
        else UnivnetSound(backend, UNIVNET, noise(), window)
    )
    for piece in pieces:
        yield from sound.feed(piece)
    yield from sound.finish()


@given(frames=st.integers(1, 300))
def test_latents_that_are_needed_for_frames_give_them_and_fewer_latents_do_not(frames):
    latents = random_input("hifigan", needed := LatentInterpolation().needed(frames))
    given = [LatentInterpolation().feed(latents[:count]).shape[1] for count in (needed - 1, needed)]
    assert given[0] < frames
    assert given[1] >= frames or needed < 12, "so few frames wait, because they may still be copied"


def whole_and_pieces(
    backend: VocoderBackend, vocoder: str, length: int, sizes: list[int], window: StreamingWindow = STREAMED
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The sound at once, and the pieces of the stream."""
    sound = np.concatenate(list(stream(backend, vocoder, [random_input(vocoder, length)], None)))
    return sound, list(stream(backend, vocoder, split(vocoder, length, sizes), window))


@both_vocoders
@settings(max_examples=6, deadline=None)
@given(
    length=st.integers(1, 120),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    first=st.integers(1, 30),
    window=st.integers(1, 90),
    largest=st.sampled_from((0, 60, 130)),
)
def test_streamed_pieces_join_to_the_whole(torch_vocoders, vocoder, length, sizes, first, window, largest):
    length = length if vocoder == "univnet" else -(-length // 4)
    backend = VocoderBackend(torch_vocoders)
    window = StreamingWindow(first, window, largest)
    whole, pieces = whole_and_pieces(backend, vocoder, length, sizes, window)
    assert all(len(piece) and piece.dtype == np.float32 for piece in pieces)
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=0, atol=1e-5)
    at_once = list(stream(backend, vocoder, split(vocoder, length, [length]), window))
    np.testing.assert_array_equal(np.concatenate(pieces), np.concatenate(at_once))


@both_vocoders
@pytest.mark.parametrize(("window", "first", "later"), [(STREAMED, 12, 62), (StreamingWindow(20, 90), 20, 90)])
def test_a_call_gets_new_frames_and_their_margins_only(backend, vocoder, window, first, later):
    pieces = list(stream(backend, vocoder, split(vocoder, 400, [1]), window))
    frames, margin = backend.frames, NETWORKS[vocoder][1].margin
    assert sum(map(len, pieces)) // 256 in (400, 400 * 4 * 24000 // 22050)
    assert len(pieces) == len(frames) > 6
    assert (frames[0], max(frames)) == (first + margin, later)


@both_vocoders
def test_windows_grow_and_are_ready_in_time(backend, vocoder):
    """With sound that takes two thirds of its length, a longer call is ready before the sound so far has been heard."""
    pieces = list(stream(backend, vocoder, split(vocoder, 400, [1]), StreamingWindow(largest=126)))
    assert {62, 94, 126} <= set(backend.frames)
    ends = np.cumsum([len(piece) // 256 for piece in pieces])
    for frames, before, end in zip(backend.frames[1:], ends, ends[1:], strict=False):
        assert frames <= 62 or 2 / 3 * (end - ends[0]) <= before


@both_vocoders
@settings(max_examples=6, deadline=None)
@given(length=st.integers(64, 600))
def test_whole_sound_takes_calls_of_few_lengths(torch_vocoders, vocoder, length):
    """Between them and a single call there is only rounding."""
    backend = VocoderBackend(torch_vocoders)
    latents = length if vocoder == "univnet" else -(-length // 4)
    columns = random_input(vocoder, latents)
    sound = np.concatenate(list(stream(backend, vocoder, [columns], None)))
    if vocoder == "hifigan":
        expected = hifigan_sound(backend, VOICE, columns)
    else:
        expected = backend.run(
            "univnet", mel=columns[None], noise=draw_noise(noise(), UNIVNET, length + SILENT_FRAMES)[None]
        )[0, 0]
    *windows, whole = backend.frames
    assert set(windows) <= set(WHOLE)
    assert sum(windows) < 2 * whole
    np.testing.assert_allclose(sound, expected, rtol=0, atol=1e-5)


@both_vocoders
def test_the_first_sound_needs_only_the_first_latents(backend, vocoder):
    requested = []

    def arriving() -> Iterator[np.ndarray]:
        for piece in split(vocoder, 300, [1]):
            requested.append(1)
            yield piece

    assert len(next(stream(backend, vocoder, arriving()))) > 0
    assert len(requested) < 35


@both_vocoders
def test_no_input_gives_no_sound(backend, vocoder):
    assert list(stream(backend, vocoder, [])) == []
    assert backend.frames == []


@settings(max_examples=60, deadline=None)
@given(latents=st.integers(1, 700), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_interpolating_latents_incrementally_gives_the_same_numbers(latents, sizes):
    x = np.random.default_rng(latents).standard_normal((latents, 3), dtype=np.float32)
    interpolation = LatentInterpolation()
    parts = [interpolation.feed(piece) for piece in pieces_of(x, sizes, 0)]
    np.testing.assert_array_equal(np.concatenate([*parts, interpolation.finish()], axis=1), interpolate_latents(x))
    kept = [0 if stage.columns is None else stage.columns.shape[1] for stage in interpolation._stages]
    assert max(kept) < 12, "only a few columns are kept"


@pytest.mark.parametrize("latents", [1, 2, 3, 4, 29, 333, 604])
def test_interpolation_equals_torchs(latents):
    x = np.random.default_rng(latents).standard_normal((latents, 5), dtype=np.float32)
    expected = torch.from_numpy(x).T[None]
    for scale in SCALES:
        expected = nn.functional.interpolate(expected, scale_factor=scale, mode="linear")
    # versions of torch round a position differently: from 2.15 on, 9 of 13,145 values differ by up to 5e-5
    rounding = 2**-24 * expected.shape[2] * np.abs(np.diff(x, axis=0)).max(initial=0)
    np.testing.assert_allclose(interpolate_latents(x), expected[0].numpy(), rtol=0, atol=1e-6 + rounding)


@settings(max_examples=20, deadline=None)
@given(latents=st.integers(1, 60), more=st.integers(1, 20))
def test_a_frame_is_returned_as_soon_as_no_later_latent_changes_it(latents, more):
    x = np.random.default_rng(latents).standard_normal((latents + more, 5), dtype=np.float32)
    frames = LatentInterpolation().feed(x[:latents])
    np.testing.assert_array_equal(frames, interpolate_latents(x)[:, : frames.shape[1]])
    assert frames.shape[1] >= interpolate_latents(x[:latents]).shape[1] - 3 or latents < 4


def test_noise_drawn_incrementally_equals_noise_drawn_at_once():
    at_once, rng = draw_noise(noise(), UNIVNET, 50), noise()
    parts = [draw_noise(rng, UNIVNET, size) for size in (1, 7, 30, 12)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), at_once)


PREDICTED = "source_filter", "mel_source_filter"


@pytest.mark.parametrize("stage", PREDICTED)
def test_a_late_stream_needs_fewer_calls_for_the_same_bits(stage, monkeypatch):
    """Frames that arrived while other requests computed, against frames that arrive one by one."""
    backend, calls = TorchBackend(model := open_model("demo"), "cpu"), []
    run = backend.run

    def counted(name: str, **inputs: np.ndarray) -> np.ndarray:
        calls.append(inputs["frames"].shape[1])
        return run(name, **inputs)

    monkeypatch.setattr(backend, "run", counted)
    columns, axis = np.random.default_rng(0).standard_normal((90, 100), dtype=np.float32), 0
    if stage == "source_filter":
        columns = np.concatenate((columns, columns), axis=1)[:, : model.config(stage).channels]
    else:
        columns, axis = np.repeat(columns, 4, axis=0).T - 4, 1

    def streamed(size: int) -> np.ndarray:
        calls.clear()
        sound = SourceFilterSound(backend, stage, model.config(stage), noise(), StreamingWindow())
        *pieces, last = pieces_of(columns, [size], axis)
        return np.concatenate([*(part for piece in pieces for part in sound.feed(piece)), *sound.finish(last)])

    expected, usual = streamed(1), len(calls)
    for size in (5, 17, 200, 400):
        np.testing.assert_array_equal(streamed(size), expected)
        assert max(calls) <= LARGEST
    assert backend.row_limit(stage).exact == has_kernel("fp32")
    if backend.row_limit(stage).exact:
        assert len(calls) == 2 < usual, "two calls of at most 254 frames"


@pytest.mark.parametrize(("engine", "stage"), [("mil", "source_filter"), ("onnx:cpu", "mel_source_filter")])
def test_the_sound_of_a_package_is_that_of_torch(shared, engine, stage):
    model, rng = open_model("demo"), np.random.default_rng(0)
    if engine == "mil":
        packaged = converted(shared, model, [CoreMLOptions("fp32", buckets={stage: (64,)})], [stage])
        columns = rng.standard_normal((40, model.config(stage).channels), dtype=np.float32)
    else:
        packaged = converted(shared, model, [OnnxOptions()], [stage], target=OnnxTarget())
        columns = rng.standard_normal((100, 150), dtype=np.float32) - 4

    def sound(backend: str) -> np.ndarray:
        network = load_backend(backend, packaged)
        source = SourceFilterSound(network, stage, model.config(stage), np.random.default_rng(1))
        return np.concatenate(list(source.finish(columns)))

    expected, found = sound("torch:cpu"), sound(engine)
    assert len(found) == len(expected)
    assert snr_db(expected, found) >= 50
