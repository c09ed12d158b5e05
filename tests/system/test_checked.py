"""Test that a wrong value for a checked dataclass gives one line with the field and the allowed values."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from ane.system.checked import validated
from tests.refusals import refusal_of


@validated
class Journey:
    days: Annotated[int, Field(ge=1)]
    by: Literal["train", "boat"] = "train"
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    speed: Annotated[float, Field(ge=0.5, le=2)] = 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"days": 0}, "days must be at least 1, got 0"),
        ({"days": "two"}, "days must be a whole number, got 'two'"),
        ({"days": 1.5}, "days must be a whole number, got 1.5"),
        ({"days": 1, "by": "car"}, "by must be one of train, boat, got 'car'"),
        ({"days": 1, "share": 0.0}, "share must be above 0 and at most 1, got 0.0"),
        ({"days": 1, "speed": 3}, "speed must be from 0.5 to 2, got 3"),
        ({}, "days is missing"),
        ({"days": 1, "weeks": 2}, "weeks is unknown"),
        ({"days": 0, "by": "car", "speed": 9}, "days must be at least 1, got 0"),
    ],
)
def test_the_first_wrong_value_is_named_with_what_it_may_be(values, message):
    assert refusal_of(Journey, **values) == message
