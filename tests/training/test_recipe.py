"""The recipe."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.system.errors import UserError
from ane.text import Tokenizer
from training.recipe import CHARACTERS, CONFIG, CONFIGS, TRAINED_PARTS, load_recipe, tokenizer_json


def test_every_part_has_a_file_and_every_file_a_part():
    recipe = load_recipe()
    assert tuple(recipe.parts) == TRAINED_PARTS
    assert {path.stem for path in CONFIG.glob("*.toml")} == {"speech", *TRAINED_PARTS}
    assert {part.steps for part in recipe.tiny(2).parts.values()} == {(2,)}


@pytest.mark.parametrize(("file", "old", "new", "message"), [
    ("speech", "hours = 6.0", "hour = 6.0", "voices.heart"), ("speech", "seed = 0\n", "", "seed"),
    ("speech", "seed", "seed seed", "is not a part of a training recipe"), ("speech", "0.2", "0.7", "held_back"),
    ("hifigan", "[60000]", "[]", "steps"), ("autoregressive", "warmup", "warm", "warm"),
    ("clvp", "batch = 16", "batch = 0", "batch")])
def test_a_recipe_with_wrong_keys_or_values_is_refused_by_file_and_field(tmp_path, file, old, new, message):
    folder = shutil.copytree(CONFIG, tmp_path / "config")
    text = (folder / f"{file}.toml").read_text(encoding="utf-8")
    assert old in text
    (folder / f"{file}.toml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=rf"{file}\.toml.*{message}"):
        load_recipe(folder)


def test_a_missing_recipe_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"\.toml is not a part of a training recipe"):
        load_recipe(tmp_path)


@given(st.text(max_size=60))
def test_the_tokenizer_returns_its_characters_and_drops_others(text):
    tokenizer = Tokenizer(tokenizer_json())
    ids = tokenizer.encode_normalised(text)
    assert tokenizer.decode(ids) == "".join(letter for letter in text.lower() if letter in CHARACTERS)
    assert max(ids, default=0) < tokenizer.size == CONFIGS["autoregressive"].number_text_tokens
