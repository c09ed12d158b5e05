"""English text to phonemes: as hibari-tts has them, with whose phonemes the embedded voice learned to speak."""

import pytest

from ane.text import normalise_english
from ane.text.english import normalise_cased
from ane.text.phonemes import phonemise
from ane.text.phonemes.dictionary import stressed
from ane.text.phonemes.tagger import part_of_speech

SENTENCES = {
    "The weather is going to be warm and sunny this weekend.":
        "ðə wˈɛðəɹ ɪz ɡˈOɪŋ tə bi wˈɔɹm ænd sˈʌni ðɪs wˈikˌɛnd.",
    "NASA and the FBI were working with UNESCO and the U.S. government.":
        "nˈæsə ænd ði ˌɛfbˌiˈI wɜɹ wˈɜɹkɪŋ wɪð junˈɛskO ænd ðə jˌuˈɛs ɡˈʌvəɹnmənt.",
    "Kubernetes and Szczecin are hard to pronounce.": "kjˈubəɹnˌits ænd ʃʧˈɛʧin ɑɹ hˈɑɹd tə pɹənˈWns.",
    "We'll see you at 7:30 pm on March 3rd, 2024.":
        "wˌil sˈi ju æt sˈɛvən θˈɜɹTi pˌiˈɛm ˌɔn mˈɑɹʧ θˈɜɹd, twˈɛnti twˈɛnti fˈɔɹ.",
    "It cost $9.99.": "ˌɪt kˈɔst nˈIn dˈɑləɹz ænd nˈIndi nˈIn sˈɛnts.",
    "She used to use the used car.": "ʃˌi jˈust tə jˈuz ðə jˈuzd kˈɑɹ.",
    "The children's toys, the dogs' house and the witches weren't there.":
        "ðə ʧˈɪldɹᵊnz tˈYz, ðə dˈɔɡz hˈWs ænd ðə wˈɪʧᵻz wˌɜɹnt ðˈɛɹ.",
    "He wanted to stop running, tying and hopping.": "hˌi wˈɑntᵻd tə stˈɑp ɹˈʌnɪŋ, tˈIɪŋ ænd hˈɑpɪŋ.",
    "Come in! What are you in for?": "kˈʌm ˈɪn! wˌʌt ɑɹ ju ɪn fɔɹ?",
    "An apple a day; the egg, the car.": "ɐn ˈæpᵊl ɐ dˈA; ði ˈɛɡ, ðə kˈɑɹ.",
    "I live in the USA, and my sister-in-law in the UK.":
        "ˌI lˈɪv ɪn ðə jˌuˌɛsˈA, ænd mI sˈɪstəɹənlˌɔ ɪn ðə jˌukˈA.",
    "(Both met at McDonald's.)": "(bˈOθ mˈɛt æt məkdˈɑnəldz.)",
}


BRITISH = {
    "The weather is going to be warm and sunny this weekend.":
        "ðə wˈɛðə ɪz ɡˈQɪŋ tə biː wˈɔːm and sˈʌni ðɪs wˌiːkˈɛnd.",
    "He wanted to stop running, tying and hopping.": "hˌiː wˈɒntɪd tə stˈɒp ɹˈʌnɪŋ, tˈIɪŋ and hˈɒpɪŋ.",
    "The children's toys, the dogs' house and the witches weren't there.":
        "ðə ʧˈɪldɹᵊnz tˈYz, ðə dˈɒɡz hˈWs and ðə wˈɪʧɪz wˌɜːnt ðˈɛː.",
    "Better water in the bath at home.": "bˈɛtə wˈɔːtə ɪn ðə bˈɑːθ at hˈQm.",
}


def phonemes(text, british=False):
    return "".join(word.phonemes + " " * word.spaced for word in phonemise(text, british)).strip()


@pytest.mark.parametrize(("text", "expected"), [item for item in SENTENCES.items() if item[1]])
def test_sentences_have_the_phonemes_of_hibari(text, expected):
    assert phonemes(text) == expected


@pytest.mark.parametrize(("text", "expected"), BRITISH.items())
def test_british_sentences_have_the_phonemes_of_hibari(text, expected):
    assert phonemes(text, british=True) == expected


def test_a_british_word_without_a_dictionary_has_british_vowels():
    assert phonemes("frobnicated", british=True) == phonemes("frobnicated").replace("ᵻ", "ɪ")


@pytest.mark.parametrize("text", ["", " ", "…", "-", "'", "❤"])
def test_what_has_no_word_has_no_phonemes(text):
    assert not any(character.isalpha() for character in phonemes(text))


def test_words_that_differ_by_their_part_of_speech():
    assert part_of_speech(["They", "record", "a", "record", "."]) == ["PRP", "VBP", "DT", "NN", "."]
    assert phonemes("They record a record.") == "ðˌA ɹəkˈɔɹd ɐ ɹˈɛkəɹd."


def test_how_the_and_to_sound_depends_on_the_next_word():
    assert phonemes("the egg, the hen, to eat, to go to") == "ði ˈɛɡ, ðə hˈɛn, tʊ ˈit, tə ɡˌO tu"


def test_words_without_a_dictionary_are_read_by_their_letters():
    assert phonemes("frobnicated") == "fɹˈɑbnᵻkˌATᵻd"


def test_stress_moves_between_none_secondary_and_primary():
    assert [stressed("dˈɑɡ", stress) for stress in (-2.0, -0.5, None, 2.0)] == ["dɑɡ", "dˌɑɡ", "dˈɑɡ", "dˈɑɡ"]
    assert [stressed("ɪts", stress) for stress in (-0.5, 0.5, 2.0)] == ["ɪts", "ˌɪts", "ˈɪts"]


@pytest.mark.parametrize("text", ["Dr. Smith lives at 5 Main St., near Mt. Rainier.", "THE END IS NEAR.",
                                  "The CEO of IBM's U.S. office: 3.5% of $2bn.", "“Stop!” cried <b>he</b> — twice…"])
def test_text_with_capitals_has_the_words_of_text_without(text):
    def letters(normalised):
        return "".join(filter(str.isalpha, normalised.lower()))

    assert letters(normalise_cased(text)) == letters(normalise_english(text))
