"""Test that a wrong call of the Python API is refused at once, in a line that says which argument is wrong and why."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import ane
from ane.models.tortoise.settings import TortoiseSettings
from ane.system.errors import InvalidValueError, NoEffectError, NotFoundError, UserError
from tests.refusals import assert_refused

SOUND = 0.1 * np.random.default_rng(0).standard_normal(48000).astype(np.float32)
ROW = np.zeros((1, 192), np.float32)
TORTOISE = TortoiseSettings()


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda h, s: list(h.speak_all(["One.", "", "Two."])), InvalidValueError, "texts[1]: there is nothing to say"),
        (lambda h, s: list(h.speak_all(["a", None])), InvalidValueError, "texts[1]: text must be a text, got None"),
        (lambda h, s: list(s.speak_all(["a", "[voice:x] b"])), NotFoundError, "texts[1]: line 1, voice 'x'"),
        (lambda h, s: h.speak_all("one text"), InvalidValueError, "texts must be a list of texts, got 'one text'"),
        (lambda h, s: h.speak_all(["a"], speed=99), InvalidValueError, "speed must be from 0.25 to 4, got 99"),
        (
            lambda h, s: h.stream("hi", best=2),
            InvalidValueError,
            "best is a setting: pass settings=ane.Settings(best=…",
        ),
        (lambda h, s: h.speak("hi", no_split=True), InvalidValueError, "no_split is a setting: pass settings=ane.Set"),
        (lambda h, s: h.speak("hi", tone=1), InvalidValueError, "tone is unknown"),
        (
            lambda h, s: h.speak("hi", voice="nobody"),
            NoEffectError,
            "voice has no effect on heart, whose only voice is",
        ),
        (lambda h, s: s.voice_of_clips(np.stack([SOUND, SOUND], 1), 24000), InvalidValueError, "got shape (48000, 2)"),
        (lambda h, s: s.voice_of_clips(SOUND.tolist(), 24000), InvalidValueError, "clips must be arrays of samples"),
        (lambda h, s: s.voice_of_clips([SOUND, SOUND[None]], 24000), InvalidValueError, "clip 2 has shape (1, 48000)"),
        (lambda h, s: s.voice_of_clips(SOUND, 0), InvalidValueError, "sample_rate must be from 4000 to 768000 Hz"),
        (lambda h, s: s.voice_of_clips(SOUND, float("nan")), InvalidValueError, "sample_rate must be from"),
        (lambda h, s: s.voice_of_clips([], 24000), InvalidValueError, "clips is empty: give at least one clip"),
        (lambda h, s: ane.Voice("a", "b", "x"), InvalidValueError, "ar must be an array of shape (1, width), got 'a'"),
        (
            lambda h, s: ane.Voice(ROW, np.zeros((2, 9)), "x"),
            InvalidValueError,
            "diffusion is float64 (2, 9), but a latent is",
        ),
        (
            lambda h, s: ane.Voice(ROW * np.nan, ROW, "x"),
            InvalidValueError,
            "ar has NaN, infinite or far too large values",
        ),
        (
            lambda h, s: ane.Voice(ROW[:, :0], ROW, "x"),
            InvalidValueError,
            "ar is float32 (1, 0), but a latent is one row",
        ),
        (lambda h, s: ane.Voice(ROW, ROW, 3), InvalidValueError, "name must be a text, got 3"),
        (lambda h, s: ane.transcribe("none.wav"), NotFoundError, "none.wav: no such file"),
        (lambda h, s: ane.transcribe("a.wav"), NotFoundError, "model must name a Whisper bundle"),
        (
            lambda h, s: ane.Lexicon([("a", "b")]),
            InvalidValueError,
            "entries must be a mapping from words to respellings, got [('a', 'b')]",
        ),
        (
            lambda h, s: ane.Lexicon("abc"),
            InvalidValueError,
            "entries must be a mapping from words to respellings, got",
        ),
        (lambda h, s: ane.Lexicon([1]), InvalidValueError, "entries must be a mapping from words to respellings, got"),
        (lambda h, s: h.speak("a").save(""), InvalidValueError, "path is empty: write the name of a file"),
        (lambda h, s: ane.save_voice("", ane.Voice(ROW, ROW, "x")), InvalidValueError, "path is empty: write the name"),
        (lambda h, s: h.speak("a", settings=3), InvalidValueError, "settings must be ane.Settings or"),
        (lambda h, s: h.speak(h.request("a")), InvalidValueError, "text must be a text, got SpeechRequest("),
        (lambda h, s: h.prepare(settings=3), InvalidValueError, "settings must be ane.Settings or"),
        (lambda h, s: ane.load("nobody"), NotFoundError, "no bundle is named 'nobody'"),
        (lambda h, s: ane.load("/nowhere/model"), NotFoundError, "there is no bundle at /nowhere/model"),
        (lambda h, s: ane.load(backend="abacus"), NotFoundError, "no backend is named 'abacus'"),
        (lambda h, s: s.speak("a", voice="nobody"), NotFoundError, "no voice 'nobody'"),
        (lambda h, s: s.speak("[voice:nobody] a"), NotFoundError, "no voice is named 'nobody'"),
        (lambda h, s: ane.transcribe("nowhere.wav", "demo"), NotFoundError, "nowhere.wav: no such file"),
        (lambda h, s: ane.read_lexicon("nowhere.tsv"), NotFoundError, "cannot read the lexicon nowhere.tsv"),
        (lambda h, s: h.speak("a", speed=9), InvalidValueError, "speed must be from"),
        (lambda h, s: h.speak("a", voice=np.zeros(9)), InvalidValueError, "an array: make a voice of it"),
        (lambda h, s: h.speak("a", lexicon={"a": "!"}), InvalidValueError, "the respelling '!' has no letter"),
        (lambda h, s: h.speak("a", settings=ane.Settings(steps=9)), NoEffectError, "steps has no effect on heart"),
        (
            lambda h, s: s.request("a", settings=ane.Settings(temperature=0.0)),
            InvalidValueError,
            "temperature must be from 0.01 to 100, got 0",
        ),
        (lambda h, s: h.voice_of_clips([], 24000), UserError, "cannot make a voice from clips"),
        (lambda h, s: h.speak("a", lexicon="words.tsv"), InvalidValueError, "got 'words.tsv': use read_lexicon"),
        (
            lambda h, s: ane.load("demo", backend="onnx"),
            UserError,
            "make them with `ane convert demo --to onnx -o DIR`",
        ),
        (lambda h, s: ane.load(3), InvalidValueError, "bundle must be a name or a path, got 3"),
        (lambda h, s: ane.load(backend=3), InvalidValueError, "backend must be the name of a backend, got 3"),
        (lambda h, s: h.speak("a").save(3), InvalidValueError, "path must be a path, got 3"),
        (lambda h, s: list(h.feed([1, 2])), InvalidValueError, "texts must be pieces of text, got 1"),
        (lambda h, s: h.feed(3), InvalidValueError, "texts must be pieces of text, got 3"),
        (lambda h, s: s.voice_of_clips(["x.wav"], 24000), InvalidValueError, "clips must be arrays"),
        (lambda h, s: s.voice_of_clips(3, 24000), InvalidValueError, "clips must be arrays"),
        (lambda h, s: s.voice_of_clips(np.ones(9), "a"), InvalidValueError, "sample_rate must be a number"),
        (lambda h, s: s.voice_of_clips(np.ones(9), 9, name=3), InvalidValueError, "name must be a text"),
        (lambda h, s: ane.load_voice(3), InvalidValueError, "path must be a path, got 3"),
        (lambda h, s: ane.save_voice(3, None), InvalidValueError, "path must be a path, got 3"),
        (lambda h, s: ane.save_voice("a.safetensors", 3), InvalidValueError, "voice must be a voice, got 3"),
        (lambda h, s: ane.read_lexicon(3), InvalidValueError, "path must be a path, got 3"),
        (lambda h, s: ane.Lexicon(3), InvalidValueError, "entries must be a mapping from words to respellings, got 3"),
        (
            lambda h, s: ane.Lexicon(["a"]),
            InvalidValueError,
            "entries must be a mapping from words to respellings, got ['a']",
        ),
        (lambda h, s: ane.Lexicon(unreadable=[]), InvalidValueError, "unreadable must be one of"),
        (lambda h, s: ane.transcribe(3), InvalidValueError, "path must be a path, got 3"),
        (lambda h, s: ane.transcribe("a.wav", 3), InvalidValueError, "model must be a name or a path, got 3"),
        (lambda h, s: h.speak("a").to_bytes("exe"), InvalidValueError, "format must be one of "),
        (lambda h, s: h.speak("a", sed=1), InvalidValueError, "sed is unknown: do you mean seed?"),
        (lambda h, s: s.speak("a", seed="a"), InvalidValueError, "seed must be a whole number, got 'a'"),
        (lambda h, s: h.speak("a", seed=1.5), InvalidValueError, "seed must be a whole number, got 1.5"),
        (lambda h, s: h.speak("a", settings=TORTOISE), InvalidValueError, "the speaker's class `settings`"),
        (lambda h, s: s.speak("a", settings=TORTOISE, preset="fast"), InvalidValueError, "settings and preset exclude"),
        (lambda h, s: s.speak("a", voice=3), InvalidValueError, "voice must be a name, a path or a voice from prepare"),
        (lambda h, s: s.speak("a", voice=Path("none.wav")), NotFoundError, "none.wav: no such file or folder in"),
        (lambda h, s: h.speak_all(None), InvalidValueError, "texts must be a list of texts, got None"),
        (lambda h, s: h.speak_all(3), InvalidValueError, "texts must be a list of texts, got 3"),
    ],
)
def test_a_wrong_argument_is_named(
    call: Callable[[ane.Speaker, ane.Speaker], Any],
    kind: type[UserError],
    message: str,
    heart: ane.Speaker,
    demo: ane.Speaker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    soundfile.write("a.wav", SOUND, 24000)
    with pytest.raises(UserError) as caught:
        call(heart, demo)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert type(caught.value) is type(pickle.loads(pickle.dumps(caught.value))) is kind
    if kind is InvalidValueError:
        assert str(caught.value).startswith(caught.value.parameter)
        assert caught.value.parameter.isidentifier()


def test_a_voice_of_other_numbers_becomes_two_rows_of_float32(demo: ane.Speaker) -> None:
    latents = np.linspace(0, 1, 192), np.linspace(0, 1, 160)
    made, rows = ane.Voice(*latents, "x"), ane.Voice(*(row[None].astype(np.float32) for row in latents), "x")
    assert made == rows
    assert made.ar.dtype == made.diffusion.dtype == np.float32
    assert (made.ar.shape, made.diffusion.shape) == ((1, 192), (1, 160))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": ""}, "nothing to say"),
        ({"text": "Hi.", "speed": 99}, "speed must be from"),
        ({"text": "Hi.", "voice": "nobody"}, "no voice 'nobody'"),
        ({"text": "Hi.", "voice": "heart&nobody:2"}, "give every voice a weight"),
        ({"text": "[voice:nobody] Hi."}, "no voice is named 'nobody'"),
        ({"text": "Hi.", "settings": ane.Settings(best=2, candidates=2)}, "best must be 1, got 2"),
    ],
)
def test_both_kinds_of_streams_refuse_a_request_when_they_are_called(
    demo: ane.Speaker, arguments: dict[str, Any], message: str
) -> None:
    assert_refused(re.escape(message), demo.stream, **arguments)
    assert_refused(re.escape(message), demo.stream_async, **arguments)


async def test_an_asynchronous_stream_still_speaks_and_a_voice_of_files_waits_for_the_first_piece(
    demo: ane.Speaker, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "a.wav", SOUND, 24000)

    samples = [len(piece) async for piece in demo.stream_async("Hi.", voice=tmp_path, seed=1)]
    assert sum(samples) == sum(map(len, demo.stream("Hi.", voice=tmp_path, seed=1)))


def test_a_stream_that_is_closed_or_collected_says_so(heart: ane.Speaker) -> None:
    closed = heart.stream("Hello there.")
    closed.close()
    assert_refused("^this stream was closed or failed, so there is nothing to collect", closed.collect)
    with heart.stream("Hello there.") as collected:
        assert collected.collect().seconds > 0.5
        assert_refused("^this stream was collected already: keep the Speech that collect returned", collected.collect)
    read = heart.stream("Hello there.")
    next(read)
    assert_refused(r"^the first [\d.]+ s of this stream were read already", read.collect)
    with pytest.raises(AttributeError, match=r"^this incremental stream has no collect$"):
        heart.feed(["a"]).collect()  # type: ignore[attr-defined]


def test_a_word_that_the_voice_cuts_is_noted(heart: ane.Speaker, caplog: pytest.LogCaptureFixture) -> None:
    note = "the word 'abcdefghijabcdefghijabcd…' is cut after 24 letters: respell it, or put spaces in it"
    speech = heart.speak(f"Say {'abcdefghij' * 300} and {'abcdefghij' * 300} now.")
    assert speech.notes == [note]
    assert [record.getMessage() for record in caplog.records] == [note]
    assert heart.stream("abcdefghij" * 3).notes == [note]
    assert heart.speak("abcdefghijabcdefghijabcd antidisestablishmentarianism").notes == []
    assert [speech.notes for speech in heart.speak_all(["Hi.", "abcdefghij" * 3])] == [[], [note]]
