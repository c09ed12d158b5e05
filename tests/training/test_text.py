"""The texts of the training speech."""

from itertools import islice

from training.recipe import CHARACTERS
from training.text import MAX_CHARACTERS, held_out_sentences, training_texts, word_runs


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
