"""One speaker of books for every family: its rate and its seeds are those of the model."""

import numpy as np
import pytest

import ane
from ane.books.speakers import BookSpeaker


@pytest.mark.parametrize(("bundle", "rate"), [(None, 24000), ("demo", 24000)])
def test_a_chunk_is_what_the_synthesizer_speaks_with_the_chunks_seed(bundle, rate):
    synthesizer = ane.load(bundle)
    settings = synthesizer.settings.of("fastest" if bundle else None, synthesizer.model.settings)
    speaker = BookSpeaker(synthesizer, None, settings, 5)
    speeches = [speaker.speak("It rains.", seed) for seed in (3, 4)]
    spoken = [speech.audio for speech in speeches]
    assert not bundle or not any(speech.words for speech in speeches), "words are timed for an output or a check alone"
    assert speaker.sample_rate == synthesizer.sample_rate == rate
    np.testing.assert_array_equal(spoken[0], synthesizer.speak("It rains.", settings=settings, seed=3).audio)
    assert not np.array_equal(*spoken), "another seed gives another sound"


def test_settings_that_change_no_sound_are_no_part_of_a_speakers():
    synthesizer = ane.load()
    settings = synthesizer.settings(split=(50, 60))
    speaker = BookSpeaker(synthesizer, None, settings, 5, speed=1.5)
    assert speaker.settings == {"speed": 1.5, "pause": 0.0}
    usual = BookSpeaker(synthesizer, None, settings, 5)
    assert usual.settings == {"speed": 1.0, "pause": 0.0}, "as in the keys of jobs of earlier versions"
    assert speaker.lengths == (50, 60)
