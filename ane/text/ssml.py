"""Reads SSML (W3C, Speech Synthesis Markup Language 1.1) as far as the models can do what it asks for.

What they cannot do is refused, with its line: it is neither spoken nor left out.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from xml.parsers import expat

from ane.system.errors import UserError
from ane.text import number_words
from ane.text.date_time_rules import MONTHS, RULES, TIME_RULES, month_day_words
from ane.text.english import SIGN_WORDS
from ane.text.markup_rules import ADDRESS_SIGNS
from ane.text.passages import GAINS, SPEEDS, Passage, duration_seconds
from ane.text.rule import TextRule, apply_rules

SIGN_NAMES = {sign: words.strip() for sign, words in ADDRESS_SIGNS.items()} | SIGN_WORDS | {
    "#": "hash", "*": "star", "&": "ampersand", "!": "exclamation mark", "?": "question mark", ",": "comma",
    ";": "semicolon", "'": "apostrophe", '"': "quotation mark", "(": "left parenthesis", ")": "right parenthesis",
    "<": "less than", ">": "greater than", "\\": "backslash", "|": "bar"}
TIME = re.compile(r"(?:[01]?\d|2[0-4]):[0-5]\d(?::[0-5]\d)?(?:\s?[aApP]\.?[mM]\.?)?|\d{1,2}\s?[aApP]\.?[mM]\.?")
DATE_FORMATS = ("mdy", "dmy", "ymd", "md", "dm", "ym", "my", "y", "m", "d")


def say_as(text: str, kind: str, form: str = "") -> str:
    """The words for ``text``, read as ``kind`` ("characters", "cardinal", …); ``form``: SSML's ``format``.

    Raises ValueError for an unknown kind or format, or a text that is not of the kind.
    """
    text = " ".join(text.split())
    if kind not in KINDS:
        raise ValueError(f"interpret-as {kind!r} is not supported: use one of {', '.join(KINDS)}")
    if form and kind not in ("date", "time"):
        raise ValueError(f"format has no effect on interpret-as {kind!r}: remove it")
    if not text:
        raise ValueError("<say-as> is empty: write what to say in it")
    return KINDS[kind](text, form)


def characters(text: str, _: str) -> str:
    """"A-1" → "A, dash, one"; letters keep their case, in which the normaliser reads them by name."""
    names = [character_name(character) for character in text if not character.isspace()]
    return ", ".join(names)


def character_name(character: str) -> str:
    if character.isdecimal():
        return number_words.digits(character)
    letter = unicodedata.normalize("NFD", character)[0]
    if letter.isascii() and letter.isalpha():
        return letter.upper()
    if character in SIGN_NAMES:
        return SIGN_NAMES[character]
    raise ValueError(f"{character!r} has no name to be read by: use <sub alias=…> for it")


def cardinal(text: str, _: str) -> str:
    found = re.fullmatch(r"([+-]?)((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)", text)
    if not found or not text.isascii():
        raise ValueError(f"{text!r} is not a number: write it in digits")
    return {"-": "minus ", "+": "plus ", "": ""}[found[1]] + number_words.number(found[2])


def ordinal(text: str, _: str) -> str:
    found = re.fullmatch(rf"(\d{{1,{number_words.LONGEST}}})(?:st|nd|rd|th)?", text.replace(",", ""))
    if not found or not text.isascii():
        raise ValueError(f"{text!r} is not a whole number: write it in digits")
    return number_words.ordinal(int(found[1]))


def telephone(text: str, _: str) -> str:
    if not re.fullmatch(r"\+?[\d\s().-]{2,40}", text) or not re.search(r"\d", text):
        raise ValueError(f"{text!r} is not a telephone number: it may have digits, +, -, ., spaces and brackets")
    return ("plus " if text.startswith("+") else "") + number_words.digit_groups(text)


def date(text: str, form: str) -> str:
    """With a format its parts are in that order; without one, what the normaliser reads as a date."""
    if not form:
        return by_rules(text, RULES, "a date: add a format such as mdy")
    if form not in DATE_FORMATS:
        raise ValueError(f"format {form!r} is not supported: use one of {', '.join(DATE_FORMATS)}")
    parts = re.findall(r"\d+|[^\W\d_]+", text)
    fault = ValueError(f"{text!r} is not a date of the format {form}: write its parts in that order, as 12/31/2024")
    if len(parts) != len(form):
        raise fault
    values = dict(zip(form, parts, strict=True))
    year, month, day = (values.get(part, "") for part in "ymd")
    if month and not month.isdigit():
        number = next((i for i, name in enumerate(MONTHS, 1) if len(month) > 2 and name.startswith(month.lower())), 0)
    else:
        number = int(month or 1)
    if not (1 <= number <= 12 and (not day or (day.isdigit() and 1 <= int(day) <= 31))
            and (not year or re.fullmatch(r"[12]\d{3}", year))):
        raise fault
    if month and day:
        return month_day_words(number, day, year or None)
    words = [number_words.ordinal(int(day))] if day else [MONTHS[number - 1]] if month else []
    return " ".join([*words, *([number_words.year(int(year))] if year else [])])


def time(text: str, form: str) -> str:
    if form not in ("", "hms12", "hms24"):
        raise ValueError(f"format {form!r} is not supported: use hms12 or hms24")
    if TIME.fullmatch(text):
        return by_rules(text, TIME_RULES, "a time: write it as 14:30 or 2:30 pm")
    raise ValueError(f"{text!r} is not a time: write it as 14:30 or 2:30 pm")


def by_rules(text: str, rules: tuple[TextRule, ...], wanted: str) -> str:
    """What the rules make of the whole text, which must leave no digit."""
    words = apply_rules(rules, text)
    if words == text or re.search(r"\d", words):
        raise ValueError(f"{text!r} is not {wanted}")
    return words


KINDS = {"characters": characters, "spell-out": characters, "cardinal": cardinal, "number": cardinal,
         "ordinal": ordinal, "date": date, "time": time, "telephone": telephone}


MAX_DEPTH = 100         # of elements in one another
# Elements, with their attributes.
ELEMENTS = {
    "speak": ("version", "xmlns", "xml:lang", "xmlns:xsi", "xsi:schemaLocation"), "p": ("xml:lang",),
    "s": ("xml:lang",), "break": ("time", "strength"), "sub": ("alias",),
    "say-as": ("interpret-as", "format", "detail"), "prosody": ("rate", "volume"), "voice": ("name",),
}
REQUIRED = {"sub": "alias", "say-as": "interpret-as", "voice": "name"}
STRENGTHS = {"none": 0.0, "x-weak": 0.0, "weak": 0.2, "medium": 0.4, "strong": 0.8, "x-strong": 1.2}     # seconds
RATES = {"x-slow": 0.5, "slow": 0.8, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.6}
VOLUMES = {"silent": 0.0, "x-soft": 0.25, "soft": 0.5, "medium": 1.0, "default": 1.0, "loud": 1.41, "x-loud": 2.0}
PROSODY = {"rate": (RATES, SPEEDS, '"120%"'), "volume": (VOLUMES, GAINS, '"-6dB"')}      # names, limits, an example
TEXT_ONLY = ("sub", "say-as")       # elements that hold text and no elements


def read_ssml(document: str) -> list[Passage]:
    """The passages of a document, at least one. ``read_passages`` states the errors."""
    return list(merged(SsmlReader().read(document))) or [Passage("")]


@dataclass(frozen=True)
class SsmlElement:
    """An open element, with the speed, gain and voice within it."""

    name: str
    attributes: Mapping[str, str]
    speed: float
    gain: float
    voice: str = ""


class SsmlReader:
    """Collects passages. No document type is accepted, so there are no entities and nothing external."""

    def __init__(self) -> None:
        self.passages: list[Passage] = []
        self._open: list[SsmlElement] = []
        self._text = ""             # of an element of TEXT_ONLY
        self._given = False         # whether the last text was that of such an element

    def read(self, document: str) -> list[Passage]:
        # the text is decoded: an encoding that it declares is out of date
        parser = self._parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True

        def refuse_doctype(*_: object) -> None:
            raise self.error("a document type (<!DOCTYPE …>) is not accepted: leave it out")

        parser.StartElementHandler, parser.EndElementHandler = self.start, self.end
        parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = self.text, refuse_doctype
        try:
            parser.Parse(document.encode("utf-8", "replace"), True)
        except expat.ExpatError as error:
            fault = f"not well-formed XML ({expat.ErrorString(error.code)}): correct it"
            raise self.error(fault, error.lineno) from error
        return self.passages

    def error(self, fault: str, line: int = 0) -> UserError:
        """``line``: 0: where the parser is."""
        return UserError(f"SSML, line {line or self._parser.CurrentLineNumber}: {fault}")

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        parent = self._open[-1] if self._open else None
        if len(self._open) >= MAX_DEPTH:
            raise self.error(f"elements are nested more than {MAX_DEPTH} deep")
        if (name == "speak") != (parent is None):
            raise self.error("the document must be one <speak> element" if parent is None else "<speak> within <speak>")
        if name not in ELEMENTS:
            raise self.error(f"<{name}> is not supported: remove it; {', '.join(ELEMENTS)} are")
        for attribute in attributes:
            if attribute not in ELEMENTS[name]:
                raise self.error(f"{attribute} of <{name}> is not supported: remove it"
                                 + (f"; {' and '.join(ELEMENTS[name])} are" if name == "prosody" else ""))
        if parent and parent.name in (*TEXT_ONLY, "break"):
            raise self.error(f"<{parent.name}> holds an element: it must hold "
                             + ("nothing" if parent.name == "break" else "text only"))
        if not attributes.get("xml:lang", "en").lower().startswith("en"):
            raise self.error(f"xml:lang is {attributes['xml:lang']!r}: only English is spoken")
        speed, gain = (parent.speed, parent.gain) if parent else (1.0, 1.0)
        if name == "prosody":
            if not attributes:
                raise self.error("<prosody> has neither rate nor volume: add one")
            speed, gain = self._prosody(attributes, "rate", speed), self._prosody(attributes, "volume", gain)
        voice = attributes.get("name", "").strip() if name == "voice" else parent.voice if parent else ""
        if (required := REQUIRED.get(name)) and not attributes.get(required, "").strip():
            raise self.error(f"<{name}> has no {required}: add it")
        if name in ("p", "s"):
            self._end_sentence()
        self._open.append(SsmlElement(name, attributes, speed, gain, voice))
        self._text = ""
        if name == "break":
            self.passages.append(Passage("", self._pause(attributes)))

    def text(self, text: str) -> None:
        element = self._open[-1]
        if element.name in TEXT_ONLY:
            self._text += text
        elif element.name == "break" and text.strip():
            raise self.error("<break> holds text: it must hold nothing",
                             max(1, self._parser.CurrentLineNumber - text.count("\n")))
        else:
            self._add(text, element)

    def end(self, name: str) -> None:
        element = self._open.pop()
        if name == "sub":
            self._add(element.attributes["alias"], element)
        elif name == "say-as":
            try:
                words = say_as(self._text, element.attributes["interpret-as"], element.attributes.get("format", ""))
            except ValueError as error:
                raise self.error(str(error)) from error
            self._add(words, element)
        elif name in ("p", "s"):
            self._end_sentence()

    def _add(self, text: str, element: SsmlElement) -> None:
        """Append text. What an element gives is a word of its own: a space is put between it and a letter beside it."""
        before = self.passages[-1].text[-1:] if self.passages else ""
        given = element.name in TEXT_ONLY
        if (given or self._given) and before.isalnum() and text[:1].isalnum():
            text = f" {text}"
        self._given = given
        self.passages.append(Passage(text, 0.0, element.speed, element.gain, element.voice))

    def _end_sentence(self) -> None:
        """End the paragraph of the text so far, with a period if it has no mark."""
        for index in range(len(self.passages) - 1, -1, -1):
            passage = self.passages[index]
            if text := passage.text.rstrip():
                mark = "." if text[-1].isalnum() else ""
                self.passages[index] = replace(passage, text=f"{text}{mark}\n\n")
                return
            if passage.silence:
                return

    def _pause(self, attributes: Mapping[str, str]) -> float:
        if "time" in attributes:
            return duration_seconds(attributes["time"].strip(), f"SSML, line {self._parser.CurrentLineNumber}: break "
                                    f"{attributes['time']!r}", 'time="500ms" or time="1.5s"')
        strength = attributes.get("strength", "medium").strip()
        if strength not in STRENGTHS:
            raise self.error(f"strength of <break> is {strength!r}: it must be one of {', '.join(STRENGTHS)}")
        return STRENGTHS[strength]

    def _prosody(self, attributes: Mapping[str, str], name: str, around: float) -> float:
        """What an attribute of <prosody> makes of the speed or the gain ``around`` it."""
        named, (least, most), example = PROSODY[name]
        text = attributes.get(name, "medium").strip()
        value = named[text] if text in named else prosody_factor(name, text)
        if value is None:
            raise self.error(f"{name} of <prosody> is {text!r}: write one of {', '.join(named)}, or a value such as "
                             f"{example}")
        if not least <= around * value <= most:
            raise self.error(f"{name} of <prosody> is {around * value:g} times the normal one, with those around it: "
                             f"it must be from {least:g} to {most:g}")
        return around * value


def prosody_factor(name: str, text: str) -> float | None:
    """"120%", "+20%" and "1.2" → 1.2 as a rate, "-6dB" → 0.501 as a volume; None: it is no value."""
    if name == "volume":
        found = re.fullmatch(r"([+-]?\d{1,3}(?:\.\d+)?)dB", text)
        return round(10 ** (float(found[1]) / 20), 3) if found else None
    if re.fullmatch(r"[+-]?\d{1,4}(?:\.\d+)?%", text):
        share = float(text[:-1]) / 100
        return 1 + share if text[0] in "+-" else share
    return float(text) if re.fullmatch(r"\d{0,2}\.\d+|\d{1,2}", text) else None


def merged(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Neighbours that sound alike and have no silence between them as one passage; empty ones are left out."""
    held: Passage | None = None
    for passage in passages:
        alike = held and not held.silence and replace(held, text="", silence=0.0) == replace(passage, text="",
                                                                                             silence=0.0)
        if held and alike:
            held = replace(passage, text=held.text + passage.text)
        elif held and not passage.text.strip():
            held = replace(held, silence=held.silence + passage.silence)
        else:
            if held:
                yield held
            held = passage
    if held:
        yield held
