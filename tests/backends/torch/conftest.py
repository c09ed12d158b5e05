"""Provide the instruction sets of this CPU for which the package has kernels."""

import pytest

from ane.backends.torch.kernels import SWITCH, uses_amx

INSTRUCTIONS = [*["amx"] * uses_amx(), "vectors"]  # instruction sets of this CPU


@pytest.fixture(params=INSTRUCTIONS)
def instructions(request, monkeypatch) -> str:
    """The set by which layers that the test makes multiply."""
    if request.param == "vectors":
        monkeypatch.setenv(SWITCH, "vectors")
    assert uses_amx() == (request.param == "amx")
    return request.param
