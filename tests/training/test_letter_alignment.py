"""Which phonemes letters stand for, learned from pronunciations."""

import pytest

from training.letter_alignment import LetterAlignment, is_alignable

# numbers of phonemes: vowels below 10
AH, IY, AY, OW = range(4)
S, SH, P, N, T, K, L = range(10, 17)
WORDS = [("she", (SH, IY)), ("he", (K, IY)), ("ship", (SH, AH, P)), ("tip", (T, AH, P)), ("shine", (SH, AY, N)),
         ("pine", (P, AY, N)), ("tine", (T, AY, N)), ("so", (S, OW)), ("no", (N, OW)), ("nose", (N, OW, S)),
         ("sit", (S, AH, T)), ("ten", (T, IY, N)), ("six", (S, AH, K, S)), ("tix", (T, AH, K, S)), ("lit", (L, AH, T))]


@pytest.fixture(scope="module")
def alignment() -> LetterAlignment:
    return LetterAlignment(WORDS, (AH, IY, AY, OW))


@pytest.mark.parametrize(("letters", "phones", "counts"), [
    ("shone", (SH, OW, N), [1, 0, 1, 1, 0]), ("pit", (P, AH, T), [1, 1, 1]), ("nix", (N, AH, K, S), [1, 1, 2])])
def test_letters_of_new_words_are_aligned_as_those_of_known_ones(alignment, letters, phones, counts):
    assert alignment.align(letters, phones) == counts


def test_probabilities_of_a_letter_add_up_to_one(alignment):
    for letter in "shipnoe":
        assert sum(value for (each, _), value in alignment.likely.items() if each == letter) == pytest.approx(1)


def test_a_word_with_too_many_phonemes_is_shared_out_evenly(alignment):
    assert not is_alignable("x", (AH, K, S))
    assert alignment.align("mr", (K, AH, S, T, IY)) == [2, 3]


def test_every_phoneme_has_a_letter(alignment):
    for letters, phones in (("zzz", (AH,)), ("tps", (IY, S, AH, K)), ("q", ())):
        counts = alignment.align(letters, phones)
        assert len(counts) == len(letters)
        assert sum(counts) == len(phones)
