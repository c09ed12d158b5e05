"""Sets of instructions that the package's kernels have."""

import pytest

from ane.backends.torch.kernels import SWITCH, uses_amx

INSTRUCTIONS = [*["amx"] * uses_amx(), "vectors"]  # of this CPU


@pytest.fixture(params=INSTRUCTIONS)
def instructions(request, monkeypatch) -> str:
    """The set by which layers that the test makes multiply."""
    if request.param == "vectors":
        monkeypatch.setenv(SWITCH, "vectors")
    assert uses_amx() == (request.param == "amx")
    return request.param
