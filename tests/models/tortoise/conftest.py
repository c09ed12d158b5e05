"""Provide fixtures for the tests of the Tortoise model."""

import pytest

import ane
from ane.models.tortoise.synthesizer import TortoiseSpeaker


@pytest.fixture(scope="session")
def synthesizer() -> TortoiseSpeaker:
    """The embedded bundle on torch."""
    return ane.load("demo")
