"""Test the synthesizer on the embedded voice, for whole speech and for streams."""

import platform
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import ane
from ane.cli import main
from ane.models.tortoise.diffusion import Diffusion
from ane.models.tortoise.sampling import Sampling
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from ane.speech.stream import Speech
from ane.voices import Voice
from tests.models.tortoise.sample_settings import CHUNKED, DIFFUSION, HIFIGAN, SENTENCE, SHORT, THREE_SENTENCES
from tests.refusals import assert_refused

both_paths = pytest.mark.parametrize("settings", [HIFIGAN, DIFFUSION], ids=["hifigan", "diffusion"])


def voice_of_ones(synthesizer: TortoiseSpeaker, **fields) -> Voice:
    return Voice(*(np.ones((1, width), np.float32) for width in synthesizer.model.widths), name="ones", **fields)


# The result


@both_paths
def test_speech_is_float32_within_one_at_24_khz_and_depends_on_the_seed(synthesizer, settings):
    speech = synthesizer.speak(SENTENCE, settings=settings)
    again, other = (
        synthesizer.speak(SENTENCE, seed=seed, settings=settings) for seed in (speech.seed, speech.seed + 1)
    )
    audio = speech.audio
    assert (speech.sample_rate, audio.dtype, audio.ndim) == (24000, np.float32, 1)
    assert 0 < np.abs(audio).max() <= 1
    assert (speech.seconds, list(speech.seconds_by_phase)[:2]) == (len(audio) / 24000, ["voice", "decode"])
    assert speech.real_time_factor == speech.elapsed / speech.seconds
    np.testing.assert_array_equal(audio, again.audio)
    assert len(audio) != len(other.audio) or np.abs(audio - other.audio).max() > 1e-3


def test_a_seed_is_drawn_for_each_speech_and_a_negative_one_refused(synthesizer):
    assert synthesizer.request(SENTENCE).seed != synthesizer.request(SENTENCE).seed
    assert_refused(r"^seed must be at least 0, got -1$", synthesizer.speak, SENTENCE, seed=-1, settings=HIFIGAN)


@both_paths
def test_the_sound_of_the_chunks_joins_to_the_speech(synthesizer, settings):
    settings = replace(settings, split=CHUNKED.split)
    speech = synthesizer.speak(THREE_SENTENCES, seed=4, settings=settings)
    stream = synthesizer.speak_in_chunks(THREE_SENTENCES, seed=4, settings=settings)
    pieces = list(stream)
    assert len(pieces) == len(speech.chunks) == 3
    np.testing.assert_array_equal(np.concatenate(pieces), speech.audio)
    assert (stream.facts, stream.notes, stream.seconds) == (speech.facts, speech.notes, speech.seconds)


def test_the_first_chunk_does_not_depend_on_the_chunks_after_it(synthesizer):
    speech = synthesizer.speak(THREE_SENTENCES, seed=4, settings=CHUNKED)
    assert speech.chunks == ["The turtle was first.", "The rabbit came second.", "The snail was third."]
    alone = synthesizer.speak(SENTENCE, seed=4, settings=CHUNKED).audio
    rounding = 0 if platform.machine() in ("x86_64", "AMD64") else 1e-4
    np.testing.assert_allclose(speech.audio[: len(alone)], alone, rtol=0, atol=rounding)
    assert len(speech.audio) > len(alone)


def test_alternatives_follow_the_best_candidate(synthesizer):
    settings = TortoiseSettings(3, Diffusion(3, "p", None), best=3, sampling=SHORT)
    three = synthesizer.speak(SENTENCE, seed=1, settings=settings)
    assert len(three.alternatives) == 2
    assert not np.array_equal(*three.alternatives)
    best = synthesizer.speak(SENTENCE, seed=1, settings=replace(settings, best=1))
    assert best.alternatives == []
    np.testing.assert_allclose(best.audio, three.audio, atol=1e-6)


def test_a_chunk_without_a_stop_code_is_reported_in_notes(synthesizer):
    speech = synthesizer.speak(SENTENCE, seed=1, settings=replace(HIFIGAN, sampling=Sampling(max_codes=2)))
    assert [note for note in speech.notes if note.startswith("chunk 1 did not end with a stop code")]


# Voices


def test_a_voice_can_be_passed_as_latents(synthesizer):
    speech = synthesizer.speak(SENTENCE, voice_of_ones(synthesizer), seed=1, settings=HIFIGAN)
    assert speech.voice == "ones"
    assert not np.array_equal(speech.audio, synthesizer.speak(SENTENCE, seed=1, settings=HIFIGAN).audio)


# The model


def test_a_network_that_the_model_lacks_is_named_before_any_work(synthesizer, monkeypatch):
    stages = []
    monkeypatch.setattr(synthesizer.model, "networks", synthesizer.model.networks - {"clvp"})
    assert_refused(
        r"clvp2\.pth",
        lambda: synthesizer.speak(
            SENTENCE, seed=1, settings=DIFFUSION, progress=lambda stage, *rest: stages.append(stage)
        ),
    )
    assert not stages


def test_prepare_loads_the_networks_and_the_voice_and_changes_no_speech(synthesizer):
    voice = synthesizer.prepare(settings=CHUNKED)
    assert {"autoregressive", "source_filter"} <= set(synthesizer.backend._networks)
    speech = synthesizer.speak(SENTENCE, voice, seed=4, settings=CHUNKED)
    np.testing.assert_array_equal(speech.audio, synthesizer.speak(SENTENCE, seed=4, settings=CHUNKED).audio)


def test_load_answers_checkpoints_with_the_command_that_imports_them(
    golden_checkpoints, golden_config, tmp_path, monkeypatch
):
    """Sizes other than the official ones come from a config.json next to the .pth files."""
    source = Path(shutil.copytree(golden_checkpoints, tmp_path / "checkpoints"))
    shutil.copy(golden_config, source / "config.json")
    assert_refused(rf"`ane import {source} -o NAME`", ane.load, source)
    assert main(["import", str(source), "-o", str(tmp_path / "bundle"), "-q"]) == 0
    monkeypatch.setenv("HOME", str(tmp_path))
    assert np.isfinite(ane.load("~/bundle").speak(SENTENCE, "random", seed=1, settings=HIFIGAN).audio).all()


# Several texts


def test_the_time_of_each_stage_is_divided_among_the_texts(synthesizer):
    speeches = list(synthesizer.speak_all([SENTENCE] * 3, seed=4, settings=replace(CHUNKED, lanes=1)))
    for phase, seconds in speeches[-1].timeline.seconds_by_phase().items():
        assert sum(speech.seconds_by_phase.get(phase, 0) for speech in speeches) == pytest.approx(seconds)
    assert all(speech.seconds_by_phase["vocode"] > 0 for speech in speeches)


@pytest.fixture(scope="module")
def speak_alone(synthesizer) -> Callable[[str], Speech]:
    """``speak_alone(text)``: the speech of one text on one lane; each text is spoken once."""
    return cache(lambda text: synthesizer.speak(text, seed=4, settings=replace(CHUNKED, lanes=1)))


@hypothesis_settings(max_examples=3, deadline=None)
@given(
    texts=st.lists(
        st.lists(
            st.sampled_from(["The turtle was first.", "Well done.", "The rabbit came."]), min_size=1, max_size=3
        ).map(" ".join),
        min_size=1,
        max_size=3,
    ),
    lanes=st.integers(1, 5),
    taken=st.integers(0, 6),
)
def test_other_texts_lanes_and_streaming_do_not_change_a_speech(synthesizer, speak_alone, texts, lanes, taken):
    settings = replace(CHUNKED, lanes=lanes)
    for text, speech in zip(texts, synthesizer.speak_all(texts, seed=4, settings=settings), strict=True):
        alone = speak_alone(text)
        assert (speech.chunks, speech.codes) == (alone.chunks, alone.codes)
        np.testing.assert_allclose(speech.audio, alone.audio, atol=1e-4)
        stream = synthesizer.stream(text, seed=4, settings=settings)
        pieces = [piece for piece, _ in zip(stream, range(taken), strict=False)]
        stream.close()
        streamed = np.concatenate([*pieces, np.empty(0, np.float32)])
        np.testing.assert_allclose(streamed, alone.audio[: len(streamed)], atol=1e-4)
    assert synthesizer.backend._networks == {}


@pytest.mark.parametrize("candidates", [1, 3])
def test_a_stream_without_diffusion_joins_to_the_whole(synthesizer, candidates):
    settings = replace(CHUNKED, candidates=candidates)
    stream = synthesizer.stream(THREE_SENTENCES, seed=4, settings=settings)
    pieces = list(stream)
    whole = synthesizer.speak(THREE_SENTENCES, seed=4, settings=replace(settings, lanes=1))
    assert len(pieces) > 3
    assert (stream.codes, stream.chunks, stream.seed, stream.voice) == (whole.codes, whole.chunks, 4, whole.voice)
    np.testing.assert_allclose(np.concatenate(pieces), whole.audio, atol=1e-4)
    assert (stream.notes, stream.seconds) == (whole.notes, whole.seconds)
    assert 0 < stream.timeline.first_audio < stream.timeline.now()


def test_a_stream_with_diffusion_joins_to_the_whole_where_a_chunk_fits_one_window(synthesizer):
    settings = replace(CHUNKED, candidates=3, diffusion=DIFFUSION.diffusion)
    pieces = list(synthesizer.stream(THREE_SENTENCES, seed=4, settings=settings))
    whole = synthesizer.speak(THREE_SENTENCES, seed=4, settings=settings)
    assert sum(map(len, pieces)) == len(whole.audio)
    np.testing.assert_allclose(np.concatenate(pieces), whole.audio, atol=1e-4)


def test_the_work_begins_when_its_first_result_is_requested_and_ends_when_a_stream_is_closed(synthesizer):
    reports = []
    options = {"seed": 4, "settings": CHUNKED, "progress": lambda *report: reports.append(report)}
    speeches, stream = synthesizer.speak_all([SENTENCE], **options), synthesizer.stream(THREE_SENTENCES, **options)
    assert not reports
    assert synthesizer.backend._networks == {}
    assert stream.real_time_factor == float("inf")
    next(speeches)
    assert reports
    reports.clear()
    next(stream)
    assert synthesizer.backend._networks
    before = len(reports)
    assert before
    stream.close()
    assert synthesizer.backend._networks == {}
    with pytest.raises(StopIteration):
        next(stream)
    assert len(reports) == before
    assert ("decode", 3) not in [report[:2] for report in reports], "the later chunks had not been decoded"


def test_a_stream_of_several_alternatives_is_refused(synthesizer):
    assert_refused(
        "best must be 1, got 2",
        lambda: synthesizer.stream(THREE_SENTENCES, seed=4, settings=replace(CHUNKED, candidates=3, best=2)),
    )


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


def test_a_preset_needs_the_networks_of_its_path(synthesizer):
    """The ranked preset with diffusion, and the one that skips both."""
    found = [synthesizer.networks(TortoiseSettings.of(preset)) for preset in ("16x10_guided", "fastest")]
    assert found == [["autoregressive", "diffusion", "mel_source_filter", "clvp"], ["autoregressive", "source_filter"]]
