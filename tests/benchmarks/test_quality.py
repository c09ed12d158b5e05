"""The statistics of the quality benchmark on figures with known results, and who the teachers are."""

import argparse
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ane.bundles import open_model
from ane.system.errors import UserError
from benchmarks import quality
from benchmarks.listening import Wave
from benchmarks.quality import JudgedSentence, Sound, default_presets, interval, quality_row, stored_voices, teacher_of
from benchmarks.teachers import teacher_speech


def judged(errors: int, *, seconds: float = 2.0, f0: float = 100.0, ended: bool = True, natural: float = 3.0,
           voice: int = 0) -> JudgedSentence:
    wave = Wave(seconds, f0, 2.0, -23.0, 0.1, 0, True)
    return JudgedSentence("a b c d", "a b c d", errors, 4, natural, 2.5, wave, np.eye(2)[voice], ended)


def test_errors_are_over_all_words_and_lie_in_their_interval():
    row = quality_row("fastest", {"voice": "rms"}, [judged(errors) for errors in (0, 0, 0, 0, 0, 1, 1, 2, 4, 0)], None)
    assert row.figures["wer"] == pytest.approx(8 / 40)
    assert 0 < row.figures["wer_low"] < 0.2 < row.figures["wer_high"] < 0.5
    assert interval(np.zeros(9), np.ones(9)) == (0.0, 0.0)
    assert "similarity" not in row.figures


def test_naturalness_is_the_mean_with_its_interval():
    row = quality_row("fastest", {}, [judged(0, natural=score) for score in (2.0, 3.0, 4.0, 3.0)], None)
    assert (row.value.median, row.value.readings) == (3.0, 4)
    assert 2.0 <= row.value.low < 3.0 < row.value.high <= 4.0


def test_voice_length_and_pitch_are_compared_with_the_teachers_sentence_by_sentence():
    ours = [judged(0, seconds=3.0, f0=110), judged(0, f0=110, ended=False, voice=1)]
    figures = quality_row("fastest", {}, ours, [judged(0), judged(0)]).figures
    assert (figures["longest"], figures["length"], figures["ended"]) == (1.5, 1.25, 0.5)
    assert figures["f0_off"] == pytest.approx(0.1)
    assert figures["similarity"] == pytest.approx(0.5)


def test_teachers_are_those_of_the_manifest_by_the_voices_name():
    demo = open_model("demo")
    one, two = (SimpleNamespace(manifest=SimpleNamespace(source={"teachers": names}))
                for names in (["hibari heart"], ["flite rms", "flite slt"]))
    assert (teacher_of(one, None), teacher_of(two, "slt"), teacher_of(two, "other")) == (
        "hibari heart", "flite slt", None)
    assert stored_voices(demo)[0] == demo.default_voice
    assert len(default_presets(demo)) in (1, 2)
    with pytest.raises(UserError, match="teacher 'nobody': there are hibari heart"):
        teacher_speech("nobody")


@pytest.mark.parametrize("recordings", [False, True])
def test_voices_and_recordings_are_judged_beside_a_teacher_that_can_speak(tmp_path, monkeypatch, recordings):
    """The networks that judge are stand-ins: their weights are not fetched."""
    monkeypatch.setattr(quality, "judge", lambda sound: replace(
        judged(0), wave=Wave.of(sound.audio, sound.rate), text=sound.text, ended=sound.ended))
    monkeypatch.setattr(quality, "teacher_speech", lambda name: lambda text: (np.zeros(2400, np.float32), 24000))
    quality.judged_teacher.cache_clear()
    options = argparse.Namespace(bundle="demo-fast", checkpoints=None, backend="auto", precision="auto", threads=1,
                                 voices=[], presets=[], speeds=[1.0, 2.0], sentences=1, teacher="somebody",
                                 recordings=[], keep=tmp_path)
    if recordings:
        quality.measure(options)
        options.recordings = [str(tmp_path / "demo-fast")]
    result = quality.measure(options)
    systems = [row.competitor for row in result.rows]
    assert systems == ([options.recordings[0]] if recordings else ["somebody", "demo-fast", "demo-fast"])
    assert result.rows[-1].figures["length"] > 1
    if not recordings:
        assert [row.settings for row in result.rows[1:]] == [{}, {"speed": 2.0}]
        assert (tmp_path / "somebody" / "000.wav").is_file()
    quality.judged_teacher.cache_clear()
    assert isinstance(next(quality.recordings(tmp_path / "demo-fast", ["a"])), Sound)
