r"""Convert Unicode text to ASCII, except for a few signs that the English normaliser spells out later.

Letters and digits of every script become ASCII (é → e, Я → Ya, ３ → 3). Line breaks become "\n". Emoji, other pictures
and other control characters are dropped.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Literal

from anyascii import anyascii

from ane.system.errors import UserError
from ane.text.lexicon import CURRENCIES, DETERMINERS, ELEMENTS, RULERS, UNITS
from ane.text.number_words import roman
from ane.text.rule import TextRule, any_of, follows, rule, with_signs

# Signs that stay, because the normaliser has rules for them.
KEPT = frozenset("°–—×÷±≈≠≤≥√∞§¶©µ→²³‰−").union(sign for sign in CURRENCIES if len(sign) == 1 and not sign.isascii())

REPLACED = {
    **dict.fromkeys("“”„‟«»″〝〞「」『』", '"'),
    **dict.fromkeys("‘’‚‛′‵ʼʻ‹›´", "'"),
    **dict.fromkeys("‐‑⁃•‣", "-"),
    "‒": "–",
    "―": "—",
    "…": "...",
    "⋯": "...",
    "·": " ",
    "º": "°",
    "˚": "°",
    "⁄": "/",
    "∕": "/",
    "∗": "*",
    "⋅": "×",
    "∼": "~",
    "≃": "≈",
    "≅": "≈",
    "⇒": "→",
    "⟶": "→",
    "￡": "£",
    "￥": "¥",
    "℃": "°C",
    "℉": "°F",
    "№": "No. ",
    "℅": "care of ",
    "♭": " flat ",
    "♯": " sharp ",
    "♮": " natural ",
    "™": "",
    "®": "",
    "¡": "",
    "¿": "",
    "†": "",
    "‡": "",
    "₨": "Rs ",
    "\u2028": "\n",
    "\u2029": "\n\n",
    "\x85": "\n",
    "、": ", ",
    "。": ". ",
    "，": ", ",
    "！": "! ",
    "？": "? ",
    "：": ": ",
    "；": "; ",
}
SIGN_NAMES = {
    "∑": "the sum of",
    "∏": "the product of",
    "∫": "the integral of",
    "∂": "partial",
    "∈": "in",
    "∝": "proportional to",
    "⊥": "perpendicular to",
}
SCRIPTS = {"CJK": "Chinese", "HIRAGANA": "Japanese", "KATAKANA": "Japanese", "HANGUL": "Korean"}
WORD = re.compile(
    r"[^\W\d_a-zA-Z](?:[^\W\d_a-zA-Z]|(?!\w)[\u0300-\u1cff])*"
)  # a word with letters that are not ASCII, and their combining marks
# Boxes, shapes and modifiers. They only decorate a text, so no note names them.
ORNAMENT = re.compile("[\u02b0-\u02ff\u2400-\u25ff\u2756-\u2767\u2b12-\u2bff\U0001f3fb-\U0001f3ff]")
LETTER_NAME = re.compile(r" (?:LETTER|SYLLABLE|CHARACTER|VOWEL SIGN) (.+?)(?: WITH .*)?$")
# What to do with words that are not in Latin script, and the end of the warning about them.
Unreadable = Literal["nearest", "spell", "skip", "refuse"]
UNREADABLE: dict[Unreadable, str] = {
    "nearest": "read as the English ones nearest to them: the voice speaks English",
    "spell": "spelt by name",
    "skip": "left out",
    "refuse": "refused",
}
GREEK = "[\u0370-\u03ff\u1f00-\u1fff]"
SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ"
SUPERSCRIPT_DIGITS = str.maketrans(SUPERSCRIPTS + "⁺", "0123456789-n+")
ELEMENT = any_of(ELEMENTS)


@lru_cache(maxsize=4096)
def ascii_character(character: str) -> str:
    """Write one character in ASCII. Letters and numbers of any script are romanised. Unknown symbols become a space."""
    if character.isascii():
        return character if character.isprintable() or character == "\n" else " " if character.isspace() else ""
    if character in KEPT:
        return character
    if character in REPLACED:
        return REPLACED[character]
    category = unicodedata.category(character)
    romanised = anyascii(character)
    if category[0] in "LMN":
        if "/" in romanised:
            return f" {romanised}"  # the space makes 2½ "2 1/2"
        return f"{romanised} " if "一" <= character <= "\u9fff" else romanised
    if category[0] == "P":
        return romanised
    if category in ("Sc", "Sm"):
        return spoken_sign(character)
    plain = unicodedata.normalize("NFKC", character)
    return (
        "" if category[0] == "C" else plain if category == "So" and plain.isascii() else " "
    )  # for example, ㎏ becomes kg


def spoken_sign(character: str) -> str:
    """Read a currency or mathematical sign by its Unicode name: ∪ as "union". An arrow becomes a space."""
    plain, name = unicodedata.normalize("NFKC", character), unicodedata.name(character, "").lower()
    if len(plain) == 1 and plain.isascii():
        return plain
    return " " if "arrow" in name else f" {SIGN_NAMES.get(character) or name.removesuffix(' sign').replace('-', ' ')} "


def script_of(word: str) -> str:
    """Return the script of a word, such as "Cyrillic". Returns "" for Latin script, and for a single Greek letter."""
    if re.fullmatch(GREEK, word):  # a single Greek letter is a symbol
        return ""
    name = unicodedata.name(word[0], "").partition(" ")[0]
    latin = name in ("LATIN", "MODIFIER") or unicodedata.normalize("NFKC", word[0])[0].isascii()
    return "" if latin else SCRIPTS.get(name, name.capitalize())


def foreign_scripts(text: str) -> list[str]:
    """List the scripts other than Latin in which words of ``text`` are written."""
    return [] if text.isascii() else sorted(set(map(script_of, WORD.findall(text))) - {""})


def unread_signs(text: str) -> list[str]:
    """List the signs of ``text`` that are not spoken, such as "⌘", arrows and emoji, but not ornaments."""
    return (
        []
        if text.isascii()
        else sorted(
            character
            for character in set(text)
            if unicodedata.category(character) in ("Co", "Nl", "No", "Po", "Sm", "So")
            and character not in REPLACED
            and not ORNAMENT.match(character)
            and not ascii_character(character).strip()
        )
    )


def readable(text: str, unreadable: Unreadable) -> str:
    """Rewrite the words of ``text`` that are not in Latin script.

    Args:
        text: Text to rewrite.
        unreadable: Treatment of such words, a key of ``UNREADABLE``. "refuse" raises UserError if the text has such a
            word.
    """

    def replaced(match: re.Match[str]) -> str:
        script = script_of(word := match[0])
        if script and unreadable == "refuse":
            raise UserError(
                f"unreadable is refuse, and the text has {script} letters, as in {word[:40]!r}: write the word in "
                "Latin letters, or choose another value",
                "unreadable",
            )
        spelt = " ".join(filter(None, map(letter_name, word))) if unreadable == "spell" else ""
        return spelt if script else word

    return text if unreadable == "nearest" or text.isascii() else WORD.sub(replaced, text)


def letter_name(character: str) -> str:
    """Return the name of a letter: "pe" for П, "ko" for こ.

    A character that has no name of its own, such as a Chinese character, is romanised.
    """
    match = LETTER_NAME.search(unicodedata.name(character, ""))
    return match[1].lower() if match else anyascii(character)


def expand_roman_character(match: re.Match) -> str:
    """Write Chapter Ⅻ as "Chapter 12", but Henry Ⅷ as "Henry VIII"."""
    letters = unicodedata.normalize("NFKC", match[0]).upper()
    return letters if follows(match, RULER_BEFORE) else str(roman(letters))


def expand_greek(match: re.Match) -> str:
    """Read a single Greek letter by its name, because it is a symbol: α is "alpha", and Δt is "delta t"."""
    return unicodedata.name(match[1]).split()[-1].lower() + (" " if match[2] else "")


def expand_superscript(match: re.Match) -> str:
    """Write 10⁶ as 10^6. Later rules read x² and km³. A superscript after a word is a footnote's mark, and dropped."""
    found = follows(match, SUPERSCRIPT_BEFORE)
    base = found[0] if found else ""
    if not base or (
        len(base) > 1 and base not in UNITS and base not in FUNCTIONS and re.search("[aeiouAEIOU]", base)
    ):  # a word
        return ""
    if match[0] in ("²", "³"):
        return match[0]
    return f"^{match[0].translate(SUPERSCRIPT_DIGITS)}" if len(base) == 1 else ""


SUPERSCRIPT_BEFORE = re.compile(r"(?:(?<![A-Za-z])[A-Za-z]{1,3}|[\d)])\Z")
FUNCTIONS = frozenset(("sin", "cos", "tan", "log"))


def expand_raised(match: re.Match) -> str:
    """Write 10<sup>6</sup> as 10⁶, 5<sup>th</sup> as 5th, and x<sup>n+1</sup> as x^(n+1)."""
    raised = match[1].strip()
    if re.fullmatch(r"[-−]?\d{1,3}|n|\d?[-−+]", raised):
        return raised.translate(RAISED)
    if re.fullmatch("[A-Za-z]{1,3}", raised):
        return raised
    return f"^({raised})" if follows(match, POWER_BEFORE) else f" {raised} "


RAISED = str.maketrans("0123456789-−n+", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻ⁿ⁺")
POWER_BEFORE = re.compile(r"(?:[\d)]|\b[A-Za-z])\Z")


def expand_mark(match: re.Match) -> str:
    """Read the ™ in "the ™ sign" and "write ™ after it" by its name. After a name ("Coke ™") it is not spoken.

    The sign is not spoken among pictures, either.
    """
    word = follows(match, WORD_BEFORE)
    named = SIGN_AFTER.match(match.string, match.end()) or (
        word and (word[1].islower() or word[1].lower() in DETERMINERS)
    )
    return MARKS[match[0]] if named else ""


MARKS = {"™": "trademark", "®": "registered trademark"}
WORD_BEFORE = re.compile(r"\b([A-Za-z][\w'-]*)\s[\"'(]?\Z")
SIGN_AFTER = re.compile(r"[\"')]?\s(?:sign|symbol|mark|character)s?\b")
CODE = re.compile(r"`[^`\s]+\Z")
RULER_BEFORE = re.compile(rf"\b(?i:{any_of(RULERS)})\s+\Z")

# These rules come first, because they look at more than one character.
RULES: tuple[TextRule, ...] = (
    rule("line ends", "\r\n?", "\n"),
    *with_signs(rule("composed characters", r"\S+", lambda match: unicodedata.normalize("NFC", match[0]))),
    rule("wasn`t", r"`(?<=[A-Za-z]`)(?=(?:[dmst]|ll|re|ve|all)\b)", lambda match: "`" if follows(match, CODE) else "'"),
    rule("I ♥ NY", r"[♥❤](?:(?<=\bI .)|(?<=\bI.))\ufe0f? ?(?=\w)", " love "),
    rule("10<sup>6</sup>", r"(?<=[\w).,;:!?\"'])<(?i:sup)>([^<>\n]{1,20})</(?i:sup)>", expand_raised),
    rule("H<sub>2</sub>O", r"(?<=\w)<(?i:sub)>([\w+-]{1,3})</(?i:sub)>", r"\1"),
    *with_signs(
        rule("n°5", r"\b[nN][°º]\s?(?=\d)", "No. "),
        rule(
            "∫₀¹",
            "∫([₀-₉])([⁰¹²³⁴-⁹])",
            lambda match: "the integral from {} to {} of ".format(*map(anyascii, match.groups())),
        ),
        rule("Ⅻ", r"[Ⅰ-Ⅿⅰ-ⅿ]+", expand_roman_character),
        rule("10 000 with a non-breaking space", r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))", ","),
        rule("5 kΩ", r"(?<=\d)(\s?)([mkMG]?)[Ω\u2126]", r"\1\2ohm"),
        rule("μm: micro", r"[μµ](?=(?:[mgslLFHAVWJ]|mol)\b)", "µ"),
        rule("µ: mu", r"µ(?!(?:[mgslLFHAVWJ]|mol)\b)", "μ"),
        rule("α", rf"(?<!{GREEK})([Α-ΡΣ-Ωα-ω])(?!{GREEK})(?=([A-Za-z]))?", expand_greek),  # U+03A2 is unassigned
        rule(
            "¹⁴C",
            rf"(?<![\w)\]])(?:[⁰¹²³⁴-⁹]{{2,3}}(?={ELEMENT}\b)|[²³](?=H))({ELEMENT})\b",
            lambda match: (
                f"{match[0].removesuffix(match[1]).translate(SUPERSCRIPT_DIGITS)} {' '.join(match[1].upper())}"
            ),
        ),
        rule(
            "Ca²⁺",
            rf"(?<=[A-Za-z₀-₉)\]])[²³⁴-⁹]?[⁺⁻](?![{SUPERSCRIPTS}⁺])",  # a later rule reads Ca^2+
            lambda match: f"^{match[0].translate(SUPERSCRIPT_DIGITS)}",
        ),
        rule("10⁶", f"[{SUPERSCRIPTS}]+", expand_superscript),
        rule("the ™ sign", r"[™®](?<![^\s\"'(][™®])(?![^\s\"').,;:!?])", expand_mark),
    ),
    rule("ASCII", r"[^ -~\n]", lambda match: ascii_character(match[0])),
)
