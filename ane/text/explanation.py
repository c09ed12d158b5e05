"""Which rule of the English normaliser made what of each word: the same substitutions, with their origin recorded."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ane.text.english import HTML_ENTITIES, RULES
from ane.text.rule import TextRule, rule
from ane.text.unicode_to_ascii import CONTEXT_RULES, ascii_character
from ane.text.user_lexicon import Lexicon

# What ``to_ascii`` does, as rules.
TO_ASCII = (
    rule("line ends", "\r\n?", "\n"),
    rule("composed characters", r"\S+", lambda match: unicodedata.normalize("NFC", match[0])),
    *CONTEXT_RULES,
    rule("ASCII", r"[^ -~\n]", lambda match: ascii_character(match[0])),
)
NORMALISER: tuple[TextRule, ...] = (HTML_ENTITIES, *TO_ASCII, *RULES)

Edit = tuple[int, int, str, str]        # start and end in the text, replacement, name of the rule


@dataclass(frozen=True)
class Reading:
    """Neighbouring words of a text that are read together, mostly one, with what is read and the rules that did it.

    ``rules``: names of ``ane.text.rule.TextRule``, or of a lexicon's entry, in the order in which they were applied.
    """

    text: str
    spoken: str
    rules: tuple[str, ...]


@dataclass(frozen=True)
class TracedCharacter:
    """A character, the characters of the source (start, end) that it comes from, and the rules that made it."""

    character: str
    start: int
    end: int
    rules: tuple[str, ...] = ()


@dataclass
class TracedText:
    """A text that knows where each of its characters comes from.

    ``start``, ``end``: the part of the source that it is. ``removed``: (start, end, rule) of what was removed.
    """

    source: str
    start: int
    end: int
    characters: list[TracedCharacter]
    removed: list[tuple[int, int, str]] = field(default_factory=list)

    @classmethod
    def of(cls, source: str) -> "TracedText":
        return cls(source, 0, len(source), [TracedCharacter(character, i, i + 1) for i, character in enumerate(source)])

    @classmethod
    def joined(cls, parts: Iterable["TracedText"]) -> "TracedText":
        """Texts one after the other, with a line break between their sources."""
        whole = cls("", 0, 0, [])
        for part in parts:
            shift = len(whole.source)
            whole.characters += [replace(traced, start=traced.start + shift, end=traced.end + shift)
                                 for traced in part.characters]
            whole.removed += [(start + shift, end + shift, name) for start, end, name in part.removed]
            whole.source += part.source + "\n"
        whole.end = len(whole.source)
        return whole

    @property
    def text(self) -> str:
        return "".join(traced.character for traced in self.characters)

    def edit(self, edits: Iterable[Edit]) -> None:
        """Apply substitutions that are in order and do not overlap."""
        result: list[TracedCharacter] = []
        done = 0
        for start, end, replacement, name in edits:
            result += self.characters[done:start]
            result += self._replaced(start, end, replacement, name)
            done = end
        self.characters = result + self.characters[done:]

    def _replaced(self, start: int, end: int, replacement: str, name: str) -> list[TracedCharacter]:
        """The new characters. What a replacement has in common with the text at both ends keeps its origin."""
        old = self.characters[start:end]
        before = "".join(traced.character for traced in old)
        if before == replacement:
            return old
        if len(before) == len(replacement) and before.lower() == replacement.lower():
            return [traced if traced.character == new else
                    TracedCharacter(new, traced.start, traced.end, (*traced.rules, name))
                    for traced, new in zip(old, replacement, strict=True)]
        head = common_prefix(before, replacement)
        tail = common_prefix(before[head:][::-1], replacement[head:][::-1])
        middle, new = old[head:len(old) - tail], replacement[head:len(replacement) - tail]
        if middle:
            first, last = min(traced.start for traced in middle), max(traced.end for traced in middle)
        else:
            at = start + head
            first = last = self.characters[at - 1].end if at else 0
        spaces_only = middle and not (before[head:len(before) - tail] + new).strip()
        names = () if spaces_only else (name,)
        rules = tuple(dict.fromkeys([*(used for traced in middle for used in traced.rules), *names]))
        if not new.strip():
            self.removed += [(first, last, used) for used in rules]
        return [*old[:head], *(TracedCharacter(character, first, last, rules) for character in new),
                *old[len(old) - tail:]]

    def apply(self, rules: Iterable[TextRule]) -> None:
        for text_rule in rules:
            text = self.text
            if text_rule.pattern.search(text):
                self.edit(edits_of(text_rule, text))

    def respell(self, lexicon: Lexicon) -> None:
        self.edit([(match.start, match.end, match.entry.respelling, f"lexicon: {match.entry.source}".rstrip(": "))
                   for match in lexicon.matches(self.text)])

    def pieces(self, texts: Sequence[str]) -> Iterator["TracedText"]:
        """The parts of this text that are ``texts``, which hold its words in order, with the same or single spaces."""
        whole, position = self.text, 0
        for text in texts:
            characters: list[TracedCharacter] = []
            if whole.startswith(text, position):
                characters, position = self.characters[position:position + len(text)], position + len(text)
                text = ""
            for word in text.split():
                start = whole.index(word, position)
                position = start + len(word)
                if characters:
                    characters.append(TracedCharacter(" ", characters[-1].end, characters[-1].end))
                characters += self.characters[start:position]
            if characters:
                yield TracedText(self.source, characters[0].start, characters[-1].end, characters)

    def readings(self) -> list[Reading]:
        """The words of the source that are in this text, in groups that were read together."""
        words = [match.span() for match in re.finditer(r"\S+", self.source)]
        starts, ends = [start for start, _ in words], [end for _, end in words]
        spans = [words_of(traced.start, traced.end, starts, ends) for traced in self.characters]
        gone = [(words_of(start, end, starts, ends), name) for start, end, name in self.removed]
        own = range(bisect_right(ends, self.start), bisect_left(starts, self.end))
        groups = joined([*((word, word) for word in own),
                         *(span for span in [*spans, *(span for span, _ in gone)] if span)])
        place = {word: index for index, (first, last) in enumerate(groups) for word in range(first, last + 1)}
        spoken, rules = [""] * len(groups), [dict[str, None]() for _ in groups]
        current = 0
        for traced, span in zip(self.characters, spans, strict=True):
            current = place[span[0]] if span else current
            if groups:
                spoken[current] += traced.character
                rules[current].update(dict.fromkeys(traced.rules))
        for span, name in gone:
            if span:
                rules[place[span[0]]][name] = None
        return [Reading(self.source[starts[first]:ends[last]], reading.strip(), tuple(used))
                for (first, last), reading, used in zip(groups, spoken, rules, strict=True)]


def explain_english(text: TracedText) -> list[Reading]:
    """How the English normaliser reads a text; afterwards ``text.text`` is what ``normalise_english`` returns."""
    text.apply(NORMALISER)
    blank = len(text.text) - len(text.text.lstrip())
    text.characters = text.characters[blank:blank + len(text.text.strip())]
    return text.readings()


def edits_of(text_rule: TextRule, text: str) -> list[Edit]:
    """The substitutions of a rule, as ``re.sub`` makes them."""
    new = text_rule.replacement
    return [(match.start(), match.end(), match.expand(new) if isinstance(new, str) else new(match), text_rule.name)
            for match in text_rule.pattern.finditer(text)]


def words_of(start: int, end: int, starts: Sequence[int], ends: Sequence[int]) -> tuple[int, int] | None:
    """Indices of the first and last word that the span of the source touches; of an empty span the word before it."""
    if start == end:
        index = bisect_left(starts, start) - 1
        return (index, index) if index >= 0 and start <= ends[index] else None
    first, last = bisect_right(ends, start), bisect_left(starts, end) - 1
    return (first, last) if first <= last else None


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans of words, sorted, those that overlap as one."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(set(spans)):
        if result and first <= result[-1][1]:
            result[-1] = result[-1][0], max(last, result[-1][1])
        else:
            result.append((first, last))
    return result


def common_prefix(first: str, second: str) -> int:
    """Number of characters that two texts have in common at their start."""
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
                min(len(first), len(second)))
