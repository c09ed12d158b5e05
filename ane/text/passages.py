"""A text with pauses and other markup as passages, each spoken at one speed and volume."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ane.system.errors import UserError
from ane.text.splitter import split
from ane.text.tokenizer import nothing_to_say_error, shorten

MAX_PAUSE = 60.0        # seconds
SPEEDS = (0.5, 2.0)     # of a passage, relative to the rest of the speech
GAINS = (0.0, 2.0)      # 2: 6 dB louder

# [voice:NAME] until [voice], [pause:1.5s], [pause:500ms], and the commands of macOS's say, [[slnc 500]], of which only
# that one is known here
COMMAND = re.compile(
    r"\[voice(?::(?P<voice>[^\[\]\n]{0,80}))?\]|\[pause\b(?P<pause>[^\]\n]{0,40})\]?"
    r"|\[\[\s*(?P<name>char|cmnt|ctxt|dlim|emph|inpt|nmbr|pbas|pmod|rate|rset|slnc"
    r"|sync|vers|volm|xtnd)\b(?P<value>[^\]\n]{0,40})(?:\]\])?")
DURATION = re.compile(r"\+?(\d{1,12}(?:\.\d{1,6})?|\.\d{1,6})\s*(ms|s)")

Encoded = TypeVar("Encoded")


@dataclass(frozen=True)
class Passage:
    """A piece of a text, and the silence after it.

    Attributes:
        text: may be empty.
        silence: seconds of silence after the text.
        speed: relative to the rest of the speech, 2 being twice as fast.
        gain: factor of the samples.
        voice: the name of who speaks; "": the voice of the whole speech.
    """

    text: str
    silence: float = 0.0
    speed: float = 1.0
    gain: float = 1.0
    voice: str = ""


@dataclass(frozen=True)
class Delivery:
    """How a chunk is spoken: speed, gain and voice as in ``Passage``, and seconds of silence before and after it."""

    speed: float = 1.0
    gain: float = 1.0
    before: float = 0.0
    after: float = 0.0
    voice: str = ""


PLAIN = Delivery()


def read_pauses(text: str, first_line: int = 1, strict: bool = True) -> list[Passage]:
    """The passages between the pauses of a text, and between its changes of voice.

    Args:
        first_line: the number of its first line, for messages. strict: whether what only looks like a pause is refused;
            otherwise it stays in the text.
    """
    passages, end, voice = [], 0, ""
    for match in COMMAND.finditer(text):
        if is_voice(match):
            if text[end:match.start()].strip():
                passages.append(Passage(text[end:match.start()], voice=voice))
            end, voice = match.end(), (match["voice"] or "").strip()
            continue
        try:
            silence = pause_seconds(match, f"line {first_line + text.count(chr(10), 0, match.start())}")
        except UserError:
            if strict:
                raise
            continue
        passages.append(Passage(text[end:match.start()], silence, voice=voice))
        end = match.end()
    return [*passages, Passage(text[end:], voice=voice)] if text[end:].strip() or not passages else passages


def is_voice(match: re.Match[str]) -> bool:
    """Whether a match of ``COMMAND`` changes the voice."""
    return match[0].startswith("[voice")


def last_voice(text: str, before: str = "") -> str:
    """The voice at the end of a text that ``before`` begins."""
    found = [(match["voice"] or "").strip() for match in COMMAND.finditer(text) if is_voice(match)]
    return found[-1] if found else before


def voice_of(text: str) -> str:
    """Who speaks a text of one voice, with its mark (``with_voice_mark``); "": it has none."""
    return last_voice(text.removesuffix("[voice]"))


def without_voices(text: str) -> str:
    """A text without its marks of voices."""
    return COMMAND.sub(lambda match: "" if is_voice(match) else match[0], text)


def with_voice_mark(text: str, voice: str) -> str:
    """A text that ``voice`` speaks, if it is not ""."""
    return f"[voice:{voice}]{text}[voice]" if voice else text


def without_words(text: str) -> str:
    """The last mark of a voice in a text, and pauses of the same length in all as the text has."""
    voices = [match[0] for match in COMMAND.finditer(text) if is_voice(match)][-1:]
    silence = sum(passage.silence for passage in read_pauses(text))
    pauses = [f"[pause:{min(MAX_PAUSE, silence - MAX_PAUSE * number):.3f}s]"
              for number in range(math.ceil(silence / MAX_PAUSE))]
    return "".join([*voices, *pauses])


def without_commands(text: str) -> str:
    """A text as it is read: neither pauses nor what only looks like one."""
    return " ".join(COMMAND.sub(" ", text).split()) if COMMAND.search(text) else text


def pause_seconds(match: re.Match[str], where: str) -> float:
    """Seconds of a match of ``COMMAND``. Raises UserError when it is no pause."""
    command, name = match[0], match["name"]
    if name not in (None, "slnc"):
        raise UserError(f"{where}: {command} is a command of macOS that is not known here; only [[slnc 500]], a pause "
                        "in milliseconds, is: remove it")
    if name:
        duration = f"{match['value'].strip()}ms" if command.endswith("]]") else ""
    else:
        duration = match["pause"].removeprefix(":").strip() if command.endswith("]") else ""
    example = "[[slnc 500]]" if name else "[pause:1.5s] or [pause:500ms]"
    return duration_seconds(duration, f"{where}: {command}", example)


def duration_seconds(duration: str, where: str, example: str) -> float:
    """"1.5s" → 1.5, "500ms" → 0.5. Raises UserError when it is no duration, or longer than ``MAX_PAUSE``."""
    found = DURATION.fullmatch(duration)
    if not found:
        raise UserError(f"{where} is not a pause: write {example}")
    seconds = float(found[1]) / (1000 if found[2] == "ms" else 1)
    if seconds > MAX_PAUSE:
        raise UserError(f"{where} is longer than {MAX_PAUSE:g} s, the longest pause: shorten it")
    return seconds


def split_to_fit(text: str | Sequence[Passage], encode: Callable[[str], tuple[int, Encoded] | None],
                 lengths: tuple[int, int] | None, most: int, unit: str) -> list[tuple[str, Encoded, Delivery]]:
    """A text without markup, or the passages of one, in pieces that networks take in one pass, without empty ones.

    Args:
        encode: returns how long what the networks take of a text is, and this; None if nothing in it can be spoken.
        lengths: desired and maximum characters of a piece; None: each passage is one.
        most: the most that a pass takes. unit: what of, for messages.

    Raises:
        UserError: nothing to say, or a piece that is too long and cannot be split or must not be.
    """
    def fitting(piece: str, maximum: int) -> list[tuple[str, Encoded]]:
        if (found := encode(piece)) is None:
            return []
        if found[0] <= most:
            return [(piece, found[1])]
        parts = [] if lengths is None else split(piece, *halves(min(maximum, len(piece))))
        if len(parts) < 2:
            raise UserError(f"{shorten(piece)!r} is {found[0]} {unit} long, and one pass takes at most {most}: "
                            + ("allow it to be split" if lengths is None else "insert spaces, or shorten it"))
        return [fit for part in parts for fit in fitting(part, len(part))]

    def pieces(passage: str) -> list[tuple[str, Encoded]]:
        parts = [passage] if lengths is None else split(passage, *lengths)
        return [fit for part in parts for fit in fitting(part, lengths[1] if lengths else len(part))]

    passages = [Passage(text)] if isinstance(text, str) else text
    return [(*piece, delivery) for piece, delivery in with_deliveries(passages, pieces)]


def halves(characters: int) -> tuple[int, int]:
    """Desired and maximum characters of the halves of a piece."""
    half = max(1, (characters + 1) // 2)
    return max(1, half * 3 // 4), half


def with_deliveries(passages: Sequence[Passage], split: Callable[[str], Sequence[Encoded]],
                    ) -> list[tuple[Encoded, Delivery]]:
    """The pieces of all passages, each with its delivery.

    The silence of a passage without any is added to that around it.

    Args:
        split: the pieces of a text; none if nothing in it can be spoken.

    Raises:
        UserError: nothing in any passage can be spoken.
    """
    result: list[tuple[Encoded, Delivery]] = []
    before = 0.0
    for passage in passages:
        pieces = split(passage.text)
        if pieces:
            delivery = Delivery(passage.speed, passage.gain, before, passage.silence, passage.voice)
            result += zip(pieces, spread(delivery, len(pieces)), strict=True)
            before = 0.0
        elif result:
            piece, delivery = result[-1]
            result[-1] = piece, replace(delivery, after=delivery.after + passage.silence)
        else:
            before += passage.silence
    if not result:
        raise nothing_to_say_error("".join(passage.text for passage in passages))
    return result


def spread(delivery: Delivery, parts: int) -> list[Delivery]:
    """The delivery of each part of a chunk: silence stays at both ends."""
    return [replace(delivery, before=delivery.before if index == 0 else 0.0,
                    after=delivery.after if index == parts - 1 else 0.0) for index in range(parts)]
