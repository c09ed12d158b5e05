"""Every code point of Unicode, lone surrogates and unassigned ones included, is converted to readable characters."""

import re
import sys

import pytest

from ane.text.unicode_to_ascii import KEPT, to_ascii

READABLE = re.compile(rf"[ -~\n{''.join(KEPT)}]*")
PLANE = 0x10000


@pytest.mark.parametrize("context", ["{}", "{}1", "a{}b", "α{}", "5 {} "])
@pytest.mark.parametrize("plane", range((sys.maxunicode + 1) // PLANE))
def test_every_code_point_is_converted_in_every_context(plane, context):
    characters = map(chr, range(plane * PLANE, (plane + 1) * PLANE))
    assert READABLE.fullmatch(to_ascii("\n".join(map(context.format, characters))))


@pytest.mark.parametrize(("written", "converted"), {
    "\u03a2": "", "α \u03a2": "alpha ", "Δt, µm, 5 kΩ": "delta t, µm, 5 kohm", "\ud800a\udfff": "a", "λόγος": "logos",
    "10⁶, x², word³": "10^6, x², word", "10\u202f000": "10,000", "2½": "2 1/2", "中文": "Zhong Wen ", "\x00\x07": "",
    "a\r\nb\u2028c": "a\nb\nc",
}.items())
def test_letters_keep_their_sound_and_symbols_their_name(written, converted):
    assert to_ascii(written) == converted
