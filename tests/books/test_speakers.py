"""Test that one speaker of books works for every family, with the rate and the seeds of its model."""

import numpy as np
import pytest

import ane
from ane.books.document import BookChapter, Document
from ane.books.plan import Silences, SpeechIdentity, plan_book
from ane.books.retries import spoken_text
from ane.books.speakers import BookSpeaker
from ane.speech.request import SpeechRequest
from ane.system.errors import UserError
from ane.text.blocks import PARAGRAPH, TextBlock
from ane.text.cast import Cast


@pytest.mark.parametrize(("bundle", "rate"), [(None, 24000), ("demo", 24000)])
def test_a_chunk_is_what_the_synthesizer_speaks_with_the_chunks_seed(bundle, rate):
    synthesizer = ane.load(bundle)
    settings = synthesizer.settings.of("fastest" if bundle else None, synthesizer.model.settings)
    speaker = BookSpeaker(synthesizer, SpeechRequest("", settings=settings, seed=5))
    speeches = [speaker.speak("It rains.", seed) for seed in (3, 4)]
    spoken = [speech.audio for speech in speeches]
    assert not bundle or not any(speech.words for speech in speeches), "words are timed for an output or a check alone"
    assert speaker.sample_rate == synthesizer.sample_rate == rate
    np.testing.assert_array_equal(spoken[0], synthesizer.speak("It rains.", settings=settings, seed=3).audio)
    assert not np.array_equal(*spoken), "another seed gives another sound"


def test_a_voice_of_the_cast_speaks_its_chunk_and_the_check_reads_its_words_alone():
    synthesizer = ane.load("demo")
    settings = synthesizer.settings.of("fastest", synthesizer.model.settings)
    cast = Cast(speakers={"Anna": "michael"})
    speaker = BookSpeaker(synthesizer, SpeechRequest("", settings=settings, seed=5, cast=cast))
    document = Document([BookChapter("", [TextBlock(PARAGRAPH, "“It rains,” said Anna.")])])
    identity = SpeechIdentity(speaker.model, speaker.voice, speaker.settings, 5)
    chunk, narrated = plan_book(document, identity, Silences(), (10, 12), speaker.spoken_as, cast).chunks
    assert [(chunk.text, chunk.voice), (narrated.text, narrated.voice)] == [("“It rains,”", "Anna"), ("said Anna.", "")]
    assert spoken_text(chunk.text, speaker) == chunk.text
    np.testing.assert_array_equal(
        speaker.speak(chunk.text, 3, chunk.voice).audio,
        synthesizer.speak(chunk.text, "michael", settings=settings, seed=3).audio,
    )
    with pytest.raises(UserError, match="line 1, voice 'nobody' of Anna in the cast: no voice 'nobody' in"):
        BookSpeaker(synthesizer, SpeechRequest("", settings=settings, cast={"speakers": {"Anna": "nobody"}})).spoken_as(
            "", "Anna"
        )


def test_settings_that_change_no_sound_are_no_part_of_a_speakers():
    synthesizer = ane.load()
    settings = synthesizer.settings(split=(50, 60))
    speaker = BookSpeaker(synthesizer, SpeechRequest("", settings=settings, seed=5, speed=1.5))
    assert speaker.settings == {"speed": 1.5, "pause": 0.0}
    usual = BookSpeaker(synthesizer, SpeechRequest("", settings=settings, seed=5))
    assert usual.settings == {"speed": 1.0, "pause": 0.0}, "as in the keys of jobs of earlier versions"
    assert speaker.lengths == (50, 60)
