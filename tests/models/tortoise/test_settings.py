"""Presets, and what a model adds to them."""

import pytest

from ane.models.tortoise.diffusion import Diffusion
from ane.models.tortoise.sampling import Sampling
from ane.models.tortoise.settings import PRESETS, Settings
from ane.system.errors import UserError


@pytest.mark.parametrize("preset", PRESETS)
def test_a_models_own_settings_go_between_the_preset_and_what_is_asked_for(preset):
    model = {"sampling": {"repetition_penalty": 1.0}, "split": [80, 125], "silence": [0.1, 0.25]}
    plain, own = Settings.of(preset), Settings.of(preset, model)
    assert (own.candidates, own.diffusion) == (plain.candidates, plain.diffusion)
    assert own.sampling == Sampling(repetition_penalty=1.0)
    assert own.split == (80, 125)
    assert (plain.silence, own.silence) == (None, (0.1, 0.25))
    assert Settings.of(preset, model, split=None).split is None
    assert Settings.of(preset, model, diffusion=Diffusion(5)).diffusion.steps == 5


def test_a_model_may_name_its_default_preset_and_another_may_be_asked_for():
    assert Settings.of() == Settings.of("ultra_fast")
    assert Settings.of(model={"preset": "1x10"}) == Settings.of("1x10")
    assert Settings.of("fast", {"preset": "1x10"}) == Settings.of("fast")


@pytest.mark.parametrize(("1x10", "upstreams"), [("1x10", "ultra_fast"), ("16x10_guided", "fast")])
def test_presets_of_few_steps_are_less_work_than_the_one_of_upstream_that_they_stand_for(quick, upstreams):
    """In candidates, and in rows that the diffusion decoder takes: two a step where it is guided."""
    few, many = PRESETS[quick], PRESETS[upstreams]
    assert bool(few.diffusion.guidance) == bool(many.diffusion.guidance)
    assert few.candidates < many.candidates
    assert few.diffusion.steps <= many.diffusion.steps / 3


@pytest.mark.parametrize("unknown", [{"loudness": 3}, {"sampling": {"warmth": 1}}, {"sampling": 5}])
def test_settings_of_a_later_version_are_refused(unknown):
    with pytest.raises(UserError, match="update tortoise-ane"):
        Settings.of(model=unknown)


@pytest.mark.parametrize(("own", "part"), [
    ({"split": [80]}, "split"), ({"split": ["80", "125"]}, "split"), ({"split": "ab"}, "split"),
    ({"split": [80, 100, 125]}, "split"), ({"split": [125, 80]}, "split"), ({"split": [0, 80]}, "split"),
    ({"split": {"80": 1, "125": 2}}, "split"), ({"split": [True, True]}, "split"), ({"split": None}, "split"),
    ({"preset": "slow"}, "preset"), ({"preset": ["fast"]}, "preset"), ({"preset": None}, "preset"),
    ({"silence": 0.3}, "silence"), ({"silence": [0.1]}, "silence"), ({"silence": [0, 0.3]}, "silence"),
    ({"silence": [0.1, float("inf")]}, "silence"), ({"silence": [0.1, float("nan")]}, "silence"),
    ({"silence": ["0.1", "0.3"]}, "silence"), ({"silence": [True, True]}, "silence"),
    ({"sampling": {"max_codes": "many"}}, "max_codes"), ({"sampling": {"max_codes": 100.5}}, "max_codes"),
    ({"sampling": {"max_codes": 0}}, "max_codes"), ({"sampling": {"top_k": None}}, "top_k"),
    ({"sampling": {"temperature": 0}}, "temperature"), ({"sampling": {"temperature": [1]}}, "temperature"),
    ({"sampling": {"temperature": float("nan")}}, "temperature"), ({"sampling": {"typical_mass": "a"}}, "typical_mass"),
    ({"sampling": {"repetition_penalty": 0}}, "repetition-penalty"), ({"sampling": []}, "sampling")])
def test_a_models_unfit_settings_are_laid_to_the_model_not_to_a_flag(own, part):
    with pytest.raises(UserError, match=r"the model's settings \(bundle\.json\)") as caught:
        Settings.of(model=own)
    assert part in str(caught.value)
    assert "--" not in str(caught.value)


def test_whole_numbers_may_stand_for_shares_and_null_for_no_typical_sampling():
    own = {"sampling": {"temperature": 1, "typical_mass": None}}
    assert Settings.of(model=own).sampling == Sampling(temperature=1)


def test_an_unknown_preset_is_answered_with_those_there_are():
    with pytest.raises(UserError, match="ultra_fast"):
        Settings.of("slow")
