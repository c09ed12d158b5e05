"""Iterators that draw from each other are closed together."""

import pytest

from ane.system.iterators import closing_source


def test_a_source_is_closed_however_the_block_ends():
    closed = []

    def numbers():
        try:
            yield from range(3)
        finally:
            closed.append(True)

    source = numbers()
    with closing_source(source):
        next(source)
    assert closed == [True]
    source = numbers()
    next(source)
    with pytest.raises(ValueError, match="half"), closing_source(source):
        raise ValueError("half")
    assert closed == [True, True]


def test_a_source_that_cannot_be_closed_is_left_alone():
    with closing_source([1, 2]) as nothing:
        assert nothing is None
