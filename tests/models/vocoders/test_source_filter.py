"""Test that source and filter make sound with the pitch and the envelope of their parameters, also in streams."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.base import RowLimit
from ane.backends.windows import StreamingWindow
from ane.models.tortoise.vocoding import SourceFilterSound, vocoder_of
from ane.models.vocoders.convnext import SourceFilterConfig, SourceFilterNetwork
from ane.models.vocoders.source_filter import BINS, ENVELOPE, HOP, MIDDLE, PARAMETERS, SourceFilter, mel_bins
from training.envelopes import envelopes_of
from training.pitch import pitch_of

RATE = 24000
CONFIGS = {
    "source_filter": SourceFilterConfig(12, width=16, inner=32, layers=2),
    "mel_source_filter": SourceFilterConfig(100, width=16, inner=32, layers=2),
}


def parameters(pitch: float, envelope: np.ndarray, voicing: float, frames: int = 60) -> np.ndarray:
    """The same frame again and again."""
    return np.tile(np.concatenate((envelope, [np.log2(pitch / MIDDLE), voicing])).astype(np.float32), (frames, 1))


def sound(frames: np.ndarray, sizes: tuple[int, ...] = (10_000,)) -> np.ndarray:
    source, pieces, start, turn = SourceFilter(np.random.default_rng(3)), [], 0, 0
    while start < len(frames):
        size = sizes[turn % len(sizes)]
        pieces.append(source.feed(frames[start : start + size]))
        start, turn = start + size, turn + 1
    return np.concatenate((*pieces, source.finish()))


def resonance() -> np.ndarray:
    """Log magnitudes of a voice-like envelope: two formants over a slope."""
    hertz = mel_bins(ENVELOPE) / (BINS - 1) * RATE / 2
    return sum(np.exp(-(((hertz - at) / 400) ** 2)) * 2 for at in (700, 2400)) - hertz / 3000 - 4


@pytest.mark.parametrize("hertz", [90.0, 150.0, 260.0])
def test_a_voiced_frame_has_its_pitch(hertz):
    audio = sound(parameters(hertz, resonance(), 1))
    assert len(audio) == 60 * HOP
    np.testing.assert_allclose(pitch_of(audio, 60, HOP)[4:-4], hertz, rtol=0.01)


@pytest.mark.parametrize("voicing", [1, -1])
def test_speech_is_analysed_to_the_envelope_that_it_was_made_of(voicing):
    """In voiced frames within 0.3 (2.6 dB) on average, where harmonics are strong; of noise the mean over frames."""
    audio = sound(parameters(120, resonance(), voicing, 200))
    found = envelopes_of(audio, np.full(200, 120.0 if voicing > 0 else 0.0))[10:-10].mean(axis=0)
    found = np.interp(mel_bins(ENVELOPE), np.arange(BINS), found)
    difference = (found - resonance())[2:40]
    assert np.abs(difference - difference.mean()).mean() < 0.3


def test_a_frame_without_voice_is_noise():
    audio = sound(parameters(120, resonance(), -1))
    assert (pitch_of(audio, 60, HOP) > 0).mean() < 0.15
    assert np.abs(audio).max() > 1e-3


def test_the_filter_scales_the_sound():
    quiet, loud = (sound(parameters(120, resonance() + gain, 1)) for gain in (0, np.log(2)))
    np.testing.assert_allclose(loud, 2 * quiet, rtol=1e-3, atol=1e-5)


def test_no_frames_are_no_sound():
    assert len(SourceFilter(np.random.default_rng(0)).finish()) == 0


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 9))
def test_pieces_change_no_sample(count, sizes, seed):
    frames = np.random.default_rng(seed).standard_normal((count, PARAMETERS)).astype(np.float32)
    np.testing.assert_array_equal(sound(frames, tuple(sizes)), sound(frames))


def test_a_long_stream_keeps_every_bit():
    """The phase of pulses is a sum over all samples before."""
    rng = np.random.default_rng(1)
    frames = np.concatenate(
        (rng.standard_normal((700, ENVELOPE)) - 4, 0.3 * rng.standard_normal((700, 1)), np.ones((700, 1))), axis=1
    ).astype(np.float32)
    np.testing.assert_array_equal(sound(frames, (7,)), sound(frames))


def test_numbers_beyond_any_speech_give_finite_sound():
    frames = parameters(120, resonance(), 1)
    frames[20, 10], frames[30, -2], frames[40, -2] = 95, 130, -200
    assert np.isfinite(sound(frames)).all()


class OneNetwork:
    """A backend of one network that predicts parameters."""

    def __init__(self, stage: str):
        torch.manual_seed(4)
        self.network = SourceFilterNetwork(CONFIGS[stage]).eval()

    def row_limit(self, stage: str) -> RowLimit:
        return RowLimit()

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.network(
                **{name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}
            ).numpy()


@pytest.mark.parametrize("stage", CONFIGS)
@pytest.mark.parametrize("size", [1, 7])
def test_streamed_latents_and_mels_sound_as_the_whole(stage, size):
    backend, rng = OneNetwork(stage), np.random.default_rng(0)
    whole = rng.standard_normal((30, 12) if stage == "source_filter" else (100, 30), dtype=np.float32)

    def source(window: StreamingWindow | None) -> SourceFilterSound:
        return SourceFilterSound(backend, stage, CONFIGS[stage], np.random.default_rng(1), window)

    stream = source(StreamingWindow())
    axis = 0 if stage == "source_filter" else 1
    first = source(StreamingWindow())
    assert not list(first.feed(whole.take(range(first.needed - 1), axis))), "the first sound needs more latents"
    assert list(first.feed(whole.take(range(first.needed - 1, first.needed + 1), axis)))
    pieces = [
        piece
        for start in range(0, 30, size)
        for piece in stream.feed(whole.take(range(start, min(start + size, 30)), axis))
    ]
    streamed = np.concatenate((*pieces, *stream.finish()))
    expected = np.concatenate(list(source(None).finish(whole)))
    assert len(streamed) % HOP == 0
    np.testing.assert_allclose(streamed, expected, atol=2e-4)


def test_a_stream_computes_few_frames_twice_whatever_the_pieces(monkeypatch):
    """A sentence of 2 s: every frame was computed 2.6 times with windows that grew more slowly."""
    stage, frames = "mel_source_filter", 190
    monkeypatch.setitem(CONFIGS, stage, replace(CONFIGS[stage], layers=6))
    backend = OneNetwork(stage)
    mel, run, calls = np.random.default_rng(0).standard_normal((100, frames), dtype=np.float32), backend.run, []

    def counted(name: str, **inputs: np.ndarray) -> np.ndarray:
        calls.append(inputs["frames"].shape[1])
        return run(name, **inputs)

    monkeypatch.setattr(backend, "run", counted)
    heard = []
    for size in (3, frames):
        stream = SourceFilterSound(backend, stage, CONFIGS[stage], np.random.default_rng(1), StreamingWindow())
        pieces = [piece for start in range(0, frames, size) for piece in stream.feed(mel[:, start : start + size])]
        heard.append(np.concatenate((*pieces, *stream.finish())))
    assert calls[0] < 40, "the first sound comes soon"
    assert sum(calls) < 2 * 1.7 * frames
    np.testing.assert_array_equal(*heard)


@pytest.mark.parametrize(
    ("networks", "diffused", "expected"),
    [
        ({"hifigan", "univnet"}, False, "hifigan"),
        ({"hifigan", "univnet"}, True, "univnet"),
        ({"hifigan", "univnet", "bigvgan"}, True, "bigvgan"),
        ({"hifigan", "source_filter"}, False, "source_filter"),
        ({"univnet", "mel_source_filter"}, True, "mel_source_filter"),
    ],
)
def test_a_model_speaks_with_the_vocoder_that_was_made_for_it(networks, diffused, expected):
    assert vocoder_of(networks, diffused) == expected
