"""A text with pauses and other markup as passages, each spoken at one speed and volume."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ane.system.errors import UserError
from ane.text.user_lexicon import Lexicon

MAX_PAUSE = 60.0        # seconds
SPEEDS = (0.5, 2.0)     # of a passage, relative to the rest of the speech
GAINS = (0.0, 2.0)      # 2: 6 dB louder

# [pause:1.5s], [pause:500ms], and the commands of macOS's say, [[slnc 500]], of which only that one is known here
COMMAND = re.compile(
    r"\[pause\b(?P<pause>[^\]\n]{0,40})\]?|\[\[\s*(?P<name>char|cmnt|ctxt|dlim|emph|inpt|nmbr|pbas|pmod|rate|rset|slnc"
    r"|sync|vers|volm|xtnd)\b(?P<value>[^\]\n]{0,40})(?:\]\])?")
DURATION = re.compile(r"\+?(\d{1,12}(?:\.\d{1,6})?|\.\d{1,6})\s*(ms|s)")

Chunk = TypeVar("Chunk")


@dataclass(frozen=True)
class Passage:
    """A piece of a text, and the silence after it.

    Attributes:
        text: may be empty.
        silence: seconds of silence after the text.
        speed: relative to the rest of the speech, 2 being twice as fast.
        gain: factor of the samples.
    """

    text: str
    silence: float = 0.0
    speed: float = 1.0
    gain: float = 1.0


@dataclass(frozen=True)
class Delivery:
    """How a chunk is spoken: speed and gain as in ``Passage``, and seconds of silence before and after it."""

    speed: float = 1.0
    gain: float = 1.0
    before: float = 0.0
    after: float = 0.0


PLAIN = Delivery()


def read_passages(text: str, lexicon: Lexicon | None = None, ssml: bool | None = None,
                  speed: float = 1.0) -> list[Passage]:
    """The passages of a text, at least one, with the words of the lexicon respelled.

    Args:
        speed: of all of the text; that of a passage is multiplied by it.
        ssml: whether the text is SSML; None: if it begins with "<speak". Other text may have [pause:1.5s] and
            [[slnc 500]].

    Raises:
        UserError: markup that is faulty, or asks for something that cannot be done; with its line.
    """
    if ssml is None:
        ssml = is_ssml(text)
    if ssml:
        from ane.text.ssml import read_ssml

        passages = read_ssml(text)
    else:
        passages = read_pauses(text)
    return [replace(passage, text=lexicon(passage.text) if lexicon else passage.text, speed=passage.speed * speed)
            for passage in passages]


def is_ssml(text: str) -> bool:
    return re.match(r"\s*(<\?xml[^>]{0,200}\?>\s*)?<speak[\s>/]", text) is not None


def read_pauses(text: str, first_line: int = 1, strict: bool = True) -> list[Passage]:
    """The passages between the pauses of a text.

    Args:
        first_line: the number of its first line, for messages. strict: whether what only looks like a pause is refused;
            otherwise it stays in the text.
    """
    passages, end = [], 0
    for match in COMMAND.finditer(text):
        try:
            silence = pause_seconds(match, f"line {first_line + text.count(chr(10), 0, match.start())}")
        except UserError:
            if strict:
                raise
            continue
        passages.append(Passage(text[end:match.start()], silence))
        end = match.end()
    return [*passages, Passage(text[end:])] if text[end:].strip() or not passages else passages


def without_faulty_commands(text: str) -> tuple[str, list[str]]:
    """A text without what ``read_pauses`` refuses, and this: of an author who knew nothing of such commands."""
    removed: list[str] = []

    def kept(match: re.Match[str]) -> str:
        try:
            pause_seconds(match, "")
        except UserError:
            removed.append(match[0])
            return " "
        return match[0]

    return COMMAND.sub(kept, text), removed


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


def with_deliveries(passages: Iterable[Passage], split: Callable[[str], Sequence[Chunk]],
                    ) -> list[tuple[Chunk, Delivery]]:
    """The chunks of all passages, each with its delivery.

    The silence of a passage without chunks is added to that around it.

    Args:
        split: the chunks of a text; none if nothing in it can be spoken.
    """
    result: list[tuple[Chunk, Delivery]] = []
    before = 0.0
    for passage in passages:
        chunks = split(passage.text)
        if chunks:
            delivery = Delivery(passage.speed, passage.gain, before, passage.silence)
            result += zip(chunks, spread(delivery, len(chunks)), strict=True)
            before = 0.0
        elif result:
            chunk, delivery = result[-1]
            result[-1] = chunk, replace(delivery, after=delivery.after + passage.silence)
        else:
            before += passage.silence
    return result


def spread(delivery: Delivery, parts: int) -> list[Delivery]:
    """The delivery of each part of a chunk: silence stays at both ends."""
    return [replace(delivery, before=delivery.before if index == 0 else 0.0,
                    after=delivery.after if index == parts - 1 else 0.0) for index in range(parts)]


def as_passages(text: "str | Sequence[Passage]") -> Sequence[Passage]:
    """Text as it is, without markup, is one passage."""
    return [Passage(text)] if isinstance(text, str) else text


def whole_text(passages: Iterable[Passage]) -> str:
    """The text of passages, for messages."""
    return "".join(passage.text for passage in passages)


def merged(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Neighbours that sound alike and have no silence between them as one passage; empty ones are left out."""
    held: Passage | None = None
    for passage in passages:
        alike = held and not held.silence and (held.speed, held.gain) == (passage.speed, passage.gain)
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
