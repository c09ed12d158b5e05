"""Lengths of functions that are refused before anything is converted."""

import pytest

from ane.system.errors import UserError
from converters.coreml.options import CoreMLOptions
from converters.tortoise.buckets import check_buckets
from tests.random_model import RandomModel


def test_a_state_that_the_neural_engine_would_refuse_is_refused_with_the_next_length():
    with pytest.raises(UserError, match=r"step=450.*use 480"):
        check_buckets(CoreMLOptions(lanes=(1,), buckets={"step": (450,)}), RandomModel())
    check_buckets(CoreMLOptions(lanes=(1,), buckets={"step": (480,)}), RandomModel())
    check_buckets(CoreMLOptions(lanes=(1,), caches=("io",), buckets={"step": (450,)}), RandomModel())
