"""Fixtures of the tests of the Tortoise model."""

import pytest

import ane
from ane.models.tortoise.synthesizer import Synthesizer


@pytest.fixture(scope="session")
def synthesizer() -> Synthesizer:
    """The embedded bundle on torch."""
    return ane.load("demo")
