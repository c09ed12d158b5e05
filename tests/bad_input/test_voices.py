"""A voice or a clip that cannot be used is one clear line."""


import numpy as np
import pytest
import soundfile

RATE = 22050


def test_unknown_voice_names_near_ones(say):
    assert "rms" in say("hello", "-v", "rmss")


@pytest.mark.parametrize(("name", "samples", "word"), [
    ("empty", 0, "empty"), ("three", 3, "at least 0.5 s")])
def test_clip_that_is_empty_or_three_samples_long(say, speech, tmp_path, name, samples, word):
    clip = tmp_path / f"{name}.wav"
    soundfile.write(clip, speech[:samples], RATE)
    line = say("hello", "-v", clip)
    assert clip.name in line
    assert word in line


def test_silent_clip(say, speech, tmp_path):
    soundfile.write(tmp_path / "silent.wav", 0 * speech, RATE)
    assert "silent" in say("hello", "-v", tmp_path / "silent.wav")


def test_truncated_clip(say, speech, tmp_path):
    clip = tmp_path / "cut.wav"
    soundfile.write(clip, speech, RATE)
    clip.write_bytes(clip.read_bytes()[:20000])
    assert "cut.wav" in say("hello", "-v", clip)


def test_clip_with_nan(say, speech, tmp_path):
    speech[500] = np.nan
    soundfile.write(tmp_path / "nan.wav", speech, RATE, subtype="FLOAT")
    assert "NaN" in say("hello", "-v", tmp_path / "nan.wav")


def test_text_file_posing_as_wav(say, tmp_path):
    (tmp_path / "note.wav").write_text("this is a letter, not a sound\n" * 50)
    assert "note.wav" in say("hello", "-v", tmp_path / "note.wav")


def test_an_empty_voice_name_is_refused(say):
    assert "a name is missing" in say("hello", "-v", "")


def test_clip_without_a_header(say, speech, tmp_path):
    (tmp_path / "x.raw").write_bytes(speech.tobytes())
    line = say("hello", "-v", tmp_path / "x.raw")
    assert "x.raw" in line
    assert "wav" in line
