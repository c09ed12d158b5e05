"""Turn English text into phonemes, with dictionaries and rules under permissive licences (without espeak-ng's GPL).

``phonemise`` normalises a text (``ane.text.english``), and tags its words with their parts of speech. Then it looks up
the words in ``dictionary``, from the last word to the first, because the sounds of "the" and "to" depend on the next
word. For a word that no dictionary has, a small network makes the phonemes (``unknown_words``). The dictionaries come
from misaki. The weights of the tagger and of the network come from hibari-tts (see data/NOTICE).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from ane.text.english import normalise_cased
from ane.text.phonemes.dictionary import (
    BRITISH,
    CONSONANTS,
    DATA,
    END,
    PRIMARY,
    VOWELS,
    WEAKER,
    Dictionary,
    Following,
    marked_words,
    stressed,
    table,
)
from ane.text.phonemes.unknown_words import LONGEST, spoken_letters

PIECE = re.compile(
    r"[A-Za-z](?:\.[A-Za-z])+|n't\b|'(?:s|ll|re|ve|d|m)\b|[A-Za-z]+?(?=n't\b|'(?:s|ll|re|ve|d|m)\b)"
    r"|[A-Za-z]+(?:'[A-Za-z]+)*|-+|\.+|.",
    re.IGNORECASE,
)
# A part of a word. Capitals begin new parts, as in "McDonald" and "iPhone".
PART = re.compile(r"[A-Z](?=[A-Z][a-z])|[a-z]*?[a-z](?=[A-Z])|[A-Za-z.]+(?:'[A-Za-z.]+)*|'[A-Za-z]*|-+")
LETTERS = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*")
PAUSES = frozenset(";:,.!?—…")
MARKS = PAUSES | frozenset("()")
LONG_SOUNDS = frozenset("AIOQWYʤʧ")
WITHOUT_STRESS = str.maketrans("", "", "ˈˌ")
NO_STUTTER = frozenset({"d-day", "b-ball", "b-boy", "c-clamp", "s-shape", "s-shaped", "t-test", "t-tests", "v-victory"})


@dataclass
class PhonemeWord:
    """A word or a punctuation mark of the normalised text, its phonemes, and whether whitespace follows it."""

    text: str
    phonemes: str
    spaced: bool
    guessed: bool = False  # whether the network made the phonemes, because no dictionary has the word


@dataclass
class Part:
    text: str
    tag: str
    phonemes: str | None = None
    guessed: bool = False


def phonemise(text: str, british: bool = False) -> list[PhonemeWord]:
    """Split ``text`` into words and punctuation marks, and find their phonemes.

    Returns [] if nothing in the text can be spoken.

    Args:
        text: Text, which is normalised first.
        british: Whether to use British pronunciation. The network for unknown words knows only American pronunciation,
            so its vowels are then replaced.
    """
    dictionary = Dictionary(british, marked_words(text))
    pieces = [
        (piece, index == len(word) - 1)
        for word in map(PIECE.findall, normalise_cased(text).split())
        for index, piece in enumerate(word)
    ]
    tags = part_of_speech([piece for piece, _ in pieces])
    words: list[PhonemeWord] = []
    parts: list[Part] = []  # parts of the word that is not complete yet
    groups: list[tuple[list[Part], bool]] = []
    for (piece, ends), tag in zip(pieces, tags, strict=True):
        if piece[0] in MARKS:
            groups += [(parts, False)] * bool(parts) + [([Part(piece, tag, piece)], ends)]
            parts = []
            continue
        parts += [Part(part, tag) for part in PART.findall(piece)]
        if ends:
            groups.append((parts, True))
            parts = []
    following = END
    for parts, spaced in reversed(groups):
        if parts[0].phonemes is None:
            following = pronounce(parts, following, dictionary)
        elif parts[0].text[0] in PAUSES:
            following = END
        phonemes = "".join(part.phonemes or "" for part in parts).replace("ɾ", "T").replace("ʔ", "t")
        words.append(
            PhonemeWord("".join(part.text for part in parts), phonemes, spaced, any(part.guessed for part in parts))
        )
    return words[::-1]


def cut_words(words: Sequence[PhonemeWord]) -> list[str]:
    """List the unknown words whose last letters are silent, because ``spoken_letters`` reads only the first letters."""
    guessed = [found for word in words if word.guessed for found in LETTERS.findall(word.text)]
    return [word for word in guessed if len(word) > LONGEST]


def pronounce(parts: Sequence[Part], following: Following, dictionary: Dictionary) -> Following:
    """Set the phonemes of a word's parts. The longest run of parts that is a known word is looked up as one word.

    ``following`` is the context after the word. Returns the context for the word before it.
    """
    right = len(parts)
    if stutters := stuttered([part.text.lower() for part in parts]):
        following = pronounce(parts[stutters:], following, dictionary)
        for part in parts[:stutters]:
            part.phonemes = first_sound(parts[stutters].phonemes or "", len(part.text)) if part.text.isalpha() else " "
        return following
    while right:
        left = next((left for left in range(right) if look_up_run(parts, left, right, following, dictionary)), None)
        if left is not None:
            following = before(parts[left], following)
            right = left
        elif not parts[right - 1].text.strip("-'"):
            right -= 1
            parts[right].phonemes = ""
        else:  # a part is unknown, so the network makes the phonemes of the whole word from its letters
            letters = " ".join(LETTERS.findall("".join(part.text for part in parts)))
            written = re.sub("[A-Za-z]+", lambda word: dictionary.marked.get(word[0].lower(), word[0]), letters)
            parts[0].phonemes, parts[0].guessed = " ".join(map(spoken_letters, written.split())), True
            if dictionary.british:
                parts[0].phonemes = parts[0].phonemes.translate(BRITISH)
            for part in parts[1:]:
                part.phonemes = ""
            return before(parts[0], following)
    soften(parts)
    return following


def stuttered(words: Sequence[str]) -> int:
    """Count the parts of a stutter, which repeat the beginning of a word: 2 for "d", "-", "did", "n't"."""
    count = len(words) - next((at for at, word in enumerate(reversed(words)) if word == "-"), len(words))
    last = "".join(words[count:])
    known = (
        last
        and count % 2 == 0
        and "".join(words) not in NO_STUTTER
        and all(0 < len(word) < min(3, len(last)) and last.startswith(word) for word in words[:count:2])
        and all(word == "-" for word in words[1:count:2])
    )
    return count if known else 0


def first_sound(phonemes: str, letters: int) -> str:
    """Return the sound of the first ``letters`` letters of a word (1 or 2).

    A stop consonant cannot be spoken alone, so the next sound of the word is added: "kæ kˈænt" for "c-can't".
    """
    plain = phonemes.translate(WITHOUT_STRESS)
    consonants = len(plain) - len(plain.lstrip("".join(CONSONANTS)))
    if not consonants:
        return plain[:1]
    sound = plain[: min(consonants, letters if plain[:1] not in "θðʃʧʤ" else 1)]
    return plain[: len(sound) + 1] if sound[-1] in "pbtdkɡʧʤ" else sound


def look_up_run(parts: Sequence[Part], left: int, right: int, following: Following, dictionary: Dictionary) -> bool:
    """Look up the parts from ``left`` to ``right`` as one word. Returns whether the word is known.

    If the word is known, the first of these parts gets all its phonemes.
    """
    run = parts[left:right]
    tag = max(run, key=lambda part: sum(1 if letter == letter.lower() else 2 for letter in part.text)).tag
    if len(run) == 1 and tag.startswith("="):
        phonemes = dictionary.word_phonemes(tag[1:], "NN", following)
    elif len(run) == 1 and not tag.isascii():
        phonemes = tag.translate(BRITISH) if dictionary.british else tag
    else:
        phonemes = dictionary.word_phonemes("".join(part.text for part in run), tag, following)
    if phonemes is None:
        return False
    run[0].phonemes = phonemes
    for part in run[1:]:
        part.phonemes = ""
    return True


def before(word: Part, following: Following) -> Following:
    """Return the context that ``word`` makes for the word before it."""
    vowel = next(
        (sound in VOWELS for sound in word.phonemes or "" if sound in VOWELS or sound in CONSONANTS), following.vowel
    )
    return Following(vowel, word.text in ("to", "To") or (word.text == "TO" and word.tag in ("TO", "IN")))


def soften(parts: Sequence[Part]) -> None:
    """Weaken stresses in a compound ("well-known"), so that every two words have at most one main stress."""
    spoken = [
        (PRIMARY in part.phonemes, weight(part.phonemes), index) for index, part in enumerate(parts) if part.phonemes
    ]
    if len(spoken) == 2 and len(parts[spoken[0][2]].text) == 1:
        weaker = [spoken[1][2]]
    elif len(spoken) < 2 or sum(main for main, _, _ in spoken) <= (len(spoken) + 1) // 2:
        weaker = []
    else:
        weaker = [index for _, _, index in sorted(spoken)[: len(spoken) // 2]]
    for index in weaker:
        parts[index].phonemes = stressed(parts[index].phonemes, WEAKER)


def weight(phonemes: str) -> int:
    return sum(2 if sound in LONG_SOUNDS else 1 for sound in phonemes)


KEPT_FEATURES = 8192  # number of features whose weights are kept in memory after they are parsed
BEFORE, AFTER = ("-START2-", "-START-"), ("-END-", "-END2-")


def part_of_speech(words: Sequence[str]) -> list[str]:
    """Tag each word with its part of speech, or with a reading of ``homographs``. Punctuation marks count as words."""
    known = table("tags")
    context = [*BEFORE, *map(frequent_form, words), *AFTER]  # context[index + 2] is words[index]
    tags = list(BEFORE)
    for index, word in enumerate(words):
        tags.append(known.get(word) or best_tag(features(index, word, context, tags[-1], tags[-2])))
    return [sure_tag(words, tags, index) or tag for index, tag in enumerate(tags[2:])]


def sure_tag(words: Sequence[str], tags: Sequence[str], index: int) -> str | None:
    """Return the tag or the phonemes that a word has among its neighbours, by ``homographs``, or ``None``.

    ``tags`` begins with the two tags of ``BEFORE``.
    """
    word = words[index].lower()
    if word not in homographs():
        return None
    left = f"{' '.join(words[max(0, index - 8) : index]).lower()}/{tags[index + 1]}"
    right = " ".join(words[index + 1 : index + 9]).lower()
    return next((reading for reading, before, after in cases(word) if before.search(left) and after.match(right)), None)


PLACEHOLDERS = {
    "{end}": r"(?:[.,;:!?]|\Z)",
    "{number}": r"(?:zero|one|t(?:wo|hree|en|welve|housand)|four|five|six|seven|eight|nine|\w+t(?:y|een)"
    r"|eleven|hundred)",
}


@cache
def homographs() -> dict[str, list[str]]:
    """Read the words that are spelled alike and sound different, and the lines of ``homographs.tsv`` about them."""
    lines: dict[str, list[str]] = {}
    for line in (DATA / "homographs.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            word, case = line.split("\t", 1)
            lines.setdefault(word, []).append(case)
    return lines


@cache
def cases(word: str) -> list[tuple[str, re.Pattern, re.Pattern]]:
    """Return the readings of a homograph, and for each of them the patterns of the text before and after the word."""
    stated = "\n".join(homographs()[word])
    for placeholder, pattern in PLACEHOLDERS.items():
        stated = stated.replace(placeholder, pattern)
    rows = (line.split("\t") for line in stated.split("\n"))
    return [(reading, re.compile(before), re.compile(after)) for reading, before, after in rows]


def best_tag(features: Sequence[str]) -> str:
    return tags_by_name()[
        int(sum(map(weights, features)).argmax())
    ]  # if sums are equal, the tag that is last in the alphabet


@cache
def tags_by_name() -> list[str]:
    """List all tags, in reverse alphabetical order. They are read from the feature "b", which has weights for all."""
    return sorted((weight.partition("=")[0] for weight in (table("weights").get("b") or "").split()), reverse=True)


@lru_cache(KEPT_FEATURES)
def weights(feature: str) -> np.ndarray:
    """Return the weights of a feature for the tags of ``tags_by_name``, (tags,) float64."""
    stated = dict(weight.split("=") for weight in (table("weights").get(feature) or "").split())
    return np.array([float(stated.get(tag, 0)) for tag in tags_by_name()])


def frequent_form(word: str) -> str:
    """Return a word in lower case, or if it is too rare to have weights, its shape."""
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
    """List the features by which a word is tagged.

    Args:
        index: Index of the word.
        word: The word.
        context: The words in their frequent forms. ``context[index + 2]`` is the word.
        before: Tag of the word before it.
        second_before: Tag of the word before that one.
    """
    far_left, left, form, right, far_right = context[index : index + 5]
    return (
        "b",
        f"s3={word[-3:]}",
        f"p1={word[0]}",
        f"w={form}",
        f"sh={shape(word)}",
        "i0" if index == 0 else "i+",
        f"t-1={before}",
        f"t-2={second_before}",
        f"t-12={before},{second_before}",
        f"w-1={left}",
        f"s3-1={left[-3:]}",
        f"w-2={far_left}",
        f"w+1={right}",
        f"s3+1={right[-3:]}",
        f"w+2={far_right}",
    )
