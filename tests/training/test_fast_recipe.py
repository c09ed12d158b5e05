"""The recipe of the fast voice, and the bundle that it made."""

import json

import pytest

from ane.bundles import demo_bundle
from ane.models.fastspeech.config_checks import check_config
from ane.system.errors import UserError
from training.fast_card import FAST_LIMITS, fast_data_section, fast_training_section
from training.fast_recipe import FAST_CONFIGS, FAST_PARTS, FAST_VOICE, load_fast_recipe
from training.speech import clips_in


@pytest.fixture(scope="module")
def source():
    """What the shipped bundle states of its training."""
    return json.loads((demo_bundle("demo-fast") / "bundle.json").read_text(encoding="utf-8"))["source"]


def test_the_recipe_has_the_steps_and_data_of_the_shipped_bundle(source):
    recipe = load_fast_recipe()
    assert {name: part.steps[-1] for name, part in recipe.parts.items()} == source["steps"]
    assert {name: list(part.steps) for name, part in recipe.parts.items() if len(part.steps) > 1} == source["run_ends"]
    assert tuple(recipe.parts) == FAST_PARTS
    assert source["teachers"] == [f"flite {recipe.voice}"]
    assert (clips_in(recipe.hours), recipe.seed, recipe.crops) == (source["clips"], source["seed"], source["batch"])


def test_the_card_states_the_data_and_training_of_the_bundle(source):
    card = (demo_bundle("demo-fast") / "MODEL.md").read_text(encoding="utf-8")
    for section in (fast_data_section(source), fast_training_section(source), FAST_LIMITS):
        assert section in card


def test_the_networks_are_of_kinds_that_bundles_take():
    for name, config in FAST_CONFIGS.items():
        check_config(name, config, "the recipe")


@pytest.mark.parametrize(("old", "new", "message"), [
    ('voice = "rms"', 'voices = "rms"', "voices"), ("seed = 0\n", "", "seed"),
    ("fastspeech = {", "speech = {", "must hold fastspeech, vocoder"), ("predicted_from", "predicted", "predicted")])
def test_a_recipe_with_wrong_keys_is_refused(tmp_path, old, new, message):
    text = FAST_VOICE.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "recipe.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_fast_recipe(path)
