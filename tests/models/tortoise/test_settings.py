"""Test the settings of a request, and how its text becomes chunks."""

import re
from dataclasses import replace

import pytest

from ane.models.tortoise.chunks import split_into_chunks, text_tokens
from ane.models.tortoise.diffusion import Diffusion
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.sampling import Sampling
from ane.models.tortoise.settings import MAX_CANDIDATES, PRESETS, TortoiseSettings
from ane.system.errors import UserError
from tests.models.tortoise.sample_settings import CHUNKED, HIFIGAN


@pytest.mark.parametrize("preset", PRESETS)
def test_the_models_settings_override_the_preset_and_changes_override_both(preset):
    model = {"sampling": {"repetition_penalty": 1.0}, "split": [80, 125], "silence": [0.1, 0.25]}
    plain, own = TortoiseSettings.of(preset), TortoiseSettings.of(preset, model)
    assert (own.candidates, own.diffusion) == (plain.candidates, plain.diffusion)
    assert own.sampling == Sampling(repetition_penalty=1.0)
    assert own.split == (80, 125)
    assert (plain.silence, own.silence) == (None, (0.1, 0.25))
    assert TortoiseSettings.of(preset, model, split=None).split is None
    assert TortoiseSettings.of(preset, model, diffusion=Diffusion(5)).diffusion.steps == 5


def test_a_model_can_name_its_default_preset_and_a_request_another():
    assert TortoiseSettings.of() == TortoiseSettings.of("ultra_fast")
    assert TortoiseSettings.of(model={"preset": "1x10"}) == TortoiseSettings.of("1x10")
    assert TortoiseSettings.of("fast", {"preset": "1x10"}) == TortoiseSettings.of("fast")
    with pytest.raises(UserError, match="ultra_fast"):
        TortoiseSettings.of("slow")


@pytest.mark.parametrize(
    ("name", "candidates", "steps", "guidance"),
    [("ultra_fast", 16, 30, None), ("fast", 96, 80, 2.0), ("standard", 256, 200, 2.0), ("high_quality", 256, 400, 2.0)],
)
def test_presets_with_upstreams_names_have_upstreams_values(name, candidates, steps, guidance):
    preset = PRESETS[name]
    assert preset.upstream
    assert (preset.candidates, preset.diffusion) == (candidates, Diffusion(steps, "p", guidance))


@pytest.mark.parametrize(("ours", "upstreams"), [("1x10", "ultra_fast"), ("16x10_guided", "fast")])
def test_our_presets_take_less_work_than_the_upstream_presets_they_replace(ours, upstreams):
    """In candidates, and in passes of the denoiser: two a step where it is guided."""
    few, many = PRESETS[ours], PRESETS[upstreams]
    assert bool(few.diffusion.guidance) == bool(many.diffusion.guidance)
    assert few.candidates < many.candidates
    assert few.diffusion.steps <= many.diffusion.steps / 3


@pytest.mark.parametrize("unknown", [{"loudness": 3}, {"sampling": {"warmth": 1}}, {"sampling": 5}])
def test_settings_of_a_later_version_are_refused(unknown):
    with pytest.raises(UserError, match="update tortoise-ane"):
        TortoiseSettings.of(model=unknown)


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
    ],
)
def test_an_error_in_a_models_settings_names_the_model_and_no_flag(own, part):
    with pytest.raises(UserError, match=r"the model's settings in bundle\.json") as caught:
        TortoiseSettings.of(model=own)
    assert re.search(part, str(caught.value))
    assert "--" not in str(caught.value)


def test_a_share_may_be_a_whole_number_and_typical_mass_may_be_null():
    own = {"sampling": {"temperature": 1, "typical_mass": None}}
    assert TortoiseSettings.of(model=own).sampling == Sampling(temperature=1)


def test_a_preset_describes_its_work():
    assert PRESETS["fastest"].work == "1 candidate, no diffusion"
    assert PRESETS["ultra_fast"].work == "16 candidates × 30 steps"
    assert PRESETS["high_quality"].work == "256 candidates × 400 guided steps"


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
    with pytest.raises(UserError, match=f"^{parameter} must be") as caught:
        TortoiseSettings.of("fastest", **{parameter: value})
    assert "--" not in str(caught.value)


OFFICIAL = UnifiedVoiceConfig()


def chunk_texts(text: str, synthesizer, settings=HIFIGAN) -> list[str]:
    chunks = split_into_chunks(text, synthesizer.model, settings)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    return [chunk.text for chunk in chunks]


def test_a_chunk_without_words_is_skipped_and_a_text_of_such_chunks_refused(synthesizer):
    text = "The turtle was first. | * * * | The rabbit came second."
    assert chunk_texts(text, synthesizer, CHUNKED) == ["The turtle was first.", "The rabbit came second."]
    assert chunk_texts("Hello there. | <br> | Goodbye.", synthesizer) == ["Hello there.", "Goodbye."]
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
