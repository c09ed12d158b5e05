"""Streams: their pieces join to the whole speech, and closing one stops the work."""

from dataclasses import replace

import numpy as np
import pytest

from ane.system.errors import UserError
from tests.models.tortoise.sample_settings import CHUNKED, DIFFUSION, THREE_SENTENCES


@pytest.mark.parametrize("candidates", [1, 3])
def test_a_stream_without_diffusion_joins_to_the_whole(synthesizer, candidates):
    settings = replace(CHUNKED, candidates=candidates)
    stream = synthesizer.stream(THREE_SENTENCES, seed=4, settings=settings)
    pieces = list(stream)
    whole = synthesizer.speak(THREE_SENTENCES, seed=4, settings=replace(settings, lanes=1))
    assert len(pieces) > 3
    assert (stream.codes, stream.chunks, stream.seed, stream.voice) == (whole.codes, whole.chunks, 4, whole.voice)
    np.testing.assert_allclose(np.concatenate(pieces), whole.audio, atol=1e-4)
    assert stream.notes == whole.notes
    assert stream.seconds == whole.seconds
    assert 0 < stream.timeline.first_audio < stream.timeline.now()


def test_a_stream_with_diffusion_joins_to_the_whole_where_a_chunk_fits_one_window(synthesizer):
    settings = replace(CHUNKED, candidates=3, diffusion=DIFFUSION.diffusion)
    pieces = list(synthesizer.stream(THREE_SENTENCES, seed=4, settings=settings))
    whole = synthesizer.speak(THREE_SENTENCES, seed=4, settings=settings)
    assert sum(map(len, pieces)) == len(whole.audio)
    np.testing.assert_allclose(np.concatenate(pieces), whole.audio, atol=1e-4)


def test_a_stream_begins_when_the_first_piece_is_requested(synthesizer):
    reports = []
    stream = synthesizer.stream(THREE_SENTENCES, seed=4, settings=CHUNKED, progress=lambda *now: reports.append(now))
    assert not reports
    assert synthesizer.backend._networks == {}
    assert stream.real_time_factor == float("inf")
    next(stream)
    assert reports


def test_closing_a_stream_stops_the_work_and_releases_the_networks(synthesizer):
    finished = []
    stream = synthesizer.stream(THREE_SENTENCES, seed=4, settings=CHUNKED,
                                progress=lambda phase, done, total, note: finished.append((phase, done)))
    next(stream)
    assert synthesizer.backend._networks
    before = len(finished)
    stream.close()
    assert synthesizer.backend._networks == {}
    with pytest.raises(StopIteration):
        next(stream)
    assert len(finished) == before
    assert ("decode", 3) not in finished, "the later chunks had not been decoded"


def test_a_stream_of_several_alternatives_is_refused(synthesizer):
    with pytest.raises(UserError, match="best must be 1, got 2"):
        synthesizer.stream(THREE_SENTENCES, seed=4, settings=replace(CHUNKED, candidates=3, best=2))


def test_pauses_and_speed_are_alike_in_a_stream_and_in_the_whole(synthesizer):
    text = "The turtle was first. [pause:1s] The rabbit came second."
    options = {"seed": 4, "settings": CHUNKED, "speed": 1.25}
    whole = synthesizer.speak(text, **options)
    streamed = np.concatenate(list(synthesizer.stream(text, **options)))
    assert whole.chunks == ["The turtle was first.", "The rabbit came second."]
    assert len(streamed) == len(whole.audio)
    assert (whole.audio == 0).sum() >= 24000
    plain = synthesizer.speak(text.replace("[pause:1s]", ""), seed=4, settings=CHUNKED)
    assert len(whole.audio) == pytest.approx(len(plain.audio) / 1.25 + 24000, abs=2)
