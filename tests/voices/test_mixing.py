"""Mixes of voices: how they are written, and their arithmetic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ane.system.errors import UserError
from ane.voices import Voice, mix_voices, parse_mix

ROW = npst.arrays(np.float32, (1, 8), elements=st.floats(-60, 60, width=32))
WEIGHT = st.floats(0, 1e6, allow_subnormal=True)


@given(ROW, st.lists(WEIGHT, min_size=1, max_size=5).filter(any))
def test_a_voice_mixed_with_itself_is_unchanged(row, weights):
    mixed = mix_voices([Voice(row, row[:, :3], "a")] * len(weights), weights)
    assert mixed.ar.dtype == mixed.diffusion.dtype == np.float32
    np.testing.assert_allclose(mixed.ar, row, rtol=2e-7)
    np.testing.assert_allclose(mixed.diffusion, row[:, :3], rtol=2e-7)


@given(ROW, ROW, WEIGHT.filter(lambda weight: weight > 1e-3), WEIGHT, st.floats(1e-3, 1e3))
def test_only_the_ratio_of_weights_matters(a, b, first, second, factor):
    voices = [Voice(a, a, "a"), Voice(b, b, "b")]
    mixed = mix_voices(voices, [first, second])
    np.testing.assert_allclose(mix_voices(voices, [first * factor, second * factor]).ar, mixed.ar, rtol=1e-6, atol=1e-5)
    expected = (first * a.astype(np.float64) + second * b.astype(np.float64)) / (first + second)
    np.testing.assert_allclose(mixed.ar, expected, rtol=1e-6, atol=1e-5)


@given(st.lists(ROW, min_size=1, max_size=5))
def test_a_mix_is_between_its_voices(rows):
    mixed = mix_voices([Voice(row, row, "a") for row in rows]).ar
    assert np.all(mixed >= np.min(rows, axis=0))
    assert np.all(mixed <= np.max(rows, axis=0))


def test_a_weight_of_zero_leaves_a_voice_out():
    a, b = (Voice(np.full((1, 4), value, np.float32), np.ones((1, 4), np.float32), name, clip_mels=(mel,))
            for name, value, mel in (("a", 1.0, "mel a"), ("b", 9.0, "mel b")))
    mixed = mix_voices([a, b], [2, 0])
    np.testing.assert_array_equal(mixed.ar, a.ar)
    assert mixed.clip_mels == ("mel a",)
    assert mix_voices([a, b]).clip_mels == ("mel a", "mel b")


@pytest.mark.parametrize(("spec", "names", "weights"), [
    ("a", ["a"], None), ("a&b", ["a", "b"], None), (" a & b ", ["a", "b"], None),
    ("a:0.3&b:0.7", ["a", "b"], [0.3, 0.7]),
    ("a : 1 & b:0", ["a", "b"], [1.0, 0.0]), ("x/a.pth:2&random:1e-1", ["x/a.pth", "random"], [2.0, 0.1]),
    (r"C:\voices\a&b", [r"C:\voices\a", "b"], None)])
def test_mixes_are_parsed(spec, names, weights):
    assert parse_mix(spec) == (names, weights)


@pytest.mark.parametrize("spec", ["", "&", "a&", "a&&b", "a:0.3&b", "a&b:1", "a:-1&b:2", "a:nan&b:1", "a:inf&b:1",
                                  "a:0&b:0", ":1"])
def test_malformed_mixes_are_refused(spec):
    with pytest.raises(UserError, match=r"^voice "):
        parse_mix(spec)
