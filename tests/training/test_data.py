"""Test the training data of the embedded voices (sentences and their speech), the recipe, and the model card."""

import random
import re
import shutil
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.audio.loudness import LoudnessMeter
from ane.system.errors import UserError
from ane.text import Tokenizer
from training.pitch import RATE, pitch_of
from training.publish import LICENCES, data_section, score_section
from training.recipe import CHARACTERS, CONFIG, CONFIGS, TRAINED_PARTS, load_recipe, tokenizer_json
from training.speech import LOUDNESS, Batches, teacher_of, trim_and_level
from training.text import GRAMMAR, MAX_CHARACTERS, held_out_sentences, plain_sentence, training_texts, word_runs


def test_every_rule_that_is_referred_to_exists():
    named = {name for options in GRAMMAR.values() for name in re.findall(r"<(\w+)>", options)}
    assert named | {"sentence"} == set(GRAMMAR)


@settings(deadline=None)
@given(st.integers(0, 10**9))
def test_a_plain_sentence_has_an_end_mark_and_only_characters_of_the_tokenizer(seed):
    sentence = plain_sentence(random.Random(seed))
    assert set(sentence) <= set(CHARACTERS)
    assert sentence[-1] in ".?!"


def test_texts_come_from_all_sources_and_depend_on_the_seed_alone(wordnet):
    texts = list(islice(training_texts(wordnet, 3), 300))
    assert texts == list(islice(training_texts(wordnet, 3), 300))
    assert texts != list(islice(training_texts(wordnet, 4), 300))
    assert len(set(texts)) == 300
    assert "he saw an entity" in texts
    assert "a tangible entity" in texts
    assert all(len(text) <= MAX_CHARACTERS and set(text) <= set(CHARACTERS) for text in texts)


def test_no_text_resembles_a_held_out_sentence(wordnet):
    held_out = held_out_sentences()
    assert len(held_out) >= 100
    assert len(set(held_out)) == len(held_out)
    assert word_runs(held_out).isdisjoint(word_runs(islice(training_texts(wordnet, 5), 500)))


TIME = np.arange(RATE) / RATE
TONE = 0.1 * np.sin(2 * np.pi * 200 * TIME).astype(np.float32)


def test_speech_is_equally_loud_with_short_silent_ends():
    quiet = np.concatenate((np.zeros(RATE, np.float32), TONE, np.zeros(2 * RATE, np.float32)))
    ours = trim_and_level(quiet)
    assert len(ours) / RATE == pytest.approx(1.18, abs=0.02)
    np.testing.assert_allclose(ours, trim_and_level(quiet * 3), atol=1e-5)
    meter = LoudnessMeter(RATE)
    meter.feed(ours)
    assert meter.loudness == pytest.approx(LOUDNESS, abs=1.2)  # such a short clip is measured less exactly
    assert len(trim_and_level(np.zeros(RATE, np.float32))) == 0


@pytest.mark.parametrize("hertz", [80.0, 120.0, 210.0, 350.0])
def test_the_pitch_of_a_buzz_is_found_and_noise_and_silence_have_none(hertz):
    buzz = sum(np.sin(2 * np.pi * hertz * n * TIME) / n for n in range(1, 12)).astype(np.float32)
    noise = np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    found = pitch_of(np.concatenate((0.1 * buzz, 0 * buzz, 0.1 * noise)), 258)
    np.testing.assert_allclose(found[4:80], hertz, rtol=0.02)
    assert (found[92:168] == 0).all()
    assert (found[176:] > 0).mean() < 0.1


def test_an_unknown_teacher_is_refused():
    with pytest.raises(UserError, match="teacher 'nobody'"):
        teacher_of("nobody")


@settings(max_examples=30)
@given(st.lists(st.integers(10, 200), min_size=1, max_size=300), st.integers(0, 5))
def test_an_epoch_contains_every_clip_once(lengths, epoch):
    batches = Batches(lengths, 600, seed=1)
    seen = np.concatenate(batches.epoch(epoch))
    assert sorted(seen) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in batch) < 600 + 200 + max(lengths) for batch in batches.epoch(epoch))


def test_every_part_has_a_file_and_every_file_a_part():
    recipe = load_recipe()
    assert tuple(recipe.parts) == TRAINED_PARTS
    assert {path.stem for path in CONFIG.glob("*.toml")} == {"speech", "fast_voice", *TRAINED_PARTS}
    assert {part.steps for part in recipe.tiny(2).parts.values()} == {(2,)}


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("speech", "hours = 16.0", "hour = 16.0", "voices.heart"),
        ("speech", "seed = 0\n", "", "seed"),
        ("speech", "seed", "seed seed", "as a part of a training recipe"),
        ("speech", "0.2", "0.7", "held_back"),
        ("hifigan", "[60000]", "[]", "steps"),
        ("autoregressive", "warmup", "warm", "warm"),
        ("clvp", "batch = 16", "batch = 0", "batch"),
    ],
)
def test_a_recipe_with_wrong_keys_or_values_is_refused_by_file_and_field(tmp_path, file, old, new, message):
    folder = shutil.copytree(CONFIG, tmp_path / "config")
    text = (folder / f"{file}.toml").read_text(encoding="utf-8")
    assert old in text
    (folder / f"{file}.toml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=rf"{file}\.toml.*{message}"):
        load_recipe(folder)
    with pytest.raises(UserError, match=r"\.toml as a part of a training recipe"):
        load_recipe(tmp_path)


@given(st.text(max_size=60))
def test_the_tokenizer_returns_its_characters_and_drops_others(text):
    tokenizer = Tokenizer(tokenizer_json())
    ids = tokenizer.encode_normalised(text)
    assert tokenizer.decode(ids) == "".join(letter for letter in text.lower() if letter in CHARACTERS)
    assert max(ids, default=0) < tokenizer.size == CONFIGS["autoregressive"].number_text_tokens


def test_the_card_states_teachers_with_their_licences_and_scores():
    data = data_section(
        {
            "teachers": ["hibari heart", "kokoro am_michael"],
            "hours": {"heart": 2.0, "michael": 0.5},
            "clips": 10,
            "held_back": 0.2,
        }
    )
    for part in (LICENCES["hibari"], LICENCES["kokoro"], "2.0 hours of heart", "without 20% of", "Princeton"):
        assert part in data
    row = {
        "competitor": "fastest",
        "settings": {"voice": "heart"},
        "value": {"median": 3.5, "low": 3.25, "high": 3.75},
        "figures": {"wer": 0.02, "dnsmos": 3.1, "f0": 200.4},
    }
    scores = score_section({"settings": {"sentences": 40}, "rows": [row]})
    assert "| fastest | heart | 3.50 | 3.25–3.75 | 0.020 | 3.10 | 200 |" in scores
