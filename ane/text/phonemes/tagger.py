"""Parts of speech by an averaged perceptron (tags of the Penn Treebank), with the weights of hibari-tts.

A word with one dominant tag has it from a table; the tags of others are those with the greatest sum of the weights of
their features, from left to right.
"""

from collections.abc import Sequence

from ane.text.phonemes.tables import table

BEFORE, AFTER = ("-START2-", "-START-"), ("-END-", "-END2-")


def part_of_speech(words: Sequence[str]) -> list[str]:
    """The tag of each word; punctuation is a word."""
    known = table("tags")
    context = [*BEFORE, *map(frequent_form, words), *AFTER]         # context[index + 2] is the word
    tags = list(BEFORE)
    for index, word in enumerate(words):
        tags.append(known.get(word) or best_tag(features(index, word, context, tags[-1], tags[-2])))
    return tags[2:]


def best_tag(found: Sequence[str]) -> str:
    sums: dict[str, float] = {}             # the first feature, "b", has a weight for each tag
    for feature in found:
        for weight in (table("weights").get(feature) or "").split():
            tag, _, value = weight.partition("=")
            sums[tag] = sums.get(tag, 0.0) + float(value)
    return max(sums, key=lambda tag: (sums[tag], tag))


def frequent_form(word: str) -> str:
    """A word without capitals, or the shape of one that is too rare for weights of its own."""
    form = "!HYPHEN" if "-" in word and word[0] != "-" else word.lower()
    return form if table("vocabulary").get(form) is not None else f"<{shape(word)}>"


def shape(word: str) -> str:
    if not word.isalpha():
        return "".join("x" if character.isalpha() else character for character in word[:4])
    if word.islower():
        return "x"
    if word.isupper():
        return "XX" if len(word) > 1 else "X1"
    return "Xx" if word[0].isupper() and word[1:].islower() else "xX"


def features(index: int, word: str, context: Sequence[str], before: str, second_before: str) -> tuple[str, ...]:
    """What the weights are by. ``before``, ``second_before``: the tags of the words before this one."""
    far_left, left, own, right, far_right = context[index:index + 5]
    return ("b", f"s3={word[-3:]}", f"p1={word[0]}", f"w={own}", f"sh={shape(word)}", "i0" if index == 0 else "i+",
            f"t-1={before}", f"t-2={second_before}", f"t-12={before},{second_before}", f"w-1={left}",
            f"s3-1={left[-3:]}", f"w-2={far_left}", f"w+1={right}", f"s3+1={right[-3:]}", f"w+2={far_right}")
