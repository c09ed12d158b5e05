"""Settings out of range, and settings from options."""

import pytest

from ane.models.fastspeech.settings import FastSpeechSettings
from ane.system.errors import UserError


@pytest.mark.parametrize(("name", "value"), [
    ("speed", 0.0), ("speed", 5.0), ("speed", float("nan")), ("split", (300, 200)), ("pause", -1.0), ("batch", 0),
    ("rounding", "up")])
def test_a_value_out_of_range_is_refused(name, value):
    with pytest.raises(UserError, match=f"^{name} must be"):
        FastSpeechSettings(**{name: value})


def test_options():
    settings = FastSpeechSettings.of()
    assert settings.changed({"split": (50, 60)}) == FastSpeechSettings(split=(50, 60))
    assert settings.changed({"no_split": True}).split is None
    with pytest.raises(UserError, match="split has no effect"):
        settings.changed({"no_split": True, "split": (1, 2)})
