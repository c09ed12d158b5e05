"""Speech whose phonemes have exact times."""

import numpy as np
import pytest

from ane.models.fastspeech.stages import HOP
from ane.system.errors import UserError
from tests.training.timed_teacher import SECONDS, SILENT, ToneTeacher
from training.timed_speech import (
    LEAD_FRAMES,
    PHONES,
    TAIL_FRAMES,
    TimedFlite,
    load_timed_shard,
    phone_index,
    speak_timed_shard,
    timed_clip,
    timed_hours,
)

FRAMES = SECONDS * 22050 / HOP      # of a phoneme


def test_segments_add_up_to_the_mel_and_the_sound():
    clip = timed_clip(ToneTeacher("rms"), "a fine day, it is", 1.0)
    assert clip.words == ["a", "fine", "day", "it", "is"]
    assert clip.segments[:, 2].sum() == len(clip.mel) == len(clip.audio) // HOP
    assert clip.mel.shape[1] == 80
    assert clip.segments[-1].tolist() == [0, -1, TAIL_FRAMES]
    assert clip.segments[0, 2] == pytest.approx(LEAD_FRAMES + FRAMES, abs=1)
    assert [word for _, word, _ in clip.segments].count(-1) == 2, "the comma, and the end"


def test_a_phoneme_is_heard_at_its_time():
    clip = timed_clip(ToneTeacher("rms"), "az, za", 1.0)
    pause = next(index for index, (phone, _, _) in enumerate(clip.segments) if phone == 0)
    first = int(clip.segments[:pause, 2].sum())
    energy = np.abs(clip.audio.reshape(-1, HOP).astype(float)).mean(axis=1)
    assert energy[first + 1:first + clip.segments[pause, 2] - 1].max() < 0.1 * energy.max()
    assert energy[:1].max() < 0.1 * energy.max(), "silence before the words"


def test_speech_is_as_much_longer_as_asked():
    short, long = (timed_clip(ToneTeacher("rms"), "one fine day", stretch) for stretch in (0.5, 2.0))
    spoken = [len(clip.mel) - LEAD_FRAMES - TAIL_FRAMES for clip in (short, long)]
    assert spoken[1] == pytest.approx(4 * spoken[0], abs=2)


def test_a_text_that_is_pronounced_otherwise_is_dropped():
    teacher = ToneTeacher("rms")
    teacher.speak = lambda text, stretch: ToneTeacher.speak(teacher, text.replace("dr", "doctor"), stretch)
    assert timed_clip(teacher, "dr no", 1.0) is None
    assert timed_clip(teacher, "no", 1.0) is not None


def test_shards_keep_their_clips(tmp_path, monkeypatch):
    monkeypatch.setattr("training.timed_speech.flite_voice", ToneTeacher)
    path = tmp_path / "0000-rms.npz"
    texts = ["one two", f"no{SILENT} three", "four, five"] * 10
    speak_timed_shard(path, texts, "rms", None, 3)
    clips = load_timed_shard(path)
    assert [clip.text for clip in clips] == texts
    assert clips[1].words == [f"no{SILENT}", "three"]
    stretches = {clip.stretch for clip in clips}
    assert 1.0 in stretches
    assert min(stretches) < 0.8 < 1.25 < max(stretches)
    for clip in clips:
        assert clip.segments[:, 2].sum() == len(clip.mel) == len(clip.audio) // HOP
    assert timed_hours(path) == pytest.approx(sum(len(clip.audio) for clip in clips) / 22050 / 3600)


@pytest.mark.parametrize(("name", "stress", "expected"), [
    ("ax", "0", "AH0"), ("ih", "1", "IH1"), ("er", "0", "ER0"), ("hh", "1", "HH"), ("zh", "0", "ZH")])
def test_phonemes_of_flite_are_written_in_arpabet(name, stress, expected):
    assert PHONES[phone_index(name, stress)] == expected


def test_a_missing_library_is_reported_with_its_package(tmp_path):
    with pytest.raises(UserError, match=r"Debian: libflite1.*--flite-libraries"):
        TimedFlite("rms", str(tmp_path))
