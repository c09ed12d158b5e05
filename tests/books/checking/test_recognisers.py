"""What a Whisper model, here of random weights, finds wrong with a chunk as the recogniser of `ane read --check`."""

import numpy as np
import pytest
import torch

from ane.backends import load_backend
from ane.books.checking.recognisers import TranscribingRecogniser, differences
from ane.cli import main
from ane.models.whisper.checkpoints import WhisperCheckpoint
from ane.models.whisper.transcription import Transcriber, TranscriptionOptions
from tests.models.whisper.random_whisper import KNOWN_TOKENS, write_openai

LETTERS = range(64, 90)      # tokens of a to z
TEXT = "Dr. Lee owes me $5, and the color of his jewelry is gray."
HEARD = [
    ("Doctor Lee owes me five dollars and the colour of his jewellery is grey.", []),
    ("Dr. Lee owes me and the color of his jewelry is gray.", ["'five dollars' is not heard"]),
    ("Dr. Lee owes me $5, owes me $5, and the color of his jewelry is gray.",
     ["'owes me five dollars' is heard, which its text does not have"]),
    ("Dr. Lee owes me $5, and the color of his kettle bag is gray.",
     ["'kettle bag' is heard instead of 'jewelry'"]),
    ("", ["'doctor lee owes me five dollars and the color of his jewelry is gray' is not heard"])]


@pytest.mark.parametrize(("heard", "problems"), HEARD)
def test_other_spellings_are_no_difference_and_other_words_are(heard, problems):
    found = differences(TEXT, heard)
    assert [problem.what for problem in found] == problems
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
    model = WhisperCheckpoint(whisper)
    transcriber = Transcriber(model, load_backend("torch:cpu", model))
    sound = np.random.default_rng(1).standard_normal(24000).astype(np.float32) / 4
    heard = transcriber.transcribe(sound, 24000, TranscriptionOptions("en", temperatures=(0.0,))).text
    recogniser = TranscribingRecogniser(transcriber)
    assert any(map(str.isalpha, heard))
    assert recogniser.problems(heard, sound, 24000, -20.0) == []
    assert recogniser.problems("She asked her brother to help with the dishes.", sound, 24000, -20.0)


def test_a_job_is_judged_by_the_model_that_is_named(whisper, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("Hello there.\n")
    command = ["read", "book.txt", "-o", "book.wav", "--bundle=demo", "--preset=fastest", "--max-codes", "20",
               "--retries", "0"]
    assert main([*command, "--check", "--recogniser", str(whisper)]) == 0
    assert "hello" in capsys.readouterr().err
    assert main([*command, "--recogniser", str(whisper)]) != 0
    assert "--recogniser has no effect without --check" in capsys.readouterr().err
