"""Random plain sentences from the grammar in grammar.toml."""

import random
import re
import tomllib
from pathlib import Path

GRAMMAR: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RULES = {name: options.split("|") for name, options in GRAMMAR.items()}


def plain_sentence(rng: random.Random, rule: str = "sentence", depth: int = 0) -> str:
    """A random expansion of a rule; the nesting of statements is limited."""
    option = rng.choice(RULES[rule])
    while depth > 3 and "<statement>" in option:
        option = rng.choice(RULES[rule])
    return re.sub(r"<(\w+)>", lambda match: plain_sentence(rng, match[1], depth + 1), option)
