"""Load the two embedded models once for each file of tests."""

import pytest

import ane


@pytest.fixture(scope="module")
def heart() -> ane.Speaker:
    return ane.load()


@pytest.fixture(scope="module")
def demo() -> ane.Speaker:
    return ane.load("demo")
