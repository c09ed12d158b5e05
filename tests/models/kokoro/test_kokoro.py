"""Test Kokoro on a small graph: published files, ids and styles, the sound of the published program, word times."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ane
from ane.backends import load_backend
from ane.backends.onnx.graph_file import GraphBackend
from ane.cli import main
from ane.models.kokoro.family import FAMILY, VOCABULARY
from ane.models.kokoro.synthesizer import KokoroSynthesizer
from ane.models.styletts.settings import KokoroSettings
from ane.models.styletts.voices import KITTEN_DEFAULT
from ane.speech.request import SpeechContext
from ane.text.phonemes import phonemise
from tests.imported import imported
from tests.models.kitten.kitten_model import HOP, VOICES, write_kitten_model, write_kokoro_model
from tests.refusals import assert_refused

TEXT = "Is this so? It is a longer sentence, which has several words."
REAL = os.environ.get("ANE_KOKORO")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_kokoro_model(tmp_path / "kokoro")


def speaker(folder: Path, workers: int = 1) -> KokoroSynthesizer:
    model = imported(folder)
    return KokoroSynthesizer(model, GraphBackend(model, workers))


def phonemes_of(text: str) -> str:
    return "".join(word.phonemes + " " * word.spaced for word in phonemise(text)).strip()


def published_sound(folder: Path, phonemes: str, voice: str, speed: float) -> np.ndarray:
    """What ``Kokoro.create(phonemes, voice, speed, is_phonemes=True)`` of kokoro-onnx 0.6.1 does for one batch."""
    ids = [number for number in map(VOCABULARY.get, phonemes) if number is not None]
    table = np.load(folder / "voices-v1.0.bin")[voice]
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    [wave] = session.run(
        None,
        {
            "tokens": [[0, *ids, 0]],
            "style": table[min(len(ids), len(table)) - 1],
            "speed": np.array([speed], np.float32),
        },
    )
    padded = np.pad(wave, 1024)
    power = np.array([np.mean(padded[start : start + 2048] ** 2) for start in range(0, len(wave) + 1, 512)])
    decibels = 10 * np.log10(np.maximum(power, 1e-10)) - 10 * np.log10(max(power.max(), 1e-10))
    loud = np.flatnonzero(decibels > -60)
    return wave[loud[0] * 512 : min(len(wave), (loud[-1] + 1) * 512)]


@pytest.mark.parametrize(("text", "voice", "speed"), [("Hello.", None, 1.0), (TEXT, "af_bella", 1.5)])
def test_the_sound_is_that_of_the_published_runner(folder: Path, text: str, voice: str | None, speed: float) -> None:
    speech = speaker(folder).speak(text, voice, speed=speed)
    expected = published_sound(folder, phonemes_of(text), voice or "af_heart", speed)
    np.testing.assert_array_equal(speech.audio, np.clip(expected, -1, 1))
    assert speech.facts["voice"] == (voice or "af_heart")


def test_british_voices_have_british_pronunciations(tmp_path: Path, folder: Path) -> None:
    tables = dict(np.load(folder / "voices-v1.0.bin"))
    np.savez(tmp_path / "voices.npz", **tables, bm_fable=tables["af_heart"])
    model = imported(folder / "model.onnx", voices=tmp_path / "voices.npz")
    own = KokoroSynthesizer(model, GraphBackend(model))
    ids = [
        own.chunks(own.request("Go home.", voice), SpeechContext())[0].input_ids for voice in ("af_heart", "bm_fable")
    ]
    assert [(VOCABULARY["O"] in one, VOCABULARY["Q"] in one) for one in ids] == [(True, False), (False, True)]


def test_silence_at_both_ends_is_removed(folder: Path) -> None:
    wave = np.concatenate((np.zeros(5000), np.full(4000, 0.5), np.full(9000, 1e-4))).astype(np.float32)
    trimmed, begin = speaker(folder).trimmed(wave, KokoroSettings())
    # the range of all frames of 2048 samples that touch the sound
    assert (begin, len(trimmed)) == (8 * 512, 20 * 512 - 8 * 512)


def test_chunks_in_parallel_join_to_the_same_sound_with_pauses(folder: Path) -> None:
    text = " ".join(["This is one of several sentences that are long enough for a chunk of its own."] * 5)
    alone, several = (speaker(folder, workers).speak(text) for workers in (1, 3))
    assert len(alone.chunks) > 2
    np.testing.assert_array_equal(alone.audio, several.audio)
    own = speaker(folder)
    assert [own.pause(text) for text in ("So.", "So,", 'He said "so!"', "So")] == [0.25, 0.1, 0.25, 0.0]
    pieces = list(own.stream(text))
    sounds, pauses = pieces[::2], pieces[1::2]
    assert all(piece[-6000:].any() for piece in sounds)
    assert [(len(piece), bool(piece.any())) for piece in pauses] == [(6000, False)] * (len(sounds) - 1)
    assert own.prepare() == "af_heart"


def test_a_chunk_of_too_many_phonemes_is_split(folder: Path) -> None:
    own = speaker(folder)
    text = "one million two hundred thousand and " * 30
    assert (
        max(
            chunk.input_ids.size
            for chunk in own.chunks(own.request(text, settings=KokoroSettings(split=(1000, 2000))), SpeechContext())
        )
        <= 512
    )
    assert_refused(
        "one pass takes at most 512: allow it to be split", lambda: own.speak(text, settings=KokoroSettings(split=None))
    )


@pytest.mark.parametrize("durations", ["duration", "/encoder/Clip_output_0"])
def test_words_have_the_durations_of_their_phonemes(tmp_path: Path, durations: str) -> None:
    folder = write_kokoro_model(tmp_path / "timed", durations=durations)
    words = speaker(folder).speak("Hello, my friends.").words
    assert [word.word for word in words] == ["Hello,", "my", "friends."]
    assert not any(word.estimated for word in words)
    lengths = [len(word.phonemes) for word in phonemise("Hello, my friends.") if word.text.isalpha()]
    assert [round((word.end - word.start) * 24000 / HOP) for word in words] == lengths
    assert words[0].start * 24000 == HOP  # the first id is the pad. No sound is silent here


def test_without_durations_words_share_the_time_of_their_chunk(tmp_path: Path) -> None:
    speech = speaker(write_kokoro_model(tmp_path / "untimed", durations="other/name")).speak("Hello, my friends.")
    assert [word.estimated for word in speech.words] == [True] * 3


def test_the_vocabulary_is_that_of_a_file_else_of_the_graph_else_the_published_one(tmp_path: Path) -> None:
    stated = write_kokoro_model(tmp_path / "stated", vocab={"a": 1})
    assert speaker(stated).vocabulary == {"a": 1}
    (stated / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"b": 2}}}))
    assert speaker(stated).vocabulary == {"b": 2}
    plain = speaker(write_kokoro_model(tmp_path / "plain")).vocabulary
    assert (len(plain), plain["A"], plain["ˈ"], plain["ᵻ"], plain[" "]) == (114, 24, 156, 177, 16)


def hub_layout(folder: Path, target: Path) -> Path:
    """The same model as onnx-community lays it out."""
    (target / "onnx").mkdir(parents=True)
    (target / "voices").mkdir()
    (folder / "model.onnx").rename(target / "onnx" / "model.onnx")
    (target / "onnx" / "model_quantized.onnx").write_bytes(b"another graph")
    for name, table in np.load(folder / "voices-v1.0.bin").items():
        table.tofile(target / "voices" / f"{name}.bin")
    (target / "tokenizer.json").write_text(json.dumps({"model": {"vocab": VOCABULARY}}))
    return target


def test_every_published_layout_becomes_the_same_bundle(folder: Path, tmp_path: Path) -> None:
    expected = speaker(folder).speak(TEXT).audio
    graph = folder / "model.onnx"
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "kokoro.onnx").write_bytes(graph.read_bytes())
    assert main(["import", str(folder), "-o", "first"]) == 0
    assert main(["import", str(graph), "-o", "second"]) == 0
    assert (
        main(
            [
                "import",
                str(tmp_path / "alone" / "kokoro.onnx"),
                "--voices",
                str(folder / "voices-v1.0.bin"),
                "-o",
                "third",
            ]
        )
        == 0
    )
    assert main(["import", str(hub_layout(folder, tmp_path / "hub")), "-o", "fourth"]) == 0
    for name in ("first", "second", "third", "fourth"):
        speech = ane.load(name).speak(TEXT)
        np.testing.assert_array_equal(speech.audio, expected)
        assert not speech.words[0].estimated
    source = json.loads((tmp_path / "home" / "bundles" / "fourth" / "bundle.json").read_text())["source"]["files"]
    assert sorted(source) == ["onnx/model.onnx", "tokenizer.json", "voices/af_bella.bin", "voices/af_heart.bin"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda folder: (folder / "voices-v1.0.bin").unlink(), "there are no voices next to"),
        (lambda folder: (folder / "voices-v1.0.bin").write_bytes(b"damaged"), "cannot be read as voices"),
        (lambda folder: (folder / "model.onnx").write_bytes(b"damaged"), "cannot load .*model.onnx"),
        (lambda folder: (folder / "model.onnx").unlink(), "has no .onnx file"),
        (
            lambda folder: (folder / "a.onnx").write_bytes(
                (folder / "model.onnx").rename(folder / "b.onnx").read_bytes()
            ),
            "has the graphs a.onnx, b.onnx: name one of these files",
        ),
    ],
)
def test_faulty_files_are_one_clear_line(folder: Path, fault: Any, message: str) -> None:
    fault(folder)
    assert_refused(message, FAMILY.import_checkpoints, folder)


def test_a_kitten_model_without_its_config_is_not_taken_for_one_of_kokoro(tmp_path: Path) -> None:
    kitten = write_kitten_model(tmp_path / "kitten")
    assert not FAMILY.recognises(tmp_path)
    (kitten / "config.json").unlink()
    assert_refused("has the voices of a KittenTTS model", imported, kitten)
    assert KITTEN_DEFAULT in VOICES


@pytest.mark.skipif(
    not REAL,
    reason="set ANE_KOKORO to a folder with a published .onnx and its voices, and run "
    "`pip install kokoro-onnx`: ANE_KOKORO=./kokoro python -m pytest "
    "tests/models/kokoro",
)
def test_published_weights_sound_as_in_the_published_runner(tmp_path: Path) -> None:
    published = pytest.importorskip("kokoro_onnx")
    model = imported(Path(REAL))
    own = model.family.synthesizer(model, load_backend("auto", model))
    np.savez(tmp_path / "voices.npz", **{name: table[:, None] for name, table in own.styles.tables.items()})
    reference = published.Kokoro(str(model.file("graph")), str(tmp_path / "voices.npz"))
    for text in ("The old bridge was closed for repairs last winter.", TEXT):
        audio, _ = reference.create(phonemes_of(text), "af_heart", is_phonemes=True)
        np.testing.assert_array_equal(own.speak(text, "af_heart").audio, audio)
