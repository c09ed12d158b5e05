"""Read SSML 1.1, the W3C's Speech Synthesis Markup Language, as far as the models support what it asks for.

Markup that does not change the words, such as ``<emphasis>``, is ignored, and a note says so. Markup that decides which
words are spoken is an error if it cannot be read. One message reports all faults of a document, with their lines.
"""

import html
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from xml.parsers import expat

from ane.system.errors import UserError
from ane.text.passages import GAINS, SPEEDS, Passage, duration_seconds
from ane.text.say_as import BLEEPED, say_as

BLEEP = 0.4  # length of the pause that replaces an expletive, in seconds
MAX_DEPTH = 100  # largest number of nested elements
MAX_FAULTS = 20  # largest number of faults in a message
# Supported elements, with their attributes that have an effect.
ELEMENTS = {
    "speak": ("xml:lang",),
    "p": ("xml:lang",),
    "s": ("xml:lang",),
    "break": ("time", "strength"),
    "sub": ("alias",),
    "say-as": ("interpret-as", "format", "detail", "language"),
    "prosody": ("rate", "volume"),
    "voice": ("name",),
    "lang": ("xml:lang",),
}
# Elements that are ignored, with advice that ends the note about them. Elements with a prefix, such as amazon:effect,
# are ignored, too.
WITHOUT_EFFECT = {
    "emphasis": "",
    "mark": "",
    "w": "",
    "token": "",
    "meta": "",
    "metadata": "",
    "phoneme": ": respell the word with <sub> or a lexicon",
    "lexicon": ": give a lexicon together with the text",
    "audio": ": the text in it is spoken, and its sound is not played",
    "desc": "",
}
KNOWN = f"supported are {', '.join(ELEMENTS)}. Without effect are {', '.join(WITHOUT_EFFECT)}"
WITHOUT_SPEAK = "the text is not within <speak>: write <speak>TEXT</speak>"
SILENT = ("meta", "metadata", "lexicon", "desc")  # elements whose text is not spoken
HARMLESS = ("xmlns", "version", "id", "xml:id", "xml:base", "xsi:schemaLocation", "onlangfailure")
REQUIRED = {"sub": "alias", "say-as": "interpret-as"}
STRENGTHS = {"none": 0.0, "x-weak": 0.0, "weak": 0.2, "medium": 0.4, "strong": 0.8, "x-strong": 1.2}  # seconds
RATES = {"x-slow": 0.5, "slow": 0.8, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.6}
VOLUMES = {"silent": 0.0, "x-soft": 0.25, "soft": 0.5, "medium": 1.0, "default": 1.0, "loud": 1.41, "x-loud": 2.0}
PROSODY = {"rate": (RATES, SPEEDS, '"120%"'), "volume": (VOLUMES, GAINS, '"-6dB"')}  # named values, limits, example
TEXT_ONLY = ("sub", "say-as")  # elements that may contain text but no elements


def read_ssml(document: str) -> list[Passage]:
    """Read an SSML document. Returns at least one passage. ``read_passages`` says which errors this raises."""
    return list(merged(SsmlReader().read(document))) or [Passage("")]


def ssml_notes(document: str) -> list[str]:
    """List the markup of a valid document that has no effect: one sentence for each kind, with its line numbers."""
    reader = SsmlReader()
    reader.read(document)
    return [f"SSML, line {', '.join(map(str, sorted(lines)))}: {note}" for note, lines in reader.notes.items()]


@dataclass(frozen=True)
class SsmlElement:
    """An element that has not ended yet, with the speed, gain and voice of the text in it."""

    name: str
    attributes: Mapping[str, str]
    speed: float
    gain: float
    voice: str = ""
    first: int = 0  # index of the first passage in the element


class SsmlReader:
    """Reads a document and collects its passages. It rejects document types, so that no external file is read."""

    def __init__(self) -> None:
        self.passages: list[Passage] = []
        self._open: list[SsmlElement] = []
        self._text = ""  # the text so far of a TEXT_ONLY element that has not ended
        self._replaced = False  # whether the last text came from a TEXT_ONLY element
        self.faults: list[str] = []  # messages with line numbers
        self.notes: dict[str, set[int]] = {}  # sentence about markup without effect → line numbers

    def read(self, document: str) -> list[Passage]:
        # The document is a str, so the encoding that it declares no longer applies.
        parser = self._parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True

        def refuse_doctype(*_: object) -> None:
            raise self.error("a document type (<!DOCTYPE …>) is not accepted: leave it out")

        parser.StartElementHandler, parser.EndElementHandler = self.start, self.end
        parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = self.text, refuse_doctype
        try:
            parser.Parse(document.encode("utf-8", "replace"), True)
        except expat.ExpatError as error:
            before = document.encode("utf-8", "replace")[: max(0, parser.ErrorByteIndex)].decode("utf-8", "replace")
            self.fault(*xml_fault(document, before, error.code))
        if self.faults:
            more = len(self.faults) - MAX_FAULTS
            raise UserError(
                "SSML, "
                + "; ".join(self.faults[:MAX_FAULTS])
                + (f"; and {more} more fault{'s' * (more > 1)}" if more > 0 else "")
            )
        return self.passages

    def fault(self, text: str, line: int = 0, column: int = 0) -> None:
        """Record a fault of the document. ``read`` reports all faults together."""
        where = f"line {line or self._parser.CurrentLineNumber}{f', column {column}' if column else ''}"
        self.faults.append(f"{where}: {text}")

    def note(self, text: str) -> None:
        """Record a note about markup that has no effect."""
        self.notes.setdefault(text, set()).add(self._parser.CurrentLineNumber)

    def error(self, fault: str) -> UserError:
        """Build the error for a fault after which the rest of the document cannot be read."""
        return UserError(f"SSML, line {self._parser.CurrentLineNumber}: {fault}")

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        parent = self._open[-1] if self._open else None
        if len(self._open) >= MAX_DEPTH:
            raise self.error(f"elements are nested more than {MAX_DEPTH} deep")
        if parent is None and name.lower() != "speak":
            raise self.error(WITHOUT_SPEAK)
        if name == "speak" and parent and not self.faults:  # Google's <media> contains <speak>, but is a fault itself
            self.fault("<speak> within <speak>: leave out the inner one")
        self._check(name, attributes, parent)
        speed, gain = (parent.speed, parent.gain) if parent else (1.0, 1.0)
        if name == "prosody":
            speed, gain = self._prosody(attributes, "rate", speed), self._prosody(attributes, "volume", gain)
        voice = (attributes.get("name", "").strip() if name == "voice" else "") or (parent.voice if parent else "")
        if name in ("p", "s"):
            self._end_sentence()
        self._open.append(SsmlElement(name, attributes, speed, gain, voice, len(self.passages)))
        if name in TEXT_ONLY:
            self._text = ""
        if name == "break":
            self.passages.append(Passage("", self._pause(attributes)))

    def _check(self, name: str, attributes: Mapping[str, str], parent: SsmlElement | None) -> None:
        """Record the faults of a start tag, and a note for each part of it that has no effect."""
        if name in WITHOUT_EFFECT or ":" in name:
            self.note(f"<{name}> has no effect{WITHOUT_EFFECT.get(name, '')}")
        elif name not in ELEMENTS:
            known = "" if any(" (supported are " in fault for fault in self.faults) else f" ({KNOWN})"
            lower = name.lower() in (*ELEMENTS, *WITHOUT_EFFECT)
            advice = f"write <{name.lower()}>, in lower case" if lower else f"remove it{known}"
            self.fault(f"<{name}> is not supported: {advice}")
        else:
            for attribute in attributes:
                if attribute not in (*ELEMENTS[name], *HARMLESS) and not attribute.startswith("xmlns:"):
                    self.note(f"{attribute} of <{name}> has no effect")
            if name == "prosody" and not attributes:
                self.note("<prosody> without rate or volume has no effect")
        if parent and parent.name in (*TEXT_ONLY, "break"):
            self.fault(
                f"<{parent.name}> contains an element, but it must contain "
                + ("nothing" if parent.name == "break" else "only text")
            )
        if not (language := attributes.get("xml:lang", "en")).lower().startswith("en"):
            self.note(f"xml:lang {language!r} has no effect, because all text is read as English")
        required = REQUIRED.get(name) or ("name" if name == "voice" and not attributes.keys() - {"name"} else "")
        if required and not attributes.get(required, "").strip():
            self.fault(f"<{name}> has no {required}: add it")

    def text(self, text: str) -> None:
        element = self._open[-1]
        if any(one.name in SILENT for one in self._open):
            return
        if element.name in TEXT_ONLY:
            self._text += text
        elif element.name == "break" and text.strip():
            self.fault(
                "<break> contains text, but it must be empty", max(1, self._parser.CurrentLineNumber - text.count("\n"))
            )
        else:
            self._add(text, element)

    def end(self, name: str) -> None:
        element = self._open.pop()
        if name == "sub":
            self._add(element.attributes.get("alias", ""), element)
        elif name == "say-as" and element.attributes.get("interpret-as") in BLEEPED:
            self.note("a pause replaces an expletive")
            self.passages.append(Passage("", BLEEP))
        elif name == "say-as":
            kind, form = element.attributes.get("interpret-as", ""), element.attributes.get("format", "")
            if form and kind not in ("date", "time"):
                self.note(f"format has no effect on interpret-as {kind!r}")
            try:
                self._add(say_as(self._text, kind, form), element)
            except ValueError as error:
                if kind:  # a missing interpret-as has been recorded as a fault
                    self.fault(str(error))
        elif name == "audio" and not any(passage.text.strip() for passage in self.passages[element.first :]):
            self.fault("<audio> has no text to speak instead of its sound: write text into it, or remove it")
        elif name in ("p", "s"):
            self._end_sentence()

    def _add(self, text: str, element: SsmlElement) -> None:
        """Append text. The text of a TEXT_ONLY element is a separate word, so spaces separate it from other letters."""
        before = self.passages[-1].text[-1:] if self.passages else ""
        replaced = element.name in TEXT_ONLY
        if (replaced or self._replaced) and before.isalnum() and text[:1].isalnum():
            text = f" {text}"
        self._replaced = replaced
        self.passages.append(Passage(text, 0.0, element.speed, element.gain, element.voice))

    def _end_sentence(self) -> None:
        """End the paragraph, and add a period if it does not end with a punctuation mark."""
        for index in range(len(self.passages) - 1, -1, -1):
            passage = self.passages[index]
            if text := passage.text.rstrip():
                mark = "." if text[-1].isalnum() else ""
                self.passages[index] = replace(passage, text=f"{text}{mark}\n\n")
                return
            if passage.silence:
                return

    def _pause(self, attributes: Mapping[str, str]) -> float:
        """Return the seconds of a <break>, or 0 if its attributes are not valid."""
        if "time" in attributes:
            try:
                return duration_seconds(
                    attributes["time"].strip(), f"break {attributes['time']!r}", 'time="500ms" or time="1.5s"'
                )
            except UserError as error:
                self.fault(str(error))
                return 0.0
        strength = attributes.get("strength", "medium").strip()
        if strength not in STRENGTHS:
            self.fault(f"strength of <break> is {strength!r}: it must be one of {', '.join(STRENGTHS)}")
        return STRENGTHS.get(strength, 0.0)

    def _prosody(self, attributes: Mapping[str, str], name: str, around: float) -> float:
        """Apply an attribute of <prosody>. Returns the new speed or gain, within the limits.

        Args:
            attributes: Attributes of the element.
            name: Name of the attribute, "rate" or "volume".
            around: Speed or gain of the text around the element.
        """
        named, (least, most), example = PROSODY[name]
        text = attributes.get(name, "medium").strip()
        value = named[text] if text in named else prosody_factor(name, text)
        if value is None:
            self.fault(
                f"{name} of <prosody> is {text!r}: write one of {', '.join(named)}, or a value such as {example}"
            )
            return around
        result = min(max(around * value, least), most)
        if result != around * value:
            self.note(
                f"{name} of <prosody>, together with the elements around it, is {around * value:g} times the normal "
                f"{name}: {result:g} is used instead"
            )
        return result


def xml_fault(document: str, before: str, code: int) -> tuple[str, int, int]:
    """Explain why expat stopped. Returns the message, and the line and the column of the fault, from 1.

    Args:
        document: The document.
        before: The text before the place where expat stopped.
        code: Expat's number for the fault.
    """
    fault, place = f"not well-formed XML ({expat.ErrorString(code)}): correct it", len(before)
    if not re.match(r"\s*<", document) or expat.ErrorString(code) == expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT:
        fault = WITHOUT_SPEAK
    elif entity := re.match(r"&[\w.-]+;", document[place:]):
        character = html.unescape(entity[0])
        instead = character if character != entity[0] else "the character itself"
        fault = f"{entity[0]} is not well-formed XML: write {instead}"
    elif sign := re.search(r"&[\w#]*\Z|<\Z", before):
        fault, place = f"a single {sign[0][0]} is not well-formed XML: write {html.escape(sign[0][0])}", sign.start()
    return fault, document.count("\n", 0, place) + 1, place - document.rfind("\n", 0, place)


def prosody_factor(name: str, text: str) -> float | None:
    """Convert "120%", "+20%" or "1.2" to the rate 1.2, and "-6dB" to the volume 0.501. Other text becomes ``None``."""
    if name == "volume":
        match = re.fullmatch(r"([+-]?\d{1,3}(?:\.\d+)?)dB", text)
        return round(10 ** (float(match[1]) / 20), 3) if match else None
    if re.fullmatch(r"[+-]?\d{1,4}(?:\.\d+)?%", text):
        share = float(text[:-1]) / 100
        return 1 + share if text[0] in "+-" else share
    return float(text) if re.fullmatch(r"\d{0,2}\.\d+|\d{1,2}", text) else None


def merged(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Join consecutive passages with the same voice, speed and gain and no silence between them. Drop empty ones."""
    held: Passage | None = None
    for passage in passages:
        alike = (
            held and not held.silence and replace(held, text="", silence=0.0) == replace(passage, text="", silence=0.0)
        )
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
