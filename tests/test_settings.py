"""Presets, and what a model adds to them."""

import pytest

from ane.diffusion import Diffusion
from ane.errors import UserError
from ane.sampling import Sampling
from ane.settings import PRESETS, Settings


@pytest.mark.parametrize("preset", PRESETS)
def test_a_models_own_settings_go_between_the_preset_and_what_is_asked_for(preset):
    model = {"sampling": {"repetition_penalty": 1.0}, "split": [80, 125]}
    plain, own = Settings.of(preset), Settings.of(preset, model)
    assert (own.candidates, own.diffusion) == (plain.candidates, plain.diffusion)
    assert own.sampling == Sampling(repetition_penalty=1.0)
    assert own.split == (80, 125)
    assert Settings.of(preset, model, split=None).split is None
    assert Settings.of(preset, model, diffusion=Diffusion(5)).diffusion.steps == 5


@pytest.mark.parametrize("unknown", [{"loudness": 3}, {"sampling": {"warmth": 1}}, {"sampling": 5}])
def test_settings_of_a_later_version_are_refused(unknown):
    with pytest.raises(UserError, match="update tortoise-ane"):
        Settings.of(model=unknown)


def test_an_unknown_preset_is_answered_with_those_there_are():
    with pytest.raises(UserError, match="ultra_fast"):
        Settings.of("slow")
