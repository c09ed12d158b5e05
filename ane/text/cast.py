"""Define a cast: which voice reads the narration, which one the quotations, and which one each named speaker."""

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
KEYS = ("narrator", "quotations", "speakers", "aliases", "lines")  # keys of a cast file
QUOTATION = "quotation"  # name of the speaker of quotations that nobody in the cast speaks
ARTICLE = re.compile(r"(?i)(?:the|an?)\s+")
TITLE = re.compile(r"(?:Mr|Mrs|Miss|Ms|Dr|Sir|Lady|Lord)\b")
NAME = re.compile(r"[^\[\]\n]{1,80}")


@validated
class Cast:
    """The voices of a text's narrator and speakers. Names of voices are those of a request.

    Attributes:
        narrator: Voice of the narration. "" means the voice of the request.
        quotations: Voice of quotations whose speaker is unknown or has no voice in the cast. "" means the narrator's
            voice.
        speakers: Names of speakers and their voices. A command [voice:NAME] in the text can also name a speaker.
        aliases: Other names that the text uses, such as "his wife", and the speakers that they mean.
        lines: Beginnings of quotations and their speakers. They override the rules of attribution.
        attributed: Whether rules find the speakers of quotations. Otherwise, only [voice:NAME] changes the voice.
    """

    narrator: str = ""
    quotations: str = ""
    speakers: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)
    attributed: bool = True

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
                    f"speakers has {other!r} and {name!r}, which look the same in a text: rename one", "speakers"
                )
        for part in ("aliases", "lines"):
            for key, speaker in getattr(self, part).items():
                if not key.strip() or speaker not in self.speakers:
                    raise UserError(
                        f"{part} has {speaker!r} for {key!r}, but speakers has no {speaker!r}, only "
                        f"{', '.join(self.speakers) or 'nobody'}: write the name the same way in both",
                        part,
                    )

    @property
    def voices(self) -> dict[str, str]:
        """The voice for each name that a command [voice:NAME] in a text may have."""
        return {**({QUOTATION: self.quotations} if self.quotations else {}), **self.speakers}

    @property
    def _everybody(self) -> dict[str, str]:
        """Every name and alias, and the speaker that it means."""
        return {**{one: one for one in self.speakers}, **self.aliases}

    def speaker_named(self, name: str) -> str:
        """Return the speaker that a name in the text means. Returns the name itself if it means nobody in the cast."""
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
        """Two look-up tables. The first maps a whole name, as ``plain_name`` writes it, to its speaker.

        The second maps the last word of a name to pairs of a name and its speaker.
        """
        whole: dict[str, str] = {}
        by_last_word: dict[str, list[tuple[str, str]]] = {}
        for one, who in self._everybody.items():
            whole.setdefault(plain_name(one), who)
            by_last_word.setdefault(one.split()[-1].casefold(), []).append((one, who))
        return whole, by_last_word

    def quoted(self, paragraphs: Sequence[str]) -> list[QuotedLine]:
        """Find the quotations of paragraphs and their speakers. Returns [] if the cast has no voices for them."""
        return attribute(paragraphs, self.speaker_named, self.lines) if self.attributed and self.voices else []

    def quotations_of(self, paragraphs: Sequence[str]) -> list[list[Quotation]]:
        """Return the quotations of each paragraph that have a voice. A paragraph with [voice:NAME] gets none."""
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
        """Return the quotations of a text that have a voice. Empty lines divide the text into paragraphs."""
        parts = re.split(r"(\n[^\S\n]*\n\s*)", text)
        return [
            (start + begin, start + end, speaker)
            for start, quotations in zip(
                [*accumulate(map(len, parts), initial=0)][:-1:2], self.quotations_of(parts[::2]), strict=True
            )
            for begin, end, speaker in quotations
        ]


def plain_name(name: str) -> str:
    """Write a name without its article and in lower case. Names in a text are compared in this form."""
    return ARTICLE.sub("", " ".join(name.split()), count=1).casefold()


def title(name: str) -> str:
    match = TITLE.match(ARTICLE.sub("", name, count=1))
    return match[0] if match else ""


def read_cast(path: Path | str) -> Cast:
    """Read a cast from a TOML file. Its keys are narrator, quotations, and the tables speakers, aliases and lines.

    Raises:
        UserError: The file cannot be read, is not TOML, or is not a valid cast.
    """
    try:
        content = tomllib.loads(read_regular(Path(path).expanduser(), MAX_CAST).decode("utf-8-sig"))
    except (OSError, RuntimeError) as error:
        missing = NotFoundError if isinstance(error, FileNotFoundError) else UserError
        raise missing(f"cannot read the cast {path}: {getattr(error, 'strerror', None) or error}") from error
    except ValueError as error:  # an error of tomllib, or a number with thousands of digits
        raise UserError(f"{path} is not TOML in UTF-8: {error}") from error
    try:
        for name in content:
            if name not in KEYS:
                raise UserError(f"{name} is unknown: use {', '.join(KEYS)}")
        return Cast(**content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def cast_of(cast: "Cast | Path | str | Mapping[str, Any] | None", quote_voice: str | None = None) -> Cast | None:
    """Build a cast from a file or a mapping, and set the voice of its quotations.

    Args:
        cast: A cast, the path of a cast file, or a mapping of a cast's fields. ``None`` means an empty cast.
        quote_voice: Voice for the quotations. ``None`` leaves the voice that the cast has.

    Returns:
        The cast, or ``None`` if both arguments are ``None``.
    """
    chosen = read_cast(cast) if isinstance(cast, (str, Path)) else Cast(**cast) if isinstance(cast, Mapping) else cast
    if quote_voice is None or (chosen and chosen.quotations == quote_voice):
        return chosen
    return replace(chosen or Cast(), quotations=quote_voice)
