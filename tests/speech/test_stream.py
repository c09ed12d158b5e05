"""The result of a request."""

from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
import soundfile

import ane
from ane.audio import read_audio
from ane.speech.stream import Speech
from ane.system.errors import UserError


@pytest.fixture
def speech() -> Speech:
    audio = (0.5 * np.sin(np.arange(24000) / 20)).astype(np.float32)
    return Speech(audio, 24000, ["Hello."], {"seed": 1, "voice": "ann", "codes": 40}, elapsed=0.5)


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_save_writes_the_audio_in_the_format_of_the_suffix(speech, tmp_path, suffix):
    path = tmp_path / f"hello{suffix}"
    speech.save(str(path))
    audio, rate = read_audio(path)
    assert rate == 24000
    np.testing.assert_allclose(audio, speech.audio, atol=2e-4)


def test_save_refuses_another_suffix(speech, tmp_path):
    with pytest.raises(UserError, match=r"\.wav"):
        speech.save(tmp_path / "hello.txt")
    assert list(tmp_path.iterdir()) == []


def test_the_real_time_factor_is_seconds_of_work_for_a_second_of_audio(speech):
    assert (speech.seconds, speech.real_time_factor) == (1.0, 0.5)


def test_a_notebook_shows_a_player(speech):
    shown = speech._repr_html_()
    audio, rate = soundfile.read(BytesIO(b64decode(shown.partition("base64,")[2].partition('"')[0])))
    assert shown.startswith("<audio controls")
    assert rate == 24000
    np.testing.assert_allclose(audio, speech.audio, atol=1e-4)


@pytest.mark.parametrize(("bundle", "voices"), [("demo", ["rms", "slt", "random"]), ("demo-fast", [])])
def test_a_speaker_names_its_voices(bundle, voices, monkeypatch, tmp_path):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    speaker = ane.load(bundle, "torch")
    assert speaker.voices == voices
