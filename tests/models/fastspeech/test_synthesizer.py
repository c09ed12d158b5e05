"""Test speech from text: length, speed, chunks, batches, and a note for everything that is not spoken."""

import numpy as np
import pytest

from ane.backends import load_backend
from ane.backends.windows import FIRST_LENGTHS
from ane.models.fastspeech.settings import HOP, SAMPLE_RATE, FastSpeechSettings
from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer
from ane.system.errors import UserError
from ane.system.timeline import Timeline
from tests.imported import imported

TEXT = "The more you buy, the more you save."
LONG = "This sentence is one of several. " * 3
NO_PAUSE = FastSpeechSettings(pause=0.0)


def test_the_sound_has_the_length_of_the_mel(synthesizer):
    progress, timeline = [], Timeline()
    speech = synthesizer.speak(TEXT, progress=lambda *report: progress.append(report), timeline=timeline)
    assert progress == [("text", 1, 1, ""), ("mel", 1, 1, ""), ("vocode", 1, 1, "")]
    assert timeline.first_audio is not None
    [mel], [counts] = speech.mels, speech.durations
    assert mel.shape == (80, counts.sum())
    assert speech.audio.shape == (counts.sum() * HOP,)
    assert (speech.sample_rate, speech.audio.dtype, speech.notes) == (SAMPLE_RATE, np.float32, [])
    assert np.abs(speech.audio).max() <= 1
    assert set(speech.seconds_by_phase) == {"text", "mel", "vocode"}
    assert speech.facts == {"speed": 1.0, "frames": counts.sum()}


def test_speed(synthesizer):
    slow, usual, fast = (synthesizer.speak(TEXT, speed=speed).facts["frames"] for speed in (0.5, 1.0, 2.0))
    assert slow == pytest.approx(2 * usual, rel=0.1)
    assert fast == pytest.approx(usual / 2, rel=0.3), "rounding whole frames"


def test_several_texts_share_passes_and_sound_as_alone(synthesizer, monkeypatch):
    texts = [TEXT, "Hello.", "It just works, and it does so every day."]
    alone = [synthesizer.speak(text).mels[0] for text in texts]
    calls, run = [], synthesizer.backend.run
    monkeypatch.setattr(synthesizer.backend, "run", lambda stage, **inputs: calls.append(stage) or run(stage, **inputs))
    together = list(synthesizer.speak_all(texts))
    assert [stage for stage in calls if stage != "vocoder"] == ["text", "mel"]
    for speech, mel in zip(together, alone, strict=True):
        np.testing.assert_allclose(speech.mels[0], mel, atol=1e-4)


def test_a_long_text_is_spoken_in_chunks_with_pauses_and_without_a_frame_lost(synthesizer):
    speech = synthesizer.speak(LONG, settings=NO_PAUSE)
    assert len(speech.chunks) > 1
    assert " ".join(speech.chunks).split() == LONG.split()
    assert max(mel.shape[1] for mel in speech.mels) <= synthesizer.most_frames
    assert len(speech.audio) == HOP * sum(int(counts.sum()) for counts in speech.durations)
    paused = synthesizer.speak(LONG, settings=FastSpeechSettings(pause=0.1))
    assert len(paused.audio) - len(speech.audio) == 2205 * (len(speech.chunks) - 1)


def test_a_chunk_with_too_many_frames_is_split_in_order(synthesizer):
    texts = ["A short one.", "one two three four five six seven eight nine ten", "The last."]
    settings = FastSpeechSettings(batch=2)
    spoken = [speech.chunks for speech in synthesizer.speak_all(texts, speed=0.5, settings=settings)]
    assert len(spoken[1]) > 1
    assert [" ".join(chunks) for chunks in spoken] == texts


@pytest.mark.parametrize("speed", [0.0, 5.0, float("nan")])
def test_a_speed_out_of_range_is_refused(synthesizer, speed):
    with pytest.raises(UserError, match=r"^speed must be from 0\.25 to 4, got"):
        synthesizer.speak(TEXT, speed=speed)


def test_what_cannot_be_split_is_refused(synthesizer):
    with pytest.raises(UserError, match=r"takes \d+ mel frames at speed 0.25, and one pass takes at most 200: raise"):
        synthesizer.speak("incomprehensibilities", speed=0.25)
    with pytest.raises(UserError, match="allow it to be split"):
        synthesizer.speak("one two three four five six seven eight", speed=0.5, settings=FastSpeechSettings(split=None))


def test_notes_name_unknown_phonemes_and_griffin_lim_in_place_of_a_vocoder(files):
    model = imported(files / "checkpoint.pt")
    speech = FastSpeechSynthesizer(model, load_backend("torch:cpu", model)).speak("{HH XX1 AH0} a {hh}")
    assert len(speech.audio) == HOP * speech.facts["frames"]
    assert "Griffin-Lim" in speech.notes[0]
    assert "--vocoder" in speech.notes[0]
    assert "not ARPAbet phonemes and are not spoken: XX1, hh" in speech.notes[1]


def test_durations_of_zero_give_silence_and_a_note(synthesizer):
    predictor = synthesizer.backend.network("fastspeech").length_regulator.duration_predictor
    predictor.linear_layer.bias.fill_(-9)
    predictor.linear_layer.weight.zero_()
    speech = synthesizer.speak("Hello.")
    assert (len(speech.audio), speech.real_time_factor) == (0, float("inf"))
    assert "is silent" in speech.notes[0]


def test_a_stream_joins_to_the_same_sound(synthesizer):
    whole = synthesizer.speak(4 * LONG, speed=0.8)
    stream = synthesizer.stream(4 * LONG, speed=0.8)
    assert (stream.seconds, stream.real_time_factor) == (0, float("inf"))
    pieces = list(stream)
    assert len(pieces) > len(stream.chunks) > 1
    assert len(pieces[0]) < FIRST_LENGTHS[-1] * HOP, "short, so that it comes soon"
    np.testing.assert_allclose(np.concatenate(pieces), whole.audio, atol=1e-4)
    assert (stream.facts, stream.seconds) == (whole.facts, whole.seconds)
    assert set(stream.seconds_by_phase) == {"text", "mel", "vocode"}
    stream.close()


@pytest.mark.parametrize("text", ["", "  ", "...", "{XX}"])
def test_nothing_to_say(synthesizer, text):
    with pytest.raises(UserError, match="nothing to say"):
        synthesizer.speak(text)


def test_pauses_and_ssml_change_single_chunks(synthesizer):
    plain = synthesizer.speak(TEXT, settings=NO_PAUSE)
    paused = synthesizer.speak(f"[pause:0.5s]{TEXT} [pause:1s]", settings=NO_PAUSE)
    assert len(paused.audio) == len(plain.audio) + 1.5 * SAMPLE_RATE
    ssml = f'<speak><prosody rate="50%" volume="soft">{TEXT}</prosody><break time="1s"/>{TEXT}</speak>'
    slow = synthesizer.speak(ssml, settings=NO_PAUSE)
    # the slow part needs more frames than the model has positions, so it becomes two chunks
    *slow_mels, last = slow.mels
    assert sum(mel.shape[1] for mel in slow_mels) == pytest.approx(2 * plain.mels[0].shape[1], rel=0.1)
    np.testing.assert_allclose(last, plain.mels[0], atol=1e-4)
    np.testing.assert_allclose(np.concatenate(list(synthesizer.stream(ssml, settings=NO_PAUSE))), slow.audio, atol=1e-4)


def test_a_word_lasts_as_long_as_its_symbols_in_a_stream_too(synthesizer):
    """ "b" of the first chunk is symbols 2 to 3 of "a bc."; the second chunk begins after the first and the pauses."""
    settings, text = FastSpeechSettings(split=(1, 6), pause=0.1), "a bc. [pause:1s] d e"
    speech = synthesizer.speak(text, settings=settings)
    words = speech.words
    assert [word.word for word in words] == ["a", "bc.", "d", "e"]
    ends = [np.concatenate(([0], frames.cumsum())) * 256 / 22050 for frames in speech.durations]
    assert (words[1].start, words[1].end) == pytest.approx((ends[0][2], ends[0][4]))
    assert words[3].start == pytest.approx(ends[0][-1] + 1.1 + ends[1][2], abs=1e-4)
    stream = synthesizer.stream(text, settings=settings)
    next(stream)
    assert [word.word for word in stream.words] == ["a", "bc."], "those of a chunk come with its first piece"
    list(stream)
    assert [word.word for word in stream.words] == [word.word for word in words]
    np.testing.assert_allclose(
        [(word.start, word.end) for word in stream.words], [(word.start, word.end) for word in words]
    )
