"""From any Unicode text to ASCII and the few symbols that ``english.py`` reads aloud.

Letters and digits of every script become ASCII (é → e, Я → Ya, ３ → 3), so what can be spoken is not lost. Emoji and
other pictures are dropped.
"""

import re
import unicodedata
from functools import lru_cache

from anyascii import anyascii

SPOKEN = frozenset("£€¥₹₩₽¢°–—×÷±≈≠≤≥√∞§©µ→²³")      # kept: english.py has a rule for each

REPLACED = {
    **dict.fromkeys("“”„‟«»″〝〞「」『』", '"'), **dict.fromkeys("‘’‚‛′ʼʻ‹›´", "'"),
    **dict.fromkeys("‐‑⁃•‣−", "-"), "‒": "–", "―": "—", "…": "...", "⋯": "...", "·": " ",
    "º": "°", "˚": "°", "⁄": "/", "∕": "/", "∗": "*", "⋅": "×", "∼": "~", "≃": "≈", "≅": "≈", "⇒": "→", "⟶": "→",
    "￡": "£", "￥": "¥", "℃": "°C", "℉": "°F", "№": "No. ", "℅": "care of ", "™": "", "®": "", "¡": "", "¿": "",
    "\u2028": "\n", "\u2029": "\n\n", "\x85": "\n",
    "、": ", ", "。": ". ", "，": ", ", "！": "! ", "？": "? ", "：": ": ", "；": "; ",
}
GREEK = "[\u0370-\u03ff\u1f00-\u1fff]"
SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
SUPERSCRIPT_DIGITS = str.maketrans(SUPERSCRIPTS, "0123456789-")


def to_ascii(text: str) -> str:
    """ASCII text, but for the signs in ``SPOKEN``. Line breaks are kept as "\\n"; other control characters go."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    for pattern, say in CONTEXTS:
        text = pattern.sub(say, text)
    return "".join(map(ascii_character, text))


@lru_cache(maxsize=4096)
def ascii_character(character: str) -> str:
    """One character on its own. Letters, marks and numbers of any script are romanised; unknown symbols are a space."""
    if character.isascii():
        return character if character.isprintable() or character == "\n" else " " if character.isspace() else ""
    if character in SPOKEN:
        return character
    if character in REPLACED:
        return REPLACED[character]
    category = unicodedata.category(character)
    romanised = anyascii(character)
    if category[0] in "LMN":
        if "/" in romanised:
            return f" {romanised}"                                      # 2½ → 2 1/2
        return f"{romanised} " if "一" <= character <= "\u9fff" else romanised
    if category[0] == "P":
        return romanised
    return "" if category[0] == "C" else " "


def say_greek(match: re.Match) -> str:
    """A Greek letter on its own is a symbol, and is called by its name: α → "alpha", Δt → "delta t"."""
    return unicodedata.name(match[1]).split()[-1].lower() + (" " if match[2] else "")


def say_power(match: re.Match) -> str:
    """Superscripts: x², km³ stay for the rules that read them, 10⁶ becomes 10^6, and a footnote mark goes."""
    base, superscript = match[1], match[2]
    if base and superscript in ("²", "³"):
        return match[0]
    return f"{base}^{superscript.translate(SUPERSCRIPT_DIGITS)}" if len(base) == 1 else base


# What only a longer context shows, in order, before the characters are taken one by one.
CONTEXTS = (
    (re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))"), ","),          # 10 000 written with a fixed space
    (re.compile(r"(?<=\d)(\s?)([kM]?)Ω"), r"\1\2ohm"),
    (re.compile(r"[μµ](?=(?:[mgslLFAVWJ]|mol)\b)"), "µ"),                      # micro, however it is written,
    (re.compile(r"µ(?!(?:[mgslLFAVWJ]|mol)\b)"), "μ"),                        # or the letter mu
    (re.compile(rf"(?<!{GREEK})([Α-Ωα-ω])(?!{GREEK})(?=([A-Za-z]))?"), say_greek),
    (re.compile(rf"((?<![A-Za-z])[A-Za-z]{{1,3}}|[\d)]|)([{SUPERSCRIPTS}]+)"), say_power),
)
