"""Test the settings of a request, its chunks and random numbers, sampling, the ends of codes, and ranking."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.models.tortoise.chunks import split_into_chunks, text_tokens
from ane.models.tortoise.decoding import (
    CANDIDATES_PER_CALL,
    best_candidates,
    pad_codes,
    score_candidates,
    trimmed_length,
)
from ane.models.tortoise.diffusion import Diffusion
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.sampling import InverseCdfSampler, Randomness, Sampling, top_p, typical
from ane.models.tortoise.settings import MAX_CANDIDATES, PRESETS, TortoiseSettings
from ane.speech.settings import as_option
from ane.system.errors import NoEffectError
from tests.models.tortoise.sample_settings import CHUNKED, HIFIGAN
from tests.refusals import assert_refused


@pytest.mark.parametrize("preset", PRESETS)
def test_the_models_settings_override_the_preset_and_changes_override_both(preset):
    model = {"sampling": {"repetition_penalty": 1.0}, "split": [80, 125], "silence": [0.1, 0.25]}
    plain, own = TortoiseSettings.of(preset), TortoiseSettings.of(preset, model)
    assert (own.candidates, own.diffusion) == (plain.candidates, plain.diffusion)
    assert (own.sampling, own.split) == (Sampling(repetition_penalty=1.0), (80, 125))
    assert (plain.silence, own.silence) == (None, (0.1, 0.25))
    assert TortoiseSettings.of(preset, model, split=None).split is None
    assert TortoiseSettings.of(preset, model, split=(1, 1)).split == (1, 1)
    assert TortoiseSettings.of(preset, model, diffusion=Diffusion(5)).diffusion.steps == 5


def test_a_model_can_name_its_default_preset_and_a_request_another():
    assert TortoiseSettings.of() == TortoiseSettings.of("ultra_fast")
    assert TortoiseSettings.of(model={"preset": "1x10"}) == TortoiseSettings.of("1x10")
    assert TortoiseSettings.of("fast", {"preset": "1x10"}) == TortoiseSettings.of("fast")
    assert_refused("ultra_fast", TortoiseSettings.of, "slow")


@pytest.mark.parametrize(
    ("name", "candidates", "steps", "guidance", "work"),
    [
        ("ultra_fast", 16, 30, None, "16 candidates × 30 steps"),
        ("fast", 96, 80, 2.0, "96 candidates × 80 guided steps"),
        ("standard", 256, 200, 2.0, "256 candidates × 200 guided steps"),
        ("high_quality", 256, 400, 2.0, "256 candidates × 400 guided steps"),
    ],
)
def test_presets_with_upstreams_names_have_upstreams_values_and_describe_their_work(
    name, candidates, steps, guidance, work
):
    preset = PRESETS[name]
    assert preset.upstream
    assert (preset.candidates, preset.diffusion) == (candidates, Diffusion(steps, "p", guidance))
    assert (preset.work, PRESETS["fastest"].work) == (work, "1 candidate, no diffusion")


@pytest.mark.parametrize(("ours", "upstreams"), [("1x10", "ultra_fast"), ("16x10_guided", "fast")])
def test_our_presets_take_less_work_than_the_upstream_presets_they_replace(ours, upstreams):
    """In candidates, and in passes of the denoiser: two a step where it is guided."""
    few, many = PRESETS[ours], PRESETS[upstreams]
    assert bool(few.diffusion.guidance) == bool(many.diffusion.guidance)
    assert few.candidates < many.candidates
    assert few.diffusion.steps <= many.diffusion.steps / 3


def test_an_error_without_effect_in_nested_settings_names_the_option_and_keeps_its_type():
    error = NoEffectError("temperature", "without steps", "leave it out", ("steps",))
    named = as_option(error, TortoiseSettings.options(), "diffusion")
    assert isinstance(named, NoEffectError)
    assert (named.parameter, named.reason, named.partners) == ("noise", "without steps", ("steps",))
    assert str(named) == "noise has no effect without steps: leave it out"


@pytest.mark.parametrize(
    ("own", "part"),
    [
        ({"split": [80]}, "split"),
        ({"split": ["80", "125"]}, "split"),
        ({"split": "ab"}, "split"),
        ({"split": [80, 100, 125]}, "split"),
        ({"split": [125, 80]}, "split"),
        ({"split": [0, 80]}, "split"),
        ({"split": {"80": 1, "125": 2}}, "split"),
        ({"split": [True, True]}, "split"),
        ({"split": None}, "split"),
        ({"preset": "slow"}, "preset"),
        ({"preset": ["fast"]}, "preset"),
        ({"preset": None}, "preset"),
        ({"silence": 0.3}, "silence"),
        ({"silence": [0.1]}, "silence"),
        ({"silence": [0, 0.3]}, "silence"),
        ({"silence": [0.1, float("inf")]}, "silence"),
        ({"silence": [0.1, float("nan")]}, "silence"),
        ({"codes_per_word": 0}, "codes_per_word"),
        ({"codes_per_word": "many"}, "codes_per_word"),
        ({"silence": ["0.1", "0.3"]}, "silence"),
        ({"silence": [True, True]}, "silence"),
        ({"sampling": {"max_codes": "many"}}, "max_codes"),
        ({"sampling": {"max_codes": 100.5}}, "max_codes"),
        ({"sampling": {"max_codes": 0}}, "max_codes"),
        ({"sampling": {"top_k": None}}, "top_k"),
        ({"sampling": {"temperature": 0}}, "temperature"),
        ({"sampling": {"temperature": [1]}}, "temperature"),
        ({"sampling": {"temperature": float("nan")}}, "temperature"),
        ({"sampling": {"typical_mass": "a"}}, "typical_mass"),
        ({"sampling": {"repetition_penalty": 0}}, "repetition.penalty"),
        ({"sampling": []}, "sampling"),
        # of a later version
        ({"loudness": 3}, "loudness.*update tortoise-ane"),
        ({"sampling": {"warmth": 1}}, "warmth.*update tortoise-ane"),
        ({"sampling": 5}, "update tortoise-ane"),
    ],
)
def test_an_error_in_a_models_settings_names_the_model_and_no_flag(own, part):
    line = assert_refused(r"the model's settings in bundle\.json", TortoiseSettings.of, model=own)
    assert re.search(part, line)
    assert "--" not in line


def test_a_share_may_be_a_whole_number_and_typical_mass_may_be_null():
    own = {"sampling": {"temperature": 1, "typical_mass": None}}
    assert TortoiseSettings.of(model=own).sampling == Sampling(temperature=1)


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if not preset.upstream and preset.diffusion])
def test_the_names_of_our_presets_state_their_work(name):
    preset = PRESETS[name]
    guided = "_guided" * bool(preset.diffusion.guidance)
    assert name == f"{preset.candidates}x{preset.diffusion.steps}{guided}"


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("lanes", 0),
        ("candidates", 0),
        ("candidates", MAX_CANDIDATES + 1),
        ("best", 0),
        ("best", 2),
        ("split", (300, 200)),
        ("split", (0, 200)),
    ],
)
def test_an_error_names_the_parameter_and_no_flag(parameter, value):
    line = assert_refused(f"^{parameter} must be", TortoiseSettings.of, "fastest", **{parameter: value})
    assert "--" not in line


OFFICIAL = UnifiedVoiceConfig()


def chunk_texts(text: str, synthesizer, settings=HIFIGAN) -> list[str]:
    chunks = split_into_chunks(text, synthesizer.model, settings)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    return [chunk.text for chunk in chunks]


def test_a_chunk_without_words_is_skipped_and_a_text_of_such_chunks_refused(synthesizer):
    text = "The turtle was first. | * * * | The rabbit came second."
    assert chunk_texts(text, synthesizer, CHUNKED) == ["The turtle was first.", "The rabbit came second."]
    assert chunk_texts("Hello there. | <br> | Goodbye.", synthesizer) == ["Hello there.", "Goodbye."]
    assert_refused(r"nothing to say in '<br> \| <hr>'", chunk_texts, "<br> | <hr>", synthesizer)


@pytest.mark.parametrize(("split", "advice"), [((200, 300), "insert spaces"), (None, "allow it to be split")])
def test_a_word_too_long_for_the_decoder_is_refused_with_advice(synthesizer, split, advice):
    assert_refused(advice, lambda: chunk_texts("7" * 50, synthesizer, replace(HIFIGAN, split=split)))


def test_a_chunk_that_normalisation_makes_too_long_is_split_again(synthesizer):
    """300 characters of digits are far more than 400 tokens in words."""
    digits = " ".join(["7777777777777777777"] * 15)
    texts = chunk_texts(digits, synthesizer)
    assert len(texts) > 1
    assert " ".join(texts) == digits


def test_the_longest_text_fits_and_one_token_more_is_refused():
    assert text_tokens([5] * 398, OFFICIAL) == [5] * 398 + [OFFICIAL.stop_text_token]
    assert_refused(
        "the text has 399 tokens and the decoder takes at most 398", lambda: text_tokens([5] * 399, OFFICIAL)
    )


def test_a_token_that_the_decoder_does_not_know_is_refused_with_the_tokenizer_named():
    known = OFFICIAL.number_text_tokens
    assert text_tokens([5, known], OFFICIAL)[:-1] == [5, known]
    assert_refused(
        rf"returns token {known + 1} .* tokenizer\.json belongs to another model",
        lambda: text_tokens([5, known + 1], OFFICIAL),
    )


def test_the_defaults_are_upstreams():
    assert Sampling() == Sampling(
        temperature=0.8, repetition_penalty=2.0, top_k=50, top_p=0.8, typical_mass=None, max_codes=500
    )


@pytest.mark.parametrize(
    ("parameter", "allowed", "refused"),
    [
        ("temperature", [0.01, 100], [0.0099, 100.1, 0, -1, np.nan, np.inf]),
        ("repetition_penalty", [0.01, 1, 100], [0.0099, 100.1, 0, np.nan]),
        ("top_p", [0.001, 1], [0, 1.001, -0.1, np.nan]),
        ("typical_mass", [None, 0.001, 0.999], [0, 1, np.nan]),
        ("top_k", [1, 10**6], [0, -1]),
    ],
)
def test_each_parameter_has_limits_on_both_sides(parameter, allowed, refused):
    for value in allowed:
        assert getattr(Sampling(**{parameter: value}), parameter) == value
    for value in refused:
        assert_refused(f"^{parameter} must be .*got {value}$", Sampling, **{parameter: value})


def test_top_p_drops_codes_whose_probability_together_is_exactly_the_rest():
    """As transformers 4.31 does: cumulative ≤ 1 − p."""
    assert np.isfinite(top_p(np.zeros(2, np.float32), 0.5)).tolist() == [False, True]


def test_typical_sampling_keeps_no_more_codes_than_reach_the_mass():
    assert np.isfinite(typical(np.zeros(4, np.float32), 0.5)).tolist() == [True, True, False, False]


def test_the_most_likely_code_stays_however_small_top_p_is():
    kept = top_p(np.array([3, 9, 1, 8], np.float32), 1e-9)
    np.testing.assert_array_equal(kept, np.array([-np.inf, 9, -np.inf, -np.inf], np.float32))


def test_codes_are_sampled_as_often_as_they_are_probable():
    sample = InverseCdfSampler(np.random.default_rng(0))
    ids, probabilities = np.array([3, 5, 11]), np.array([0.2, 0.5, 0.3], dtype=np.float32)
    sampled = [sample(ids, probabilities) for _ in range(4000)]
    shares = [sampled.count(code) / len(sampled) for code in ids]
    np.testing.assert_allclose(shares, probabilities, atol=0.03)


def test_the_largest_random_number_samples_the_last_code():
    class LargestNumber:
        def random(self) -> float:
            return 1.0 - 2**-53

    assert InverseCdfSampler(LargestNumber())(np.array([4, 9]), np.array([0.5, 0.5], dtype=np.float32)) == 9


def numbers(rng: np.random.Generator) -> tuple[float, ...]:
    return tuple(rng.random(4))


def test_the_same_seed_gives_the_same_streams_in_any_order():
    first, second = Randomness(7), Randomness(7)
    assert numbers(first.candidate(1, 2)) == numbers(second.candidate(1, 2))
    second.vocoder(0, 0).random(100)
    assert numbers(first.diffusion(0, 1)) == numbers(second.diffusion(0, 1))


def test_all_streams_of_a_request_differ():
    randomness = Randomness(7)
    streams = [
        randomness.voice(),
        randomness.diffusion(0, 0),
        randomness.vocoder(0, 0),
        randomness.vocoder(0, 1),
        *(randomness.candidate(chunk, index) for chunk in range(3) for index in range(3)),
    ]
    assert len({numbers(stream) for stream in streams}) == len(streams)


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


CODES = np.arange(20)[:, None].repeat(3, axis=1)  # (20, 3): candidate i consists of code i


class FirstCodeBackend:
    """A backend of CLVP whose score of a candidate is its first code."""

    def __init__(self, factor: float = 1.0):
        self.factor, self.batches = factor, []

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        if stage == "clvp_text":
            return np.ones((1, 1), np.float32)
        self.batches.append(len(inputs["codes"]))
        return inputs["codes"][:, :1].astype(np.float32) * np.float32(self.factor)


def test_the_best_candidates_come_first_and_of_equal_ones_the_earlier():
    assert best_candidates(np.array([0.1, 0.7, -2.0, 0.5]), 3) == [1, 3, 0]
    scores = np.zeros(256, np.float32)
    scores[[40, 200]] = 1
    assert best_candidates(scores, 256) == [40, 200, *(index for index in range(256) if index not in (40, 200))]


def test_candidates_are_scored_in_batches_and_progress_counts_them():
    backend, done = FirstCodeBackend(), []
    scores = score_candidates(backend, [1, 2], CODES, progress=done.append)
    np.testing.assert_array_equal(scores, np.arange(20))
    assert max(backend.batches) == CANDIDATES_PER_CALL
    assert done == [8, 16, 20]


@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_refused(factor):
    """As networks in too low a precision would give them."""
    assert_refused(
        "the ranking network returned NaN or infinite scores",
        lambda: score_candidates(FirstCodeBackend(factor), [1, 2], CODES[1:]),
    )
