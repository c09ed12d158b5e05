"""`python -m training` with a recipe of the fast voice: a stand-in for the teacher, and two steps of every part."""

import json

import numpy as np
import pytest

import ane
from ane.models.fastspeech.networks.acoustic import FastSpeechConfig
from ane.models.vocoders.hifigan import MelHifiganConfig
from tests.training.timed_teacher import ToneTeacher
from training import fast_recipe, fast_run, trained_model
from training.__main__ import main
from training.fast_recipe import FAST_PARTS

RECIPE = """
family = "fastspeech"
voice = "rms"
hours = 0.02
vocoder_hours = 0.01
seed = 0
crops = 2
precision = "fp16"
predicted_from = 1

[parts]
fastspeech = { steps = [2], rate = 1e-3 }
vocoder = { steps = [2], rate = 1e-3 }
"""
TINY = {
    "fastspeech": FastSpeechConfig(1100, 32, 1, 1, 32, 1, 1, 32, duration_predictor_filter_size=16),
    "vocoder": MelHifiganConfig(80, "2", (4, 4, 4, 4), (8, 8, 8, 8), 32, (3,), ((1, 2),))}
WORDS = ["one", "two", "three", "four", "five", "the", "that", "this", "then", "when", "house"]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Tiny networks, few words, and the stand-in; the processes that speak inherit it."""
    for module in (fast_recipe, fast_run, trained_model):
        monkeypatch.setattr(module, "FAST_CONFIGS", TINY)
    for module in ("symbols", "timed_speech"):
        monkeypatch.setattr(f"training.{module}.flite_voice", ToneTeacher)
    monkeypatch.setattr("training.symbols.spoken_words", lambda: (WORDS, list(range(1, len(WORDS) + 1))))
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def test_one_command_makes_a_bundle_that_speaks(tmp_path, recipe, wordnet):
    run = tmp_path / "run"
    assert main(["--config", str(recipe), "-o", str(run), "--wordnet", str(wordnet), "--workers", "1",
                 "--device", "cpu"]) == 0
    source = json.loads((run / "bundle" / "bundle.json").read_text())["source"]
    assert source["steps"] == dict.fromkeys(FAST_PARTS, 2)
    assert source["teachers"] == ["flite rms"]
    card = (run / "bundle" / "MODEL.md").read_text()
    assert card.startswith("# The fast embedded voice")
    assert "| vocoder | 2 |" in card
    speech = ane.load(run / "bundle", "torch", threads=1).speak("one two three {HH AH0} hello there, my dear friends")
    assert np.isfinite(speech.audio).all()


@pytest.mark.parametrize(("arguments", "message"), [
    (("--parts", "quantiser"), "choose from texts, shards, fastspeech"), (("--wordnet", "/nowhere"), "wordnet-base")])
def test_bad_arguments_give_one_line(tmp_path, recipe, wordnet, capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(["--config", str(recipe), "-o", str(tmp_path / "run"), "--wordnet", str(wordnet), "--device", "cpu",
              *arguments])
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_recipe_without_a_part_is_refused(tmp_path, recipe, wordnet, capsys):
    recipe.write_text(RECIPE.replace("vocoder = ", "vocoders = "), encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["--config", str(recipe), "-o", str(tmp_path / "run"), "--wordnet", str(wordnet)])
    assert "[parts] must hold fastspeech, vocoder" in capsys.readouterr().err
