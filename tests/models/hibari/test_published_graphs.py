"""Test the graphs that hibari's author published, on ONNX Runtime: exact, and near the torch network."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ane
from ane.models.hibari.synthesizer import HibariSynthesizer
from ane.models.phoneme_chunks import split_into_phonemes
from ane.system.decibels import snr_db
from ane.text.passages import Passage
from tests.models.hibari.test_synthesizer import DURATIONS, PITCH, SYMBOLS

SENTENCES = (
    "The wind blew over the hill, and it rained in the valley.",
    "Please close the door behind you.",
    "She counted eleven boats in the harbour before breakfast.",
    "Why would anybody paint a fence purple?",
    "Our train leaves at a quarter past nine.",
    "He wrote the letter twice and burned it once.",
    "Nobody had told the gardener about the frost.",
    "Is this the way to the station?",
    "A long road leads from the village to the sea.",
    "They sang until the lamps went out.",
)
# minimum share of sentences with equal durations. Durations are rounded numbers, so a small error can move one
EQUAL_DURATIONS = 0.8
PARTS_DB = {"text": 30, "prosody": 30, "spectra": 35}


@pytest.fixture(scope="module")
def voice() -> HibariSynthesizer:
    return ane.load(threads=1)


@pytest.fixture(scope="module")
def reference() -> HibariSynthesizer:
    return ane.load(backend="torch:cpu", precision="fp32", threads=1)


def test_the_default_voice_speaks_by_the_published_graphs_unless_another_precision_is_named(voice):
    assert voice.backend.name == "onnx:cpu int8"
    assert ane.load(precision="fp32").backend.name == "torch:cpu fp32"


def test_durations_and_pitch_are_those_of_the_published_graph(voice):
    [chunk] = split_into_phonemes([Passage(SYMBOLS)], None, 402)
    states, counts = voice.text(chunk, 1.0)
    assert counts.tolist() == DURATIONS
    f0, _ = voice.prosody(states, counts)
    assert {frame: f0[frame] for frame in PITCH} == {
        frame: pytest.approx(hertz, abs=0.5) for frame, hertz in PITCH.items()
    }


def test_most_sentences_have_the_durations_of_the_torch_network(voice, reference):
    equal = [
        np.array_equal(*(speaker.speak(text, seed=0).details["durations"][0] for speaker in (voice, reference)))
        for text in SENTENCES
    ]
    assert np.mean(equal) >= EQUAL_DURATIONS


@pytest.mark.parametrize("stage", PARTS_DB)
def test_each_stage_is_near_the_torch_network_on_what_a_sentence_needs(voice, reference, stage, monkeypatch):
    calls = []
    run = reference.backend.run
    monkeypatch.setattr(
        reference.backend, "run", lambda name, **inputs: calls.append((name, inputs)) or run(name, **inputs)
    )
    reference.speak(SENTENCES[0], seed=0)
    for name, inputs in calls:
        if name == stage:
            inside = (1 + (stage == "prosody")) * int(inputs["mask"].sum())
            both = [speaker(name, **inputs) for speaker in (run, voice.backend.run)]
            assert both[0].shape == both[1].shape
            assert snr_db(*(result[:, :inside] for result in both)) > PARTS_DB[stage]
    assert stage in dict(calls)


@pytest.mark.parametrize(
    "text",
    ["Yes.", SENTENCES[0], " ".join(SENTENCES[:2]), " ".join(SENTENCES * 2)],
    ids=["one call of the decoder", "one or two calls", "two calls", "several chunks"],
)
@pytest.mark.parametrize("speed", [1.0, 1.7])
def test_a_stream_is_the_whole_speech_bit_for_bit_and_begins_with_a_short_piece(voice, text, speed):
    first, *others = voice.stream(text, seed=5, speed=speed)
    assert 0 < len(first) < 0.4 * voice.sample_rate
    np.testing.assert_array_equal(np.concatenate([first, *others]), voice.speak(text, seed=5, speed=speed).audio)


def test_speech_has_the_same_bits_among_others_and_on_two_threads(voice):
    alone = [voice.speak(text, seed=3).audio for text in SENTENCES[:4]]
    two = ane.load(threads=2)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda text: two.speak(text, seed=3).audio, SENTENCES[:4]))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
