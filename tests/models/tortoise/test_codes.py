"""Codes after the stop code: padded as upstream does, and trimmed to a few silent ones."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ane.models.tortoise.decoding import pad_codes, trimmed_length
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig

OFFICIAL = UnifiedVoiceConfig()


@given(st.lists(st.integers(0, 8191), max_size=500))
def test_padded_codes_have_the_full_length_and_keep_what_was_sampled(codes):
    padded = pad_codes(codes, 500, OFFICIAL)
    assert padded.shape == (500,)
    kept = len(codes) if len(codes) == 500 else min(len(codes), 497)
    np.testing.assert_array_equal(padded[:kept], codes[:kept])
    assert trimmed_length(padded, OFFICIAL) >= min(OFFICIAL.calm_run, 500)


@given(st.integers(0, 480), st.integers(0, OFFICIAL.calm_run))
def test_eight_silent_codes_are_kept_at_the_end(spoken, silent):
    """Silent codes that were sampled count among the eight."""
    codes = [7] * spoken + [OFFICIAL.calm_token] * silent
    assert trimmed_length(pad_codes(codes, 500, OFFICIAL), OFFICIAL) == spoken + OFFICIAL.calm_run


def test_silence_between_words_of_more_than_eight_codes_ends_the_latents():
    calm, run = OFFICIAL.calm_token, OFFICIAL.calm_run
    assert trimmed_length([7] * 5 + [calm] * run + [7] * 5, OFFICIAL) == 10 + run
    assert trimmed_length([7] * 5 + [calm] * (run + 1) + [7] * 5, OFFICIAL) == 5 + run
