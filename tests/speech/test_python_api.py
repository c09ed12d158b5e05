"""Test the Python API: settings, lexicons, voices, bytes of sound, transcripts, errors, and arguments with types."""

import copy
import inspect
import io
import os
import pickle
import pydoc
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np
import pytest
import soundfile

import ane
from ane.commands.speech_options import OPTIONS
from ane.speech.calls import SpeechCall
from ane.speech.options import SpeechOptions
from ane.speech.speaker import Speaker
from tests.imported import imported
from tests.models.whisper.random_whisper import write_hugging_face
from tests.refusals import assert_refused

TEXT = "It was late."


def test_importing_the_package_imports_no_engine_and_no_numpy() -> None:
    code = "import sys, ane; assert {*ane.__all__} <= {*dir(ane)}; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in modules if name.split(".")[0] == "ane"} == {"ane", "ane.system", "ane.system.errors"}
    assert not {"torch", "numpy", "pydantic", "onnxruntime"} & {*modules}
    assert all(getattr(ane, name) for name in ane.__all__)


def test_settings_change_those_of_the_model_and_its_preset(demo: ane.Speaker) -> None:
    request = demo.request(TEXT, preset="1x10", settings=ane.Settings(candidates=2, temperature=0.5, noise=0.9))
    chosen, own = request.settings, demo.request(TEXT, preset="1x10").settings
    assert (chosen.candidates, chosen.sampling.temperature, chosen.diffusion.temperature) == (2, 0.5, 0.9)
    assert (chosen.sampling.max_codes, chosen.split, chosen.silence) == (own.sampling.max_codes, own.split, own.silence)
    assert demo.speak(TEXT, preset="fastest", settings=ane.Settings(candidates=2), seed=1).seconds > 0.5
    assert repr(ane.Settings(candidates=2)) == "Settings(candidates=2)"


def test_a_lexicon_is_made_of_words_and_their_respellings(heart: ane.Speaker) -> None:
    words = {"Nguyen": "win"}
    assert heart.speak("a", voice="default") == heart.speak("a")
    assert heart.speak("Nguyen.", lexicon=words).chunks == ["win."]
    assert heart.speak("Nguyen.", lexicon=ane.Lexicon(words)).chunks == ["win."]


def test_a_voice_is_made_of_arrays(demo: ane.Speaker, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clips = [0.1 * rng.standard_normal(2 * 22050).astype(np.float32) for _ in range(2)]
    for number, clip in enumerate(clips):
        soundfile.write(tmp_path / f"{number}.wav", clip, 22050, subtype="FLOAT")
    voice, read = demo.voice_of_clips(clips, 22050), demo.prepare(tmp_path)
    np.testing.assert_array_equal(voice.ar, read.ar)
    np.testing.assert_array_equal(voice.diffusion, read.diffusion)
    ane.save_voice(tmp_path / "both.safetensors", voice)
    assert demo.speak(TEXT, voice=voice, seed=1) == demo.speak(TEXT, voice=tmp_path / "both.safetensors", seed=1)


@pytest.mark.parametrize("form", ["wav", "mp3", "flac", "ogg", "WAV"])
def test_speech_becomes_the_bytes_of_a_file(heart: ane.Speaker, form: str, tmp_path: Path) -> None:
    speech = heart.speak(TEXT)
    speech.save(tmp_path / f"a.{form}")
    data = speech.to_bytes(form)
    assert len(data) == len(speech.to_bytes(f".{form}"))
    assert len(data) == (tmp_path / f"a.{form}").stat().st_size
    audio, rate = soundfile.read(io.BytesIO(data))
    assert rate == speech.sample_rate
    assert abs(len(audio) / rate - speech.seconds) < 0.1


def test_speech_is_compared_shown_copied_and_sent(heart: ane.Speaker) -> None:
    speech = heart.speak(f"{TEXT} " * 9)
    assert speech == copy.deepcopy(speech) == pickle.loads(pickle.dumps(speech))
    assert speech != heart.speak(TEXT)
    assert len(repr(speech)) < 100
    assert TEXT in repr(speech)
    assert list(heart.speak_all([])) == []


@pytest.mark.parametrize(
    ("made", "other"),
    [
        (ane.Lexicon({"a": "b", "c": "d"}), ane.Lexicon({"a": "b"})),
        (ane.Lexicon({"a": "b"}), ane.Lexicon({"a": "b"}, unreadable="skip")),
        (ane.Lexicon({f"word{n}": "b" for n in range(999)}), ane.Lexicon()),
        (ane.Voice(np.ones((1, 99)), np.ones((1, 9)), "pat"), ane.Voice(np.ones((1, 99)), np.ones((1, 9)), "ann")),
        (ane.Voice(np.ones((1, 99)), np.ones((1, 9)), "pat"), ane.Voice(np.ones((1, 99)), np.zeros((1, 9)), "pat")),
    ],
)
def test_a_voice_and_a_lexicon_are_compared_shown_copied_and_sent(made: Any, other: Any) -> None:
    copies = copy.deepcopy(made), pickle.loads(pickle.dumps(made))
    assert all(same == made and hash(same) == hash(made) and same != other and made != "pat" for same in copies)
    assert len(repr(made)) < 100
    assert "0x" not in repr(made)
    assert "pat" in repr(made) or "word" in repr(made) or "'a'" in repr(made)


def test_a_block_closes_its_stream_and_only_a_whole_stream_is_collected(heart: ane.Speaker) -> None:
    with heart.stream(f"{TEXT} {TEXT}") as stream:
        next(stream)
        assert_refused(r"^the first [\d.]+ s of this stream were read already", stream.collect)
    assert next(stream, None) is None
    with heart.stream(TEXT) as stream:
        np.testing.assert_allclose(stream.collect().audio, heart.speak(TEXT).audio, atol=0.05)


def test_a_speaker_is_sent_to_another_process_by_the_name_of_its_bundle(heart: ane.Speaker) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(ane.Speaker.speak, heart, TEXT).result() == heart.speak(TEXT)
    made = type(heart)(heart.model, heart.backend)
    assert_refused(r"cannot be pickled, because ane.load did not make it", pickle.dumps, made)


def test_a_recording_is_transcribed_by_one_call(tmp_path: Path) -> None:
    imported(write_hugging_face(tmp_path), tmp_path / "whisper")
    soundfile.write(tmp_path / "a.wav", 0.1 * np.random.default_rng(0).standard_normal(16000), 16000)
    transcript = ane.transcribe(tmp_path / "a.wav", tmp_path / "whisper", language="en", word_times=True)
    assert isinstance(transcript, ane.Transcript)
    assert transcript.words == tuple(word for segment in transcript.segments for word in segment.words)
    assert len(repr(transcript)) < 120


ROOT = Path(__file__).parents[2]
PROGRAM = """
import ane

async def program(speaker: ane.Speaker) -> None:
    speaker.speak("a", "heart", seed=1, speed=2, progress=print, lexicon={"a": "b"}, settings=ane.Settings(steps=9))
    speaker.speak(text="a", cast={"narrator": "x"}, voice=speaker.voice_of_clips([], 24000), lexicon=ane.Lexicon())
    with speaker.stream("a") as stream:
        speech: ane.Speech = stream.collect()
        speeches = [*speaker.speak_all(("a", "b")), *speaker.speak_all({"a": 1}), *speaker.speak_all(["a"], seed=1)]
        known = speech.seed + stream.tokens, speech.voice.title(), speech.mels[0].shape
    words = [word.start for word in ane.transcribe("a.wav", model="whisper", word_times=True).words]
    speaker.stream("a", sed=1)  # wrong
    speaker.speak("a", seed="a")  # wrong
    speaker.feed(["a"], voice="x", speed="fast")  # wrong
    speaker.speak_all("a")  # wrong
    speaker.prepare(voice=3)  # wrong
    list(speaker.speak_all(["a"], lexicn=None))  # wrong
    speaker.speak("a", settings={"candidates": 4})  # wrong
    speaker.speak("a", voice=1)  # wrong
    ane.Settings(candidats=4)  # wrong
    ane.Settings(sampler="euler")  # wrong
    ane.transcribe("a.wav", modle="whisper")  # wrong
    ane.load("demo", threads="2")  # wrong
    ane.Lexicon({"a": 1})  # wrong
    (await speaker.speak_async("a")).to_bytes(3)  # wrong
    speaker.speak("a").to_byte("mp3")  # wrong
    speaker.stream("a").sead  # wrong
    ane.Lexicon(unreadable="foo")  # wrong
    ane.read_lexicon("a.tsv", "foo")  # wrong
    ane.transcribe("a.wav").segment  # wrong
    ane.Speeker  # wrong
"""
FAULTY = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")]


def faulty_lines(command: list[str], folder: Path) -> list[int]:
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [*command, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)},
    )
    found = {
        int(line.split("program.py:")[1].split(":")[0])
        for line in done.stdout.splitlines()
        if "program.py:" in line and "error" in line
    }
    assert done.returncode == 1, done.stdout + done.stderr
    return sorted(found)


def test_mypy_refuses_wrong_fields(tmp_path: Path) -> None:
    # other packages are large, and the API has their types only as names (numpy's stubs are followed all the same)
    (tmp_path / "mypy.ini").write_text("[mypy]\nfollow_imports = skip\n[mypy-ane.*]\nfollow_imports = silent\n")
    options = ["--strict", "--python-version", "3.11", "--ignore-missing-imports", "--cache-dir", os.devnull]
    assert faulty_lines([sys.executable, "-m", "mypy", *options], tmp_path) == FAULTY


def test_pyright_refuses_wrong_fields(tmp_path: Path) -> None:
    assert (
        faulty_lines(
            [sys.executable, "-m", "basedpyright", "--level", "error", "--pythonpath", sys.executable], tmp_path
        )
        == FAULTY
    )


def test_every_way_to_speak_takes_the_same_fields() -> None:
    fields = inspect.signature(SpeechCall).parameters
    assert {"text", "voice", "seed", "speed", "progress"} <= set(fields)
    for method in (Speaker.speak, Speaker.stream, Speaker.speak_in_chunks, Speaker.speak_async, Speaker.stream_async):
        assert list(inspect.signature(method).parameters) == ["self", *fields]
    for method in (Speaker.speak_all, Speaker.feed):
        assert list(inspect.signature(method).parameters) == ["self", "texts", *list(fields)[1:]]


def test_help_shows_every_argument_with_its_type_default_and_meaning() -> None:
    shown = inspect.signature(Speaker.speak).parameters
    assert shown["text"].annotation is str
    assert (shown["seed"].annotation, shown["seed"].default) == (int | None, None)
    assert (shown["voice"].annotation, shown["voice"].default) == (str | Path | ane.Voice | None, None)
    described = re.findall(r"^        (\w+): [A-Z`]", pydoc.plain(pydoc.render_doc(Speaker.speak)), re.M)
    assert described == [*list(shown)[1:], "UserError"]


def test_settings_at_the_top_level_are_the_options_of_say() -> None:
    hints = get_type_hints(SpeechOptions)
    for name, option in OPTIONS.items():
        kind = tuple[int, int] if option.type is tuple else option.type
        assert hints.pop(name) == (Literal[option.choices] if option.choices else kind) | None, name
    assert hints.keys() == {"no_split"}
