"""Define the rules for single letters: the letter A or the article "a", grades, and plurals such as "Ps and Qs".

The rules write the letter as "A" and the article as "a", so that voices that keep capitals can tell them apart. A
capital A is the letter before a digit or a punctuation mark, and after a word such as "plan". Elsewhere it is the
letter, unless it begins a sentence or is in a title such as "Once Upon A Time".
"""

import re

from ane.text.lexicon import AFTER_LETTER, DETERMINERS, LETTERED
from ane.text.rule import TextRule, any_of, follows, rule

FIRST = re.compile(r"(?:\A|[,.!?:;\n\"([{—–-]['\"]?)\s*['\"(]?\Z")
LETTERED_BEFORE = re.compile(rf"\b(?i:{any_of([*LETTERED, *DETERMINERS])})\s+\Z")
COUNT_BEFORE = re.compile(r"\b(?:straight|all|two|three|four|five|six|seven|eight|many|some|mostly|few|\d+)\s\Z")
GRADE_BEFORE = re.compile(r"\b(?:[Aa]n?|got|[Gg]rades?|type)\sA?[A-Z]\Z")
NEXT = re.compile(r"(\s*[\"'(\[]*)([A-Za-z']*)([ ,]*[A-Za-z]?)")


def letter_or_article(match: re.Match) -> str:
    """Keep the A of "Plan A failed", and write the A of "A plan" as "a"."""
    text, end = match.string, match.end()
    gap, word, more = NEXT.match(text, end).groups()
    after = text[end + len(gap) + len(word) :][:1]
    if text.startswith(("...", " ...", "—"), end):
        letter = False
    elif not word:
        letter = not gap or not after.isdigit()  # A4, A/B, Answer: A; but "A 5-year-old"
    elif not gap or follows(match, LETTERED_BEFORE):
        letter = True
    elif follows(match, FIRST):
        letter = (word in AFTER_LETTER and after != "-") or (word == "B" and more.strip(" ,") == "C")
    else:
        letter = word[0].islower() or (word == "To" and len(more.strip()) == 1)
    return "A" if letter else "a"


def letter_after_word(match: re.Match) -> str:
    """Write the a of "vitamin a." as "A"."""
    sure = match["sure"] is not None
    return "A" if sure or (follows(match, LETTERED_BEFORE) and not match.string.startswith("...", match.end())) else "a"


RULES: tuple[TextRule, ...] = (  # each pattern begins with the letter, because searching for one character is fast
    rule("Plan A, A man", r"A(?<![\w'.]A)(?![A-Za-z_']|\.[A-Za-z])", letter_or_article),
    rule("Ps and Qs", r"([BCDFGHJKLNPQRTWXYZ])(?<!\w.)s\b", r"\1's"),
    rule("straight As", r"As\b(?<!\wAs)", lambda match: "A's" if follows(match, COUNT_BEFORE) else match[0]),
    rule(
        "an A-, grade B-",
        r"[-−](?:(?<=\b[A-DFO].)|(?<=\bAB.))(?!\w|-| (?:and|or|to) [A-Z]-\w)"
        r"(?=(?P<ends>\s+(?:and|or|to|in|on|for)\b|[.,;:!?)]|\s*\Z)?)",
        lambda match: " minus" if match["ends"] is not None or follows(match, GRADE_BEFORE) else match[0],
    ),
    rule(
        "Fig. 2a, (a), vitamin a.",
        r"a(?:(?P<sure>(?<=\da)(?=[\s,;:)]|\.\s|\.?\Z)(?! ?m\b)|(?<=b/a)\b|(?<=[=+*] a)\b"
        r"|(?<![\w'.]a)(?=\)|/[a-z]\b| ?[|=+*^²³]|, b\b| is\b"
        r"| (?:squared|cubed|to the power)\b))|(?<= a)(?=[.,;:)]|\Z))",
        letter_after_word,
    ),
)
