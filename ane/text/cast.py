"""Define a cast: the voices of the narration, of the quotations, and of each speaker by name."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from ane.system.checked import validated
from ane.system.errors import NotFoundError, UserError
from ane.system.file_gate import read_regular
from ane.text.attribution import NO_SPEECH, QuotedLine, attribute
from ane.text.passages import COMMAND, Quotation, is_voice

MAX_CAST = 4 << 20  # bytes
QUOTATION = "quotation"  # who speaks what nobody in the cast does
ARTICLE = re.compile(r"(?i)(?:the|an?)\s+")
TITLE = re.compile(r"(?:Mr|Mrs|Miss|Ms|Dr|Sir|Lady|Lord)\b")
NAME = re.compile(r"[^\[\]\n]{1,80}")


@validated
class Cast:
    """The voices of a text's narrator and speakers. Voices are named as in a request."""

    narrator: str = ""  # "": the voice of the request
    quotations: str = ""  # the voice of quotations whose speaker is unknown or has no voice here; "": the narrator's
    speakers: Mapping[str, str] = field(default_factory=dict)  # their voices; [voice:NAME] in a text may name them too
    aliases: Mapping[str, str] = field(default_factory=dict)  # names as the text has them ("his wife"): who it is
    lines: Mapping[str, str] = field(default_factory=dict)  # beginnings of quotations: who speaks them in any case
    attributed: bool = True  # whether quotations get their voices by rule; otherwise only marks in the text do

    def __post_init__(self) -> None:
        for name in self.speakers:
            if not NAME.fullmatch(name) or name != name.strip():
                raise UserError(
                    f"speakers must have names of 1 to 80 characters without brackets, got {name!r}", "speakers"
                )
        everybody, known = self._everybody, dict[str, str]()
        for name, speaker in everybody.items():
            other = known.setdefault(plain_name(name), name)
            if everybody[other] != speaker:
                raise UserError(
                    f"speakers has {other!r} and {name!r}, which are one name in a text: rename one", "speakers"
                )
        for part in ("aliases", "lines"):
            for key, speaker in getattr(self, part).items():
                if not key.strip() or speaker not in self.speakers:
                    raise UserError(
                        f"{part} has {speaker!r} for {key!r}, who is none of the speakers "
                        f"{', '.join(self.speakers) or '(there are none)'}",
                        part,
                    )

    @property
    def voices(self) -> dict[str, str]:
        """The voice for each name that a mark in a text may have."""
        return {**({QUOTATION: self.quotations} if self.quotations else {}), **self.speakers}

    @property
    def _everybody(self) -> dict[str, str]:
        """The speakers by their names and their aliases."""
        return {**{one: one for one in self.speakers}, **self.aliases}

    def speaker_named(self, name: str) -> str:
        """Return the speaker whom a name in the text means, or the name itself if nobody in the cast has it."""
        plain, (whole, by_last_word) = plain_name(name), self._names
        if plain in whole:
            return whole[plain]
        last = (
            {who for one, who in by_last_word.get(plain.split()[-1], ()) if len({title(one), title(name)} - {""}) < 2}
            if plain
            else set()
        )
        return last.pop() if len(last) == 1 else name

    @cached_property
    def _names(self) -> tuple[dict[str, str], dict[str, list[tuple[str, str]]]]:
        """The speakers by whole name, as ``plain_name`` writes it, and names with their speakers by last word."""
        whole: dict[str, str] = {}
        by_last_word: dict[str, list[tuple[str, str]]] = {}
        for one, who in self._everybody.items():
            whole.setdefault(plain_name(one), who)
            by_last_word.setdefault(one.split()[-1].casefold(), []).append((one, who))
        return whole, by_last_word

    def quoted(self, paragraphs: Sequence[str]) -> list[QuotedLine]:
        """Find the quotations of paragraphs and their speakers. The list is empty if the cast has no voices."""
        return attribute(paragraphs, self.speaker_named, self.lines) if self.attributed and self.voices else []

    def quotations_of(self, paragraphs: Sequence[str]) -> list[list[Quotation]]:
        """Return the quotations with a voice for each paragraph. A paragraph that names voices itself has none."""
        per_paragraph: list[list[Quotation]] = [[] for _ in paragraphs]
        for line in self.quoted(paragraphs):
            speaker = line.speaker if line.speaker in self.speakers else QUOTATION if self.quotations else ""
            if speaker and line.rule != NO_SPEECH:
                per_paragraph[line.paragraph].append((line.start, line.end, speaker))
        return [
            [] if quotations and any(map(is_voice, COMMAND.finditer(text))) else quotations
            for text, quotations in zip(paragraphs, per_paragraph, strict=True)
        ]

    def quotations_in(self, text: str) -> list[Quotation]:
        """Return the quotations with a voice in a text whose paragraphs are divided by empty lines."""
        parts = re.split(r"(\n[^\S\n]*\n\s*)", text)
        return [
            (start + begin, start + end, speaker)
            for start, quotations in zip(
                [*accumulate(map(len, parts), initial=0)][:-1:2], self.quotations_of(parts[::2]), strict=True
            )
            for begin, end, speaker in quotations
        ]


def plain_name(name: str) -> str:
    """Write a name without article and capitals. Names in a text are compared in this form."""
    return ARTICLE.sub("", " ".join(name.split()), count=1).casefold()


def title(name: str) -> str:
    match = TITLE.match(ARTICLE.sub("", name, count=1))
    return match[0] if match else ""


def read_cast(path: Path | str) -> Cast:
    """Read a cast from a TOML file with narrator, quotations, and the tables speakers, aliases and lines."""
    try:
        content = tomllib.loads(read_regular(Path(path).expanduser(), MAX_CAST).decode("utf-8-sig"))
    except (OSError, RuntimeError) as error:
        missing = NotFoundError if isinstance(error, FileNotFoundError) else UserError
        raise missing(f"cannot read the cast {path}: {getattr(error, 'strerror', None) or error}") from error
    except ValueError as error:  # an error of tomllib, or a number with thousands of digits
        raise UserError(f"{path} is no TOML in UTF-8: {error}") from error
    try:
        if "attributed" in content:
            raise UserError("a cast file has no field named attributed: leave it out")
        return Cast(**content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def cast_of(cast: "Cast | Path | str | Mapping[str, Any] | None", quote_voice: str | None = None) -> Cast | None:
    """Return a cast, built from a file or a mapping if need be.

    Args:
        cast: A cast, a path, or a mapping of a cast's fields.
        quote_voice: Voice for the quotations. ``None`` keeps the voice that the cast has.
    """
    chosen = read_cast(cast) if isinstance(cast, (str, Path)) else Cast(**cast) if isinstance(cast, Mapping) else cast
    return chosen if quote_voice is None else replace(chosen or Cast(), quotations=quote_voice)
