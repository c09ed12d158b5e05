"""Divide a text into passages, at its pauses and where the voice changes. A passage has one voice, speed and volume."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ane.system.errors import UserError

MAX_PAUSE = 60.0  # seconds
SPEEDS = (0.5, 2.0)  # smallest and largest speed of a passage, relative to the whole speech
GAINS = (0.0, 2.0)  # smallest and largest factor for the samples of a passage; 2 is 6 dB louder

# Commands in a text: [voice:NAME] until [voice], [pause:1.5s] or [pause:500ms], and the commands of macOS's `say`. Of
# these, only [[slnc 500]] has an effect here.
COMMAND = re.compile(
    r"\[voice(?::(?P<voice>[^\[\]\n]{0,80}))?\]|\[pause\b(?P<pause>[^\]\n]{0,40})\]?"
    r"|\[\[\s*(?P<name>char|cmnt|ctxt|dlim|emph|inpt|nmbr|pbas|pmod|rate|rset|slnc"
    r"|sync|vers|volm|xtnd)\b(?P<value>[^\]\n]{0,40})(?:\]\])?"
)
MARKED = re.compile(r"\[voice:([^\[\]\n]{1,80})\](.*)\[voice\]", re.DOTALL)
# Command of macOS's `say` without effect here → advice, for the error message.
INSTEAD = {
    "rate": "write SSML, where <prosody> has a rate, or change the speed of the whole text",
    "volm": "write SSML, where <prosody> has a volume",
    "emph": "remove it, because no voice has an emphasis",
    "char": "write SSML, where <say-as> spells out characters",
    "nmbr": "write SSML, where <say-as> spells out digits",
    "inpt": "respell words with a lexicon",
}
Quotation = tuple[int, int, str]  # its start and end in a text, and the name of the voice that speaks it
DURATION = re.compile(r"\+?(\d{1,12}(?:\.\d{1,6})?|\.\d{1,6})\s*(ms|s)")


@dataclass(frozen=True)
class Passage:
    """A piece of a text that is spoken with one voice, speed and volume, and the silence after it.

    Attributes:
        text: Text to speak. It may be empty.
        silence: Seconds of silence after the text.
        speed: Speed relative to the whole speech. 2 is twice as fast.
        gain: Factor by which the samples are multiplied.
        voice: Name of the voice. "" means the voice of the whole speech.
    """

    text: str
    silence: float = 0.0
    speed: float = 1.0
    gain: float = 1.0
    voice: str = ""


def read_pauses(
    text: str, first_line: int = 1, strict: bool = True, voice: str = "", quotations: Sequence[Quotation] = ()
) -> list[Passage]:
    """Divide a text at its pauses and where the voice changes.

    Args:
        text: Text with commands such as [pause:1.5s] and [voice:NAME].
        first_line: Line number of the text's beginning, for messages.
        strict: Whether an invalid command, such as [pause:x], is an error. If not, it stays in the text.
        voice: Name of the voice that speaks until the text names another one.
        quotations: Quotations in the text that have a voice, in order.
    """
    passages, end = list[Passage](), 0
    line, counted = first_line, 0
    changes: list[tuple[int, int, re.Match[str] | str]] = []
    for begin, stop, speaker in quotations:
        changes += (begin, begin, speaker), (stop, stop, "")
    changes += [(match.start(), match.end(), match) for match in COMMAND.finditer(text)]
    for begin, stop, match in sorted(changes, key=lambda change: change[0]):
        if isinstance(match, str) or is_voice(match):
            if text[end:begin].strip():
                passages.append(Passage(text[end:begin], voice=voice))
            end, voice = max(end, stop), match if isinstance(match, str) else (match["voice"] or "").strip()
            continue
        line, counted = line + text.count("\n", counted, begin), begin
        try:
            silence = pause_seconds(match, f"line {line}")
        except UserError as error:
            if strict:
                raise with_other_commands(error, text, match) from None
            continue
        passages.append(Passage(text[end:begin], silence, voice=voice))
        end = stop
    return [*passages, Passage(text[end:], voice=voice)] if text[end:].strip() or not passages else passages


def with_other_commands(error: UserError, text: str, first: re.Match[str]) -> UserError:
    """Add the other commands of macOS without effect to the error about the first of them."""
    others = [match[0] for match in COMMAND.finditer(text, first.end()) if match["name"] not in (None, "slnc")]
    more = f". Also without effect: {', '.join(dict.fromkeys(others))}" if first["name"] != "slnc" and others else ""
    return UserError(f"{error}{more}", error.parameter)


def is_voice(match: re.Match[str]) -> bool:
    """Return whether a match of ``COMMAND`` changes the voice."""
    return match[0].startswith("[voice")


def last_voice(text: str, before: str = "") -> str:
    """Return the voice that speaks at the end of a text. ``before`` is the voice at the beginning of the text."""
    voices = [(match["voice"] or "").strip() for match in COMMAND.finditer(text) if is_voice(match)]
    return voices[-1] if voices else before


def with_voice_mark(text: str, voice: str) -> str:
    """Put a text between [voice:NAME] and [voice], unless ``voice`` is ""."""
    return f"[voice:{voice}]{text}[voice]" if voice else text


def without_voice_mark(text: str) -> tuple[str, str]:
    """Undo ``with_voice_mark``. Returns the text, and the name of the voice or ""."""
    match = MARKED.fullmatch(text)
    return (match[2], match[1]) if match else (text, "")


def without_words(text: str) -> str:
    """Remove all words from a text, but keep the last change of voice, and the total silence of its pauses."""
    voices = [match[0] for match in COMMAND.finditer(text) if is_voice(match)][-1:]
    silence = sum(passage.silence for passage in read_pauses(text))
    pauses = [
        f"[pause:{min(MAX_PAUSE, silence - MAX_PAUSE * number):.3f}s]"
        for number in range(math.ceil(silence / MAX_PAUSE))
    ]
    return "".join([*voices, *pauses])


def without_commands(text: str) -> str:
    """Remove all commands from a text, valid and invalid ones."""
    return " ".join(COMMAND.sub(" ", text).split()) if COMMAND.search(text) else text


def pause_seconds(match: re.Match[str], where: str) -> float:
    """Return the seconds of a pause that ``COMMAND`` matched. Raises UserError if the match is not a valid pause."""
    command, name = match[0], match["name"]
    if name not in (None, "slnc"):
        raise UserError(
            f"{where}: {command} is a command of macOS without effect here: {INSTEAD.get(name, 'remove it')}"
        )
    if name:
        duration = f"{match['value'].strip()}ms" if command.endswith("]]") else ""
    else:
        duration = match["pause"].removeprefix(":").strip() if command.endswith("]") else ""
    example = "[[slnc 500]]" if name else "[pause:1.5s] or [pause:500ms]"
    return duration_seconds(duration, f"{where}: {command}", example)


def duration_seconds(duration: str, where: str, example: str) -> float:
    """Read "1.5s" as 1.5 and "500ms" as 0.5. Raises UserError for other text, and beyond ``MAX_PAUSE``."""
    match = DURATION.fullmatch(duration)
    if not match:
        raise UserError(f"{where} is not a pause: write {example}")
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1)
    if seconds > MAX_PAUSE:
        raise UserError(f"{where} is longer than {MAX_PAUSE:g} s, the longest pause that is allowed: shorten it")
    return seconds
