"""Test the recognisers that check a chunk, the alignment of a known text, and the signals of a sound."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import ane
from ane.audio.trimming import trimmed
from ane.backends import load_backend
from ane.books.judging import misfits, signals_of
from ane.books.recognisers import TextAligner, TranscribingRecogniser, differences
from ane.cli import main
from ane.models.whisper.transcription import Transcriber, TranscriptionOptions
from tests.books.stand_in import RATE
from tests.imported import imported
from tests.models.whisper.random_whisper import KNOWN_TOKENS, write_openai

LETTERS = range(64, 90)  # tokens of the letters a to z
TEXT = "Dr. Lee owes me $5, and the color of his jewelry is gray."
HEARD = [
    ("Doctor Lee owes me five dollars and the colour of his jewellery is grey.", []),
    ("Dr. Lee owes me and the color of his jewelry is gray.", ["'five dollars' is not heard"]),
    (
        "Dr. Lee owes me $5, owes me $5, and the color of his jewelry is gray.",
        ["'owes me five dollars' is heard, but is not in its text"],
    ),
    ("Dr. Lee owes me $5, and the color of his kettle bag is gray.", ["'kettle bag' is heard instead of 'jewelry'"]),
    ("", ["'doctor lee owes me five dollars and the color of his jewelry is gray' is not heard"]),
]


@pytest.mark.parametrize(("heard", "problems"), HEARD)
def test_other_spellings_are_no_difference_and_other_words_are(heard, problems):
    found = differences(TEXT, heard)
    assert [problem.text for problem in found] == problems
    assert all(problem.severity > 1 for problem in found)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """Random weights that know letters alone, and write some."""
    file = write_openai(tmp_path_factory.mktemp("whisper"), seed=3)
    content = torch.load(file)
    others = [token for token in range(KNOWN_TOKENS) if token not in LETTERS]
    content["model_state_dict"]["decoder.token_embedding.weight"][others] *= 0.01
    torch.save(content, file)
    return file


def test_a_sound_fits_the_text_that_the_model_hears_and_no_other(whisper):
    model = imported(whisper)
    transcriber = Transcriber(model, load_backend("torch:cpu", model))
    sound = np.random.default_rng(1).standard_normal(24000).astype(np.float32) / 4
    heard = transcriber.transcribe(sound, 24000, TranscriptionOptions("en", temperatures=(0.0,))).text
    recogniser = TranscribingRecogniser(transcriber)
    assert any(map(str.isalpha, heard))
    assert recogniser.problems(heard, sound, 24000, -20.0) == []
    assert recogniser.problems("She asked her brother to help with the dishes.", sound, 24000, -20.0)


def test_a_job_is_judged_by_the_model_that_is_named(whisper, tmp_path, monkeypatch, capsys, succeed):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("Hello there.\n")
    command = [
        "read",
        "book.txt",
        "-o",
        "book.wav",
        "--bundle=demo",
        "--preset=fastest",
        "--max-codes",
        "20",
        "--retries",
        "0",
    ]
    assert "hello" in succeed(*command, "--check", "--recogniser", str(imported(whisper, tmp_path / "whisper").path))
    assert main([*command, "--recogniser", str(whisper)]) != 0
    assert "--recogniser has no effect without --check" in capsys.readouterr().err


KNOWN = "She asked her brother to help with the dishes after dinner."
UNKNOWN = "She asked Brzezwicz to help with the dishes after dinner."


@pytest.fixture(scope="module")
def recogniser() -> TextAligner:
    pytest.importorskip("pocketsphinx")
    return TextAligner()


@pytest.fixture(scope="module")
def spoken() -> Callable[[str], np.ndarray]:
    """Speech of a text."""
    synthesizer = ane.load("demo", keep=True)
    return cache(lambda text: trimmed(synthesizer.speak(text, preset="fastest", seed=1).audio, (0.05, 0.05)))


@pytest.mark.parametrize(
    ("text", "heard", "suspect"),
    [
        (KNOWN, KNOWN, False),
        (KNOWN, "She asked her brother to help with the after dinner.", True),
        (KNOWN, "She asked her brother asked her brother to help with the dishes after dinner.", True),
        (KNOWN, "She asked her brother to help with the dishes after dinner bakedo nutiga vo.", True),
        (KNOWN, "They have lived in the same house for more than twenty years.", True),
        (UNKNOWN, UNKNOWN, False),
    ],
)
def test_words_that_are_dropped_added_or_others_are_found_and_those_of_no_dictionary_are_not(
    recogniser, spoken, text, heard, suspect
):
    sound = spoken(heard)
    assert bool(misfits(recogniser.fit(text, sound, RATE), sound, RATE, -20.0)) == suspect


def test_a_result_depends_on_no_other_sound(recogniser, spoken):
    before = recogniser.fit(KNOWN, spoken(KNOWN), RATE)
    recogniser.fit("Something else.", np.random.default_rng(0).standard_normal(RATE).astype(np.float32), RATE)
    assert recogniser.fit(KNOWN, spoken(KNOWN), RATE) == before


@pytest.mark.parametrize(("heard", "left_out"), [(KNOWN, []), (KNOWN.replace(" her ", " "), ["her"])])
def test_a_short_word_that_is_missing_is_named(recogniser, spoken, heard, left_out):
    assert recogniser.left_out(KNOWN, spoken(heard), RATE) == left_out
    assert "brzezwicz" not in recogniser.left_out(f"Brzezwicz, {KNOWN}", spoken(heard), RATE)


# chunks in which the recogniser missed words: "what", "have" and "of" next to others, and the last one before silence
CLEAR = [
    "He took off his coat and sat down by the fire. I have been thinking about what you said yesterday.",
    "The book on the table belongs to my teacher. He wanted to be an artist but his family was against it.",
    "The team played well but they lost the game in the end. Nobody knows what will happen in the next few years.",
    "People will lose a new garden. I would rather stay at home and read a good book.",
    "The people of the village were kind to us. He wanted to be an artist but his family was against it.",
    # respelt names that no dictionary has, in short chunks
    "“No,” said Tygue.",
    "“No,” said Zhwang.",
    "Rourke and Zhwang ran.",
    "Aeaea.",
]


@pytest.fixture(scope="module")
def heart() -> Any:
    return ane.load()


@pytest.mark.parametrize("text", CLEAR)
def test_the_default_voice_is_not_suspect(recogniser, heart, text):
    sound = trimmed(heart.speak(text).audio, (0.05, 0.05))
    assert recogniser.problems(text, sound, RATE, signals_of(sound, RATE).loudness) == []
    assert recogniser.problems(f"Yellow windows, {text}", sound, RATE, signals_of(sound, RATE).loudness)


def speech(seconds: float = 1.0, level: float = 0.1) -> np.ndarray:
    """Something like a vowel, with the silence that a chunk of a book has at its ends."""
    time = np.arange(round(seconds * RATE)) / RATE
    sound = level * sum(np.sin(2 * np.pi * 120 * number * time + number**2) / number for number in range(1, 12))
    quiet = np.zeros(RATE // 20)
    return np.concatenate((quiet, sound, quiet)).astype(np.float32)


def test_speech_has_no_defect():
    found = signals_of(speech(), RATE)
    assert (found.clipped, found.clicks) == (0, 0)
    assert found.seconds == pytest.approx(1.0, abs=0.02)
    power = sum(0.5 / harmonic**2 for harmonic in range(1, 12))
    assert found.loudness == pytest.approx(20 * np.log10(0.1 * power**0.5), abs=0.5)
    assert found.edge < -60


@pytest.mark.parametrize("at", [0.3, 0.031])
def test_a_click_is_found_in_speech_and_in_silence(at):
    sound = speech()
    sound[round(at * RATE)] = 0.8
    assert signals_of(sound, RATE).clicks >= 1


def test_clipping_cut_ends_and_pauses_are_measured():
    assert signals_of(np.clip(speech(level=0.9), -1, 1), RATE).clipped > 10
    for cut in (speech()[: RATE // 2], speech()[RATE // 2 :]):
        assert signals_of(cut, RATE).edge > -6, "as loud as the speech"
    paused = np.concatenate((speech(), np.zeros(RATE, np.float32), speech()))
    assert signals_of(paused, RATE).pause == pytest.approx(1.1, abs=0.03)
    for samples in (RATE, 0):
        assert signals_of(np.zeros(samples, np.float32), RATE).seconds == 0
