"""Join words that are divided at a line end, and decide whether each hyphen stays."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

HYPHEN = "\x02"  # character that PDFium writes for a hyphen at the end of a line
DIVIDED = re.compile(rf"(?<=[^\W_]){HYPHEN}(?=([^\W_]{{1,60}}))")
LAST_PART = re.compile(r"[^\W_]{1,60}$")
WORD = re.compile(rf"[^\W_]+(?:[-{HYPHEN}][^\W_]+)*")
LINE_END_HYPHEN = re.compile(r"[^\W\d_]-$")
BROKEN_LINE = re.compile(r"(?<=[^\W\d_])-[ \t]*\r?\n[ \t]*(?=[^\W\d_])")
SUSPENDED = frozenset(("and", "or", "nor", "to", "but", "than"))  # words after the hyphen in "pre- and post-war"
MOST_LOOKED_UP = 20_000  # maximum number of words to look up in the dictionary, per document


def joined_lines(lines: Sequence[str], continued: Callable[[str], bool] = str.islower) -> str:
    """Join lines into one text. If a hyphen at the end of a line may divide a word, it becomes ``HYPHEN``.

    Args:
        continued: Function that returns whether a word may continue with the first letter of the next line.
    """
    parts: list[str] = []
    for line in lines:
        if parts and LINE_END_HYPHEN.search(parts[-1][-2:]) and continued(line[:1]):
            parts[-1] = f"{parts[-1][:-1]}{HYPHEN}"
        elif parts and not parts[-1].endswith(HYPHEN):
            parts.append(" ")
        parts.append(line)
    return "".join(parts)


def joined_words(text: str) -> str:
    """Join the words of a text that are divided at the ends of its lines."""
    divided = BROKEN_LINE.sub(
        lambda match: HYPHEN if match.string[match.end()].islower() else match[0], text.replace(HYPHEN, "-")
    )
    return without_hyphens([divided])[0][0] if HYPHEN in divided else text


def without_hyphens(texts: Sequence[str]) -> tuple[list[str], int]:
    """Join the divided words in texts. Return the texts and how many hyphens were removed.

    The function removes the hyphen if the texts contain the word elsewhere without a hyphen. Otherwise, it keeps the
    hyphen in three cases: the texts contain the word elsewhere with a hyphen ("well-known"), the hyphen follows a
    single letter ("X-rays"), or both halves are English words and the whole word is not ("twenty-one"). In all other
    cases, the function removes the hyphen.
    """
    if not any(HYPHEN in text for text in texts):
        return list(texts), 0
    known = {word.lower() for text in texts for word in WORD.findall(text) if HYPHEN not in word}
    count, looked_up = 0, 0

    def hyphen(match: re.Match[str]) -> str:
        nonlocal count, looked_up
        before = LAST_PART.search(match.string[max(0, match.start() - 60) : match.start()])
        first = before[0] if before else ""
        together, apart = f"{first}{match[1]}".lower(), f"{first}-{match[1]}".lower()
        if together not in known:
            looked_up += 1
            if (
                apart in known
                or len(first) == 1
                or (looked_up <= MOST_LOOKED_UP and not is_word(together) and is_word(first) and is_word(match[1]))
            ):
                compound = match.string.startswith("-", match.end() + len(match[1]))  # up-to-date
                return "-" if compound or match[1] not in SUSPENDED else "- "
        count += 1
        return ""

    return [DIVIDED.sub(hyphen, text).replace(HYPHEN, "-") if HYPHEN in text else text for text in texts], count


@lru_cache(1024)
def is_word(word: str) -> bool:
    """Return whether the English dictionary has a word or its stem."""
    from ane.text.phonemes.dictionary import END, Dictionary  # not at the top, because this imports numpy

    return Dictionary().word_phonemes(word.lower(), "NN", END) is not None
