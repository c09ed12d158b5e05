"""Show which rules of the English normaliser change a text, in their order."""

import re
from dataclasses import dataclass

from ane.text.english import CASED, RULES
from ane.text.rule import TextRule
from ane.text.user_lexicon import Lexicon


@dataclass(frozen=True)
class ReadingStep:
    """A part of a text that a rule replaced. ``rule`` is the name of a ``TextRule`` or of an entry of a lexicon."""

    text: str
    spoken: str
    rule: str


def explain_english(text: str, cased: bool = False) -> tuple[str, list[ReadingStep]]:
    """Normalise a text, and return the result and the steps to it, except changes of spaces and capitals alone.

    Args:
        cased: Whether to use ``normalise_cased``, which keeps capitals, and not ``normalise_english``.
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
    """List the parts of a text that a lexicon replaces."""
    return [
        ReadingStep(text[match.start : match.end], match.entry.respelling, f"lexicon: {match.entry.source}")
        for match in lexicon.matches(text)
    ]
