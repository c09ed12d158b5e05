"""Chunks of a text: empty ones are skipped, those too long for the decoder are split again or refused."""

from dataclasses import replace

import pytest

from ane.models.tortoise.chunks import split_into_chunks, text_tokens
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.system.errors import UserError
from tests.models.tortoise.sample_settings import CHUNKED, HIFIGAN

OFFICIAL = UnifiedVoiceConfig()


def chunk_texts(text: str, synthesizer, settings=HIFIGAN) -> list[str]:
    chunks = split_into_chunks(text, synthesizer.model, settings)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    return [chunk.text for chunk in chunks]


def test_a_chunk_of_symbols_is_skipped(synthesizer):
    text = "The turtle was first. | * * * | The rabbit came second."
    assert chunk_texts(text, synthesizer, CHUNKED) == ["The turtle was first.", "The rabbit came second."]


def test_a_chunk_that_the_normaliser_empties_is_skipped(synthesizer):
    assert chunk_texts("Hello there. | <br> | Goodbye.", synthesizer) == ["Hello there.", "Goodbye."]


def test_a_text_that_the_normaliser_empties_is_refused(synthesizer):
    with pytest.raises(UserError, match=r"nothing to say in '<br> \| <hr>'"):
        chunk_texts("<br> | <hr>", synthesizer)


@pytest.mark.parametrize(("split", "advice"), [((200, 300), "insert spaces"), (None, "allow it to be split")])
def test_a_word_too_long_for_the_decoder_is_refused_with_advice(synthesizer, split, advice):
    with pytest.raises(UserError, match=advice):
        chunk_texts("7" * 50, synthesizer, replace(HIFIGAN, split=split))


def test_a_chunk_that_normalisation_makes_too_long_is_split_again(synthesizer):
    """300 characters of digits are far more than 400 tokens in words."""
    digits = " ".join(["7777777777777777777"] * 15)
    texts = chunk_texts(digits, synthesizer)
    assert len(texts) > 1
    assert " ".join(texts) == digits


def test_the_longest_text_fits_and_one_token_more_is_refused():
    assert text_tokens([5] * 398, OFFICIAL) == [5] * 398 + [OFFICIAL.stop_text_token]
    with pytest.raises(UserError, match="the text has 399 tokens and the decoder takes at most 398"):
        text_tokens([5] * 399, OFFICIAL)


def test_a_token_that_the_decoder_does_not_know_is_refused_with_the_tokenizer_named():
    known = OFFICIAL.number_text_tokens
    assert text_tokens([5, known], OFFICIAL)[:-1] == [5, known]
    with pytest.raises(UserError, match=rf"returns token {known + 1} .* tokenizer\.json belongs to another model"):
        text_tokens([5, known + 1], OFFICIAL)
