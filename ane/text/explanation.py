"""Show which rules of the English normaliser, or entries of a lexicon, change a text."""

import re
from dataclasses import dataclass

from ane.text.english import CASED, RULES
from ane.text.rule import WORD_END, TextRule
from ane.text.user_lexicon import Lexicon


@dataclass(frozen=True)
class ReadingStep:
    """A replacement in a text. ``rule`` is the name of the ``TextRule``, or says which lexicon entry replaced it."""

    text: str
    spoken: str
    rule: str


def explain_english(text: str, cased: bool = False) -> tuple[str, list[ReadingStep]]:
    """Normalise a text, and list the replacements that the rules make, in order.

    Replacements that change only spaces or capitals are not listed.

    Args:
        text: Text to normalise.
        cased: Whether to keep capitals, as ``normalise_cased`` does. Otherwise this does what ``normalise_english``
            does.

    Returns:
        The normalised text, and the replacements.
    """
    steps: list[ReadingStep] = []
    for text_rule in CASED if cased else RULES:

        def replaced(match: re.Match[str], used: TextRule = text_rule) -> str:
            new = used.replacement
            spoken = match.expand(new) if isinstance(new, str) else new(match)
            before, after = (part.replace(WORD_END, "") for part in (match[0], spoken))
            if after.split() != before.split() and after.lower() != before.lower():
                steps.append(ReadingStep(before.strip(), after.strip(), used.name))
            return spoken

        text = text_rule.pattern.sub(replaced, text)
    return text.strip(), steps


def respelled(text: str, lexicon: Lexicon) -> list[ReadingStep]:
    """List the replacements that a lexicon makes in a text."""
    return [
        ReadingStep(text[match.start : match.end], match.entry.respelling, f"lexicon: {match.entry.source}")
        for match in lexicon.matches(text)
    ]
