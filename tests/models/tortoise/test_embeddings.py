"""Lanes are a matter of speed alone: what is sampled depends on the seed, the chunk and the candidate."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.torch.backend import TorchBackend
from ane.bundles import open_model
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.codes import pad_codes, trimmed_length
from ane.models.tortoise.decoding import Candidate, Prompt, decode
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.sampling import Sampling, inverse_cdf_sampler
from ane.system.errors import UserError

OFFICIAL = UnifiedVoiceConfig()


@pytest.fixture(scope="module")
def sampled():
    """``sampled(candidates, lanes, precision="fp32")``: candidates of the demo bundle for one text and seed."""
    model = open_model()
    config = model.config("autoregressive")
    voice = np.random.default_rng(5).standard_normal((1, config.model_dim), dtype=np.float32)
    tokens = text_tokens(list(range(3, 33)), config)
    backends = {precision: TorchBackend(model, "cpu", precision) for precision in ("fp32", "bf16")}

    def run(candidates: int, lanes: int, precision: str = "fp32", max_codes: int = 60) -> list[Candidate]:
        choices = [inverse_cdf_sampler(Randomness(3).candidate(0, index)) for index in range(candidates)]
        [candidates] = decode(backends[precision], [Prompt(voice, tokens, choices)], config,
                              Sampling(max_codes=max_codes), lanes)
        return candidates

    return run


@settings(max_examples=12, deadline=None)
@given(candidates=st.integers(1, 7), lanes=st.integers(1, 9))
def test_the_number_of_lanes_and_of_candidates_changes_no_candidate(sampled, candidates, lanes):
    reference = sampled(7, 1)
    for candidate, expected in zip(sampled(candidates, lanes), reference, strict=False):
        assert candidate.codes == expected.codes
        assert candidate.stopped == expected.stopped
        np.testing.assert_allclose(candidate.latents, expected.latents, atol=2e-5)


def test_candidates_differ_from_each_other(sampled):
    assert len({tuple(candidate.codes) for candidate in sampled(6, 3)}) == 6


def test_every_latent_has_its_code(sampled):
    for candidate in sampled(6, 3):
        assert len(candidate.hidden) == len(candidate.codes) + candidate.stopped
        assert len(candidate.latents) == trimmed_length(candidate.padded_codes, open_model().config("autoregressive"))


def test_codes_run_out_where_they_are_told_to(sampled):
    assert all(len(candidate.codes) <= 5 for candidate in sampled(4, 4, max_codes=5))


def test_half_precision_latents_stay_near(sampled):
    """The same first code is fed, so the first latents can be compared whatever follows."""
    for whole, half in zip(sampled(3, 3, "fp32"), sampled(3, 3, "bf16"), strict=True):
        error = np.abs(whole.hidden[0] - half.hidden[0])
        assert error.max() < 0.1 * np.abs(whole.hidden[0]).max()


def test_more_codes_than_positions_are_refused(sampled):
    with pytest.raises(UserError, match="max_codes"):
        sampled(1, 1, max_codes=OFFICIAL.max_mel_tokens)


def test_the_longest_text_that_fits_and_one_token_more():
    assert len(text_tokens([5] * 398, OFFICIAL)) == 399
    with pytest.raises(UserError, match="399 tokens"):
        text_tokens([5] * 399, OFFICIAL)


def test_a_token_that_the_decoder_does_not_know_blames_the_tokenizer():
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        text_tokens([5, 400], OFFICIAL)


@given(st.lists(st.integers(0, 8191), max_size=500))
def test_rewritten_codes_fill_the_buffer_and_keep_what_was_sampled(codes):
    whole = pad_codes(codes, 500, OFFICIAL)
    assert whole.shape == (500,)
    kept = len(codes) if len(codes) == 500 else min(len(codes), 497)
    np.testing.assert_array_equal(whole[:kept], codes[:kept])
    assert trimmed_length(whole, OFFICIAL) >= min(OFFICIAL.calm_run, 500)


@given(st.integers(0, 480), st.integers(0, OFFICIAL.calm_run))
def test_eight_silent_codes_are_kept_at_the_end(spoken, silent):
    """Silence that was sampled counts among the eight."""
    codes = [7] * spoken + [OFFICIAL.calm_token] * silent
    assert trimmed_length(pad_codes(codes, 500, OFFICIAL), OFFICIAL) == spoken + OFFICIAL.calm_run
