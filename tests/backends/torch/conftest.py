"""Provide the instruction sets of this CPU for which the package has kernels, and restore the number of threads."""

from collections.abc import Iterator

import pytest
import torch

from ane.backends.torch.kernels import SWITCH, uses_amx

INSTRUCTIONS = [*["amx"] * uses_amx(), "vectors"]  # instruction sets of this CPU


@pytest.fixture(params=INSTRUCTIONS)
def instructions(request, monkeypatch) -> str:
    """The set by which layers that the test makes multiply."""
    if request.param == "vectors":
        monkeypatch.setenv(SWITCH, "vectors")
    assert uses_amx() == (request.param == "amx")
    return request.param


@pytest.fixture(autouse=True)
def _restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
