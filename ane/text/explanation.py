"""Which rules of the English normaliser change a text, one after the other."""

import re
from dataclasses import dataclass

from ane.text.english import CASED, RULES
from ane.text.rule import TextRule
from ane.text.user_lexicon import Lexicon


@dataclass(frozen=True)
class ReadingStep:
    """A part of a text that a rule replaced. ``rule``: name of a ``TextRule``, or of an entry of a lexicon."""

    text: str
    spoken: str
    rule: str


def explain_english(text: str, cased: bool = False) -> tuple[str, list[ReadingStep]]:
    """What ``normalise_english`` returns, or ``normalise_cased``, and the steps to it, without those that change spaces
    and capitals alone.
    """
    steps: list[ReadingStep] = []
    for text_rule in CASED if cased else RULES:

        def replaced(match: re.Match[str], used: TextRule = text_rule) -> str:
            new = used.replacement
            spoken = match.expand(new) if isinstance(new, str) else new(match)
            if spoken.split() != match[0].split() and spoken.lower() != match[0].lower():
                steps.append(ReadingStep(match[0].strip(), spoken.strip(), used.name))
            return spoken

        text = text_rule.pattern.sub(replaced, text)
    return text.strip(), steps


def respelled(text: str, lexicon: Lexicon) -> list[ReadingStep]:
    """What a lexicon replaces in a text."""
    return [
        ReadingStep(text[match.start : match.end], match.entry.respelling, f"lexicon: {match.entry.source}")
        for match in lexicon.matches(text)
    ]
