"""Test the synthesizer on a small graph: parallel and sequential speech are equal, errors quote their text, streams."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ane
from ane.backends.onnx.graph_file import GraphFunction
from ane.models.kitten.synthesizer import KittenSynthesizer, spoken_form, trim_end, word_ids
from ane.models.styletts.graph import VOCABULARY
from ane.models.styletts.settings import KittenSettings
from ane.speech.request import SpeechContext
from ane.speech.stream import Speech
from ane.system.errors import UserError
from tests.imported import imported
from tests.models.kitten.kitten_model import HOP, kitten_speaker, letters, write_kitten_model
from tests.refusals import assert_refused

PUBLISHED = KittenSettings(published=True)


def sentences(count: int) -> str:
    return " ".join(f"Sentence {'very ' * (number % 4)}long, is it not?" for number in range(count))


def speak(folder: Path, threads: int, text: str, **options) -> Speech:
    return kitten_speaker(folder, threads).speak(text, **options)


def test_parallel_is_sequential_every_time(folder: Path) -> None:
    text, progress = sentences(15), []
    expected = speak(folder, 1, text, settings=PUBLISHED)
    assert len(expected.chunks) == 15
    synthesizer = kitten_speaker(folder, 3)
    for _ in range(3):
        progress.clear()
        speech = synthesizer.speak(text, settings=PUBLISHED, progress=lambda *call: progress.append(call))
        assert speech.chunks == expected.chunks
        np.testing.assert_array_equal(speech.audio, expected.audio)
        assert progress == [("synthesis", done, 15, "") for done in range(1, 16)]


def test_a_graph_with_noise_keeps_its_lengths_and_loudness(tmp_path: Path) -> None:
    folder = write_kitten_model(tmp_path / "noisy", noise=0.1)
    sequential, parallel_speech = (speak(folder, workers, sentences(15), settings=PUBLISHED) for workers in (1, 3))
    assert sequential.audio.shape == parallel_speech.audio.shape
    loudness = [np.sqrt(np.mean(speech.audio**2)) for speech in (sequential, parallel_speech)]
    assert loudness[0] == pytest.approx(loudness[1], rel=0.02)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_failed_chunk_names_its_text_and_cancels_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    run, runs = GraphFunction.__call__, []

    def failing(self, **inputs):
        runs.append(inputs)
        if inputs["input_ids"].size > 300:  # the longest chunk, which is the first
            raise UserError("no memory left")
        time.sleep(0.05)
        return run(self, **inputs)

    monkeypatch.setattr(GraphFunction, "__call__", failing)
    text = f"Here fails {'this ' * 70}one. {sentences(14)}"
    assert_refused(
        r"chunk 1 of 15, 'here fails this this .*: no memory left", speak, folder, workers, text, settings=PUBLISHED
    )
    assert len(runs) <= 5


def test_a_phonemizer_is_never_entered_by_two_threads(folder: Path) -> None:
    entered = threading.Lock()

    def not_reentrant(text: str) -> str:
        assert entered.acquire(blocking=False), "two threads are in the phonemizer"
        time.sleep(0.001)
        entered.release()
        return text

    synthesizers = [kitten_speaker(folder, phonemizer=not_reentrant) for _ in range(2)]

    def work(synthesizer: KittenSynthesizer) -> None:
        for _ in range(5):
            synthesizer.chunks(synthesizer.request(sentences(3), settings=PUBLISHED), SpeechContext())

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, 2 * synthesizers))


def test_a_stream_joins_to_the_whole(folder: Path) -> None:
    synthesizer = kitten_speaker(folder, 3)
    text = sentences(40)
    whole, stream = synthesizer.speak(text), synthesizer.stream(text)
    assert stream.real_time_factor == float("inf")
    pieces = list(stream)
    assert len(pieces) == len(stream.chunks) == len(whole.chunks) > 3
    np.testing.assert_array_equal(np.concatenate(pieces), whole.audio)
    assert (stream.seconds, stream.facts) == (pytest.approx(whole.seconds), whole.facts)
    assert [word.word for word in stream.words] == [word.word for word in whole.words]
    np.testing.assert_allclose([word.end for word in stream.words], [word.end for word in whole.words])
    assert set(stream.seconds_by_phase) == set(whole.seconds_by_phase) == {"phonemes", "synthesis"}


@pytest.mark.parametrize(
    ("text", "published", "message"),
    [
        ("", False, "there is nothing to say: the text is empty"),
        (" \n ", False, "the text is empty"),
        ("... ?! —", False, "there is nothing to say in '... \\?! —'"),
        ("<b></b>", False, "there is nothing to say"),
        ("a" * 2000, False, "one pass takes at most 512"),
        ("...!", True, "nothing to say"),
    ],
)
def test_text_without_speech_is_one_clear_line(folder: Path, text: str, published: bool, message: str) -> None:
    assert_refused(message, lambda: kitten_speaker(folder).speak(text, settings=KittenSettings(published=published)))


@pytest.mark.parametrize(
    ("text", "published"),
    [
        ("Some words, and 3.14 more. " * 1_500, False),
        ("no mark at all " * 20_000, True),
        ("<" * 900 + " <a" * 80_000, True),
    ],
)
def test_a_very_long_text_is_divided(folder: Path, text: str, published: bool) -> None:
    synthesizer = kitten_speaker(folder)
    request = synthesizer.request(text, settings=KittenSettings(published=published))
    chunks = synthesizer.chunks(request, SpeechContext())
    assert len(chunks) > 150
    assert max(len(chunk.text) for chunk in chunks) <= 1000


def test_a_short_published_text_may_be_empty(folder: Path) -> None:
    speech = speak(folder, 1, "a", settings=PUBLISHED)
    assert (len(speech.audio), speech.real_time_factor) == (0, float("inf"))
    assert len(speak(folder, 1, "a").audio) == 6 * HOP  # the ids are "a ,", "…" and two pads, and none is silent


def test_only_silence_at_the_end_is_trimmed() -> None:
    silence, sound = np.zeros(9600, np.float32), np.full(4800, 0.5, np.float32)
    trimmed = trim_end(np.concatenate((silence, sound, silence)))
    assert len(trimmed) == 9600 + 4800 + 2400
    np.testing.assert_array_equal(trimmed[:14400], np.concatenate((silence, sound)))
    assert len(trim_end(silence[:0])) == 0
    assert np.abs(trim_end(sound * 4)).max() == 1


def test_the_speech_has_what_every_result_has(folder: Path, tmp_path: Path) -> None:
    speech = speak(folder, 2, "Hello. Is it 3.14?", voice="Bella", speed=1.2)
    assert (speech.voice, speech.speed, speech.sample_rate, speech.notes) == ("expr-voice-2-f", 1.2, 24000, [])
    assert speech.chunks == ["Hello. Is it 3.14?"]
    assert [word.word for word in speech.words] == ["Hello.", "Is", "it", "3.14?"]
    assert speech.audio.dtype == np.float32
    speech.save(tmp_path / "hello.wav")


def test_a_text_that_arrives_incrementally_is_spoken_whole(folder: Path) -> None:
    synthesizer = kitten_speaker(folder)
    stream = synthesizer.feed(iter("Is this the whole text, or is it half? [pause:1s] It is all of it."), speed=1.5)
    audio = np.concatenate(list(stream))
    assert " ".join(stream.chunks) == "Is this the whole text, or is it half? It is all of it."
    assert (audio == 0).sum() >= 24000
    assert stream.facts["voice"] == synthesizer.styles.default


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("espeakng_loader", r"pip install '.\[kitten\]'"),
        ("onnxruntime", r"KittenTTS needs onnxruntime: pip install '.\[kitten\]'"),
    ],
)
def test_without_a_library_the_error_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, message: str
) -> None:
    model = imported(folder)
    monkeypatch.setitem(sys.modules, module, None)
    speaker = ane.load(model.path)
    if module == "onnxruntime":
        speaker.phonemizer = letters
    assert_refused(message, speaker.speak, "Hello.")


def test_several_texts_are_each_what_they_are_alone(folder: Path) -> None:
    synthesizer = kitten_speaker(folder, 3)
    texts = [sentences(count) for count in (1, 6, 2)]
    speeches = list(synthesizer.speak_all(texts, "Bella", speed=1.5))
    for speech, text in zip(speeches, texts, strict=True):
        alone = synthesizer.speak(text, "Bella", speed=1.5)
        np.testing.assert_array_equal(speech.audio, alone.audio)
        assert (speech.facts, speech.chunks) == (alone.facts, alone.chunks)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Is it so? Yes!", "Is it so? Yes!"),
        ("No end", "No end,"),
        ("He said (so.)", "He said (so.)"),
        ("3.14 is pi. The U.S.A. wins at 5 p.m. again", "three point one four is pi. The USA wins at five PM again,"),
        ("Call Dr. Smith on the 20th", "Call doctor Smith on the twentieth,"),
    ],
)
def test_words_are_those_of_other_models_and_end_in_a_mark(text: str, spoken: str) -> None:
    assert spoken_form(text) == spoken


@pytest.mark.parametrize(("phonemes", "symbols"), [("həlˈoʊ, ", "həlˈoʊ ,"), ("a“b", "a  b"), ("☃", "")])
def test_phonemes_become_ids_and_what_has_none_is_left_out(phonemes: str, symbols: str) -> None:
    ids, _ = word_ids(phonemes, "")
    assert ids.tolist() == [0, *(VOCABULARY[symbol] for symbol in symbols), 10, 0]
