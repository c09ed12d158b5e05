"""Test that one line rejects an archive of voices with a damaged member."""

import zipfile
from contextlib import suppress

import numpy as np
import pytest

from ane.models.styletts.voices import STYLE_WIDTH, read_tables
from ane.system.errors import UserError


def test_a_damaged_header_and_a_member_that_is_no_array_are_one_line(tmp_path):
    path = tmp_path / "voices.npz"
    np.savez(path, heart=np.zeros((2, STYLE_WIDTH), np.float32))
    assert read_tables(path).keys() == {"heart"}
    with zipfile.ZipFile(path) as archive:
        whole = archive.read("heart.npy")
    start = whole.index(b"{'descr'")
    for position in range(start, whole.index(b"}", start)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x15
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("heart.npy", damaged)
        with suppress(UserError):
            read_tables(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("heart.npy", b"not an array")
    with pytest.raises(UserError, match="voice heart is not an array"):
        read_tables(path)
