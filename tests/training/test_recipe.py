"""The recipe, and the bundle that it made."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.bundles import demo_bundle
from ane.system.errors import UserError
from ane.text import Tokenizer
from training.card import LIMITS, data_section, training_section
from training.recipe import CHARACTERS, CONFIGS, EMBEDDED_VOICE, FOLDER, TRAINED_PARTS, load_recipe, tokenizer_json


@pytest.fixture(scope="module")
def source():
    """What the shipped bundle states of its training."""
    return json.loads((demo_bundle() / "bundle.json").read_text(encoding="utf-8"))["source"]


def test_the_recipe_has_the_steps_and_legs_of_the_shipped_bundle(source):
    parts = load_recipe().parts
    assert {name: part.steps[-1] for name, part in parts.items()} == source["steps"]
    assert {name: list(part.steps) for name, part in parts.items() if len(part.steps) > 1} == source["run_ends"]
    assert tuple(parts) == TRAINED_PARTS


def test_the_recipe_has_the_data_of_the_shipped_bundle(source):
    recipe = load_recipe()
    manifest = json.loads((demo_bundle() / "bundle.json").read_text(encoding="utf-8"))
    assert [f"flite {voice}" for voice in recipe.voices] == source["teachers"]
    assert (recipe.hours, recipe.seed, recipe.crops) == (source["hours"], source["seed"], source["batch"])
    assert recipe.held_back == pytest.approx(source["held_back"], abs=0.005)    # whole shards are held back
    assert recipe.precision == manifest["precision"]


def test_the_recipe_names_the_earlier_voice_of_the_shipped_bundle(source):
    earlier = load_recipe().earlier_voice
    stated = source["initialised_from"]
    assert (earlier.identity, earlier.commit) == (stated["bundle"], stated["commit"])


def test_the_card_states_the_data_and_training_of_the_bundle(source):
    card = (demo_bundle() / "MODEL.md").read_text(encoding="utf-8")
    for section in (data_section(source), training_section(source), LIMITS):
        assert section in card
    steps = {part: int(count) for part, count in re.findall(r"^\| (\w+) \| (\d+) \| \d+ \|$", card, re.MULTILINE)}
    assert steps == {name: part.steps[-1] for name, part in load_recipe().parts.items()}


def test_the_quick_recipe_trains_every_part_for_two_steps():
    recipe = load_recipe(FOLDER / "quick.toml")
    assert {part.steps for part in recipe.parts.values()} == {(2,)}
    assert recipe.voices == load_recipe().voices
    assert recipe.earlier_voice is None


@pytest.mark.parametrize(("old", "new", "message"), [
    ("hours = 37.6", "hour = 37.6", "hour"), ("seed = 0\n", "", "seed"),
    ("hours", "hours hours", "is not a training recipe"), ("hifigan =", "gan =", "must hold quantiser"),
    ("[3000, 4200, 11000]", "[4200, 3000]", "ascending"),
    ("[13500]", "[]", "steps of autoregressive"), ("warmup", "warm", "warm")])
def test_a_recipe_with_wrong_keys_or_steps_is_refused(tmp_path, old, new, message):
    text = EMBEDDED_VOICE.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "recipe.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_recipe(path)


def test_a_missing_recipe_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.toml is not a training recipe"):
        load_recipe(tmp_path / "nothing.toml")


@given(st.text(max_size=60))
def test_the_tokenizer_returns_its_characters_and_drops_others(text):
    tokenizer = Tokenizer(tokenizer_json())
    ids = tokenizer.encode_normalised(text)
    assert tokenizer.decode(ids) == "".join(letter for letter in text.lower() if letter in CHARACTERS)
    assert max(ids, default=0) < tokenizer.size == CONFIGS["autoregressive"].number_text_tokens
