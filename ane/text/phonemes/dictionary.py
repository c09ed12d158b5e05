"""Find the phonemes of an English word by the dictionaries and rules of misaki (0.9.4, hexgrad, Apache-2.0).

Phonemes are those of Kokoro: IPA with ``A I O W Y`` for the diphthongs of "day, my, go, now, boy", ``ᵊ`` and ``ᵻ`` for
weak vowels, ``T`` for a flapped t, and ``ˈ`` or ``ˌ`` before a stressed vowel. In British English, ``Q`` is the
diphthong of "go". A dictionary is a sorted table in a compressed text file. Loading it takes only a few milliseconds,
because words are searched in the text, and the text is not parsed.
"""

import gzip
import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ane.text.lexicon import PRONOUNCED, SHORT_WORDS, SPELLED
from ane.text.unicode_to_ascii import ascii_character

DATA = Path(__file__).parent / "data"
BLOCK = 1024  # a look-up searches this many bytes of a table, and the rest of a line


class SortedTable:
    """A table in a gzip file. A line is KEY, a tab and VALUE, and lines are sorted by the bytes of the keys.

    Values may contain tabs.
    """

    def __init__(self, path: Path):
        self.lines = b"\n" + gzip.decompress(path.read_bytes())
        last = len(self.lines) - 1
        # Positions of the line breaks before some lines, one per block, and the keys of these lines.
        self.breaks = sorted({self.lines.index(b"\n", near) for near in range(0, last, BLOCK)} - {last})
        self.keys = [self.lines[line + 1 : self.lines.index(b"\t", line)] for line in self.breaks]
        self.breaks.append(last)

    def get(self, key: str) -> str | None:
        wanted = key.encode()
        block = bisect_right(self.keys, wanted)
        if not block:
            return None
        begin = self.lines.find(b"\n%b\t" % wanted, *self.breaks[block - 1 : block + 1])
        return None if begin < 0 else self.lines[begin + len(wanted) + 2 : self.lines.index(b"\n", begin + 1)].decode()


@cache
def table(name: str) -> SortedTable:
    """Load a table of the folder ``data``, and keep it in memory."""
    return SortedTable(DATA / f"{name}.tsv.gz")


@cache
def borrowed_words() -> dict[str, str]:
    """Read the phonemes of borrowed words, whose letters have diacritics ("résumé").

    The keys are the words with diacritics, and also without them, except for the words in ``ENGLISH_TOO``.
    """
    lines = (DATA / "borrowed_words.tsv").read_text(encoding="utf-8").splitlines()
    written = dict(line.split("\t") for line in lines if not line.startswith("#"))
    plain = {without_marks(word): phonemes for word, phonemes in written.items()}
    return {word: phonemes for word, phonemes in plain.items() if word not in ENGLISH_TOO} | written


def without_marks(word: str) -> str:
    """Remove the diacritics from a word's letters, as the normaliser does: García → "Garcia"."""
    return "".join(map(ascii_character, word))


def marked_words(text: str) -> dict[str, str]:
    """Find the words of a text that have diacritics. Returns them by their form without diacritics, in lower case.

    If the text also has the form without diacritics, the word is left out. For example, in "resume your résumé", the
    two words look the same after the text is normalised.
    """
    if text.isascii():
        return {}
    text = unicodedata.normalize("NFC", text.replace("’", "'")).lower()
    words = {part for word in LATIN_WORD.findall(text) for part in (word, *re.split("['-]", word))}
    return {plain: word for word in words if not word.isascii() and (plain := without_marks(word)) not in words}


LATIN_WORD = re.compile("[a-z\u00df-\u024f\u1e00-\u1eff]+(?:['-][a-z\u00df-\u024f\u1e00-\u1eff]+)*")
# Without its diacritics, each of these is another word or name: Simón and Simon.
ENGLISH_TOO = frozenset(
    "agnes andree andres ca helene ines leon lucia nicolas nina ramon sebastian simon".split()  # noqa: SIM905
)
# A word in capitals that no dictionary has is spelled, unless it can be spoken: IKEA, but not UNLV, EEOC or NCAA.
CLUSTERS = "B[LR]|C[HLR]|D[RW]|F[LR]|G[LR]|K[LNR]|P[HLRS]|S[CHKLMNPQTVW]|T[HRSW]|W[HR]|QU"
SPEAKABLE = re.compile(
    rf"(?=.*[AEIOU])(?!.*(?:[^AEIOUY]{{3}}|AO|II|IU|UI|UU))(?:(?:{CLUSTERS})|[AEIOU][^AEIOU]|[^AEIOU][AEIOUY])[A-Z]{{2,}}"
)
INITIALS = re.compile("[AEIOUY][A-Z]|[A-Z][AEIOUY]")  # two letters, not both consonants
NAMES = frozenset(("AL", "ED", "JO", "LE", "DE"))  # of persons, in capitals: AL GORE
BRITISH = str.maketrans({"O": "Q", "æ": "a", "ᵻ": "ɪ", "ɾ": "t"})  # American sound → British sound
PRIMARY, SECONDARY = "ˈ", "ˌ"
VOWELS = frozenset("AIOQWYaiuæɑɒɔəɛɜɪʊʌᵻ")
CONSONANTS = frozenset("bdfhjklmnpstvwzðŋɡɹɾʃʒʤʧθ")
FLAPPING = frozenset("AIOWYiuæɑəɛɪɹʊʌ")  # between one of these sounds and a vowel, t is flapped
DOUBLED = re.compile(r"([bcdgklmnprstvxz])\1ing$|cking$")

DRAWN_OUT = re.compile(r"([A-Z])\1{2,}", re.I)
# Interjections that no dictionary has.
SOUNDS = {
    "hmph": "hˈʌmf",
    "sh": "ʃ",
    "shh": "ʃ",
    "brr": "bˈɜɹ",
    "grr": "ɡˈɜɹ",
    "zz": "z",
    "tsk": "tˈɪsk",
    "pst": "pst",
    "mm": "m",
    "hm": "hm",
    "mhm": "mhˈʌm",
    "nth": "ˈɛnθ",
}

# How to change the stress of a word: negative numbers weaken it, and positive numbers strengthen it (see ``stressed``).
WEAKER, CAPITALISED, CAPITALS = -0.5, 0.5, 2.0


@dataclass(frozen=True)
class Following:
    """The context after a word.

    Attributes:
        vowel: Whether the next sound is a vowel. ``None`` means that a pause follows.
        to: Whether the next word is "to".
    """

    vowel: bool | None = None
    to: bool = False


END = Following()


class Dictionary:
    """The dictionaries of American or British English, and the rules for words that are derived from their words."""

    def __init__(self, british: bool = False, marked: dict[str, str] | None = None):
        """Create the dictionary for a text. ``marked`` is the result of ``marked_words`` for this text."""
        self.british, self.region, self.marked = british, "_gb" if british else "", marked or {}
        self.weak = "ɪ" if british else "ᵻ"  # the vowel in -es and -ed

    def word_phonemes(self, word: str, tag: str, following: Following) -> str | None:
        """Find the phonemes of a word, by its part of speech and the context after it.

        Returns ``None`` if no dictionary has the word or its stem.
        """
        stress = None if word == word.lower() else CAPITALS if word == word.upper() else CAPITALISED
        phonemes = self.function_word(word, tag, stress, following)
        if phonemes is not None:
            return phonemes
        if self.written_in_capitals(word, tag, stress, following):
            word = word.lower()
        if word.lower() in SOUNDS and not (word.isupper() and len(word) > 1 and word not in PRONOUNCED):
            return SOUNDS[word.lower()]
        if spoken := self.without_g(word, tag, following):
            return spoken
        if word.isupper() and len(set(word)) > 1 and (drawn := self.shortened(word.lower(), tag, following)):
            return drawn
        for known in (word, f"{word[:-2]}'s" if word.endswith("s'") else "", word[:-1] if word.endswith("'") else ""):
            if known and self.is_known(known):
                return self.look_up(known, tag, stress, following)
        return (
            self.plural(word, tag, stress, following)
            or self.past(word, tag, stress, following)
            or self.participle(word, tag, CAPITALISED if stress is None else stress, following)
            or self.shortened(word, tag, following)
        )

    def without_g(self, word: str, tag: str, following: Following) -> str | None:
        """Find the phonemes of "comin'" by the word "coming". The apostrophe of "begin'" ends a quotation."""
        if len(word) < 5 or not word.lower().endswith("in'") or self.gold(word[:-1]) is not None:
            return None
        phonemes = self.word_phonemes(f"{word[:-1]}g", tag, following)
        return f"{phonemes[:-1]}n" if phonemes and phonemes.endswith("ɪŋ") else None

    def shortened(self, word: str, tag: str, following: Following) -> str | None:
        """Find the phonemes of a drawn-out word, such as "nooo", by writing the repeated letter twice, or once."""
        shorter = DRAWN_OUT.sub(r"\1\1", word)
        if shorter == word:
            return None
        return self.word_phonemes(shorter, tag, following) or self.word_phonemes(
            DRAWN_OUT.sub(r"\1", word), tag, following
        )

    def function_word(self, word: str, tag: str, stress: float | None, following: Following) -> str | None:
        """Find the phonemes of a word that depends on its neighbours ("the", "to"), or of letters with periods."""
        lower = word.lower()
        if "." in word and word.replace(".", "").isalpha():
            return self.spelled(word)
        if word == "A" or word in SPELLED or self.is_pair_of_initials(word):  # the normaliser writes the article as "a"
            return self.spelled(word)
        if word == "a":
            return "ɐ" if tag == "DT" else "ˈA"
        if lower == "am":
            if word == "AM" and tag.startswith("NN"):
                return self.spelled(word)
            return self.entry("am", tag) if following.vowel is None or word != "am" or (stress or 0) > 0 else "ɐm"
        if lower == "an":
            return self.spelled(word) if word == "AN" and tag.startswith("NN") else "ɐn"
        if word == "I" and tag == "PRP":
            return f"{SECONDARY}I"
        if lower == "by" and tag.startswith(("ADV", "RB")):
            return "bˈI"
        if word in ("to", "To") or (word == "TO" and tag in ("TO", "IN")):
            return self.entry("to", tag) if following.vowel is None else "tʊ" if following.vowel else "tə"
        if word in ("in", "In") or (word == "IN" and tag != "NNP"):
            return f"{PRIMARY if following.vowel is None or tag != 'IN' else ''}ɪn"
        if word in ("the", "The") or (word == "THE" and tag == "DT"):
            return "ði" if following.vowel else "ðə"
        if word in ("used", "Used", "USED"):
            return self.entry("used", "VBD" if tag in ("VBD", "JJ") and following.to else "DEFAULT")
        return None

    def is_pair_of_initials(self, word: str) -> bool:
        """Return whether a word is two capitals that are read by name: FA, but not UP or the name AL."""
        known = word in SHORT_WORDS or word in NAMES or not INITIALS.fullmatch(word)
        return not known and self.gold(word) is None

    def written_in_capitals(self, word: str, tag: str, stress: float | None, following: Following) -> bool:
        """Return whether a word in capitals is read like the same word in lower case: "The" or "THE".

        A short name in capitals is not read like that.
        """
        if len(word) < 2 or word == word.lower() or not word.replace("'", "").isalpha():
            return False
        if (tag == "NNP" and len(word) <= 7) or self.has_entry(word):
            return False
        lower = word.lower()
        return (word == word.upper() or word[1:] == word[1:].lower()) and (
            self.has_entry(lower)
            or any(ending(lower, tag, stress, following) for ending in (self.plural, self.past, self.participle))
        )

    def is_known(self, word: str) -> bool:
        """Return whether a word has an entry, or is spelled letter by letter."""
        if self.has_entry(word):
            return True
        if not word.isascii() or not word.isalpha():
            return False
        return (
            len(word) == 1
            or (word[1:] == word[1:].upper() and not SPEAKABLE.fullmatch(word))
            or (word == word.upper() and self.gold(word.lower()) is not None)
        )

    def look_up(self, word: str, tag: str, stress: float | None, following: Following) -> str | None:
        """Find the phonemes of a known word. A name in capitals, or a word without an entry, is spelled."""
        name = False
        if word == word.upper() and self.gold(word) is None:
            word, name = word.lower(), tag == "NNP"
        phonemes = self.entry(word, tag, following.vowel is None, checked=name)
        initials = name and len(word) < 4 and word.upper() not in SHORT_WORDS
        if phonemes is None or (initials and PRIMARY not in phonemes):
            return self.spelled(word) or stressed(phonemes, stress)
        return stressed(phonemes, stress)

    def entry(self, word: str, tag: str, at_end: bool = False, checked: bool = False) -> str | None:
        """Look up a word in the dictionaries. An entry may have several readings, one for each part of speech.

        Args:
            word: Word to look up.
            tag: Part of speech of the word.
            at_end: Whether a pause follows the word.
            checked: Whether to use only the dictionary that was checked by hand.
        """
        value = self.gold(word)
        if value is None and not checked:
            value = self.silver(word)
        if value is None or "=" not in value:
            return value
        readings = dict(reading.split("=") for reading in value.split("\t"))
        classes = (
            ("VERB",) * tag.startswith("VB")
            + ("NOUN",) * tag.startswith("NN")
            + (("ADV",) * tag.startswith(("ADV", "RB")) + ("ADJ",) * tag.startswith(("ADJ", "JJ")))
        )
        keys = ("None",) if at_end and "None" in readings else (tag,) if tag in readings else classes
        return next((readings[key] for key in keys if key in readings), readings["DEFAULT"]) or None

    def has_entry(self, word: str) -> bool:
        return self.gold(word) is not None or self.silver(word) is not None

    def gold(self, word: str) -> str | None:
        if self.marked and (marked := self.borrowed(self.marked.get(word.lower(), ""))):
            return marked
        phonemes = self.with_either_capital(f"gold{self.region}", word)
        return phonemes or (self.borrowed(word.lower()) if self.silver(word) is None else None)

    def borrowed(self, word: str) -> str | None:
        """Find the phonemes of a borrowed word, or of its plural: "résumé", "résumés". ``word`` is in lower case."""
        entries, stem = borrowed_words(), word[:-1] if word.endswith("s") else ""
        phonemes = entries.get(word) or (
            stem and not stem.isascii() and (stem := entries.get(stem, "")) and self.with_s(stem)
        )
        return phonemes.translate(BRITISH) if phonemes and self.british else phonemes or None

    def silver(self, word: str) -> str | None:
        return self.with_either_capital(f"silver{self.region}", word)

    def with_either_capital(self, name: str, word: str) -> str | None:
        """Look up a word in the table ``name``. If it is not there, its capitalised or lower-case form is looked up."""
        value = table(name).get(word)
        if value is not None or len(word) < 2:
            return value
        if word == word.lower():
            return table(name).get(word.capitalize()) if word.capitalize() != word else None
        return table(name).get(word.lower()) if word == word.capitalize() else None

    def spelled(self, word: str) -> str | None:
        """Return the phonemes of the letters' names, with the main stress on the last letter."""
        letters = [self.gold(letter.upper()) for letter in word if letter.isalpha()]
        if not letters or None in letters:
            return None
        return PRIMARY.join(stressed("".join(letters), 0.0).rsplit(SECONDARY, 1))

    def plural(self, word: str, tag: str, stress: float | None, following: Following) -> str | None:
        """Derive the phonemes of a word with -s, -es, -ies or 's from the word without this ending."""
        if len(word) < 3 or not word.endswith("s"):
            return None
        longer = len(word) > 4
        stems = (
            word[:-1] if not word.endswith("ss") else "",
            word[:-2] if word.endswith("'s") or (longer and word.endswith("es") and not word.endswith("ies")) else "",
            f"{word[:-3]}y" if longer and word.endswith("ies") else "",
        )
        stem = self.stem_phonemes(stems, tag, stress, following)
        return stem and self.with_s(stem)

    def with_s(self, stem: str) -> str:
        """Add the sound of the plural's -s to the phonemes of a word."""
        return stem + ("s" if stem[-1] in "ptkfθ" else f"{self.weak}z" if stem[-1] in "szʃʒʧʤ" else "z")

    def past(self, word: str, tag: str, stress: float | None, following: Following) -> str | None:
        """Derive the phonemes of a word with -d or -ed from the word without this ending."""
        if len(word) < 4 or not word.endswith("d"):
            return None
        stems = (
            word[:-1] if not word.endswith("dd") else "",
            word[:-2] if len(word) > 4 and word.endswith("ed") and not word.endswith("eed") else "",
        )
        stem = self.stem_phonemes(stems, tag, stress, following)
        if not stem:
            return None
        if stem[-1] == "t" and not self.british:
            return f"{stem[:-1]}ɾᵻd" if stem[-2:-1] in FLAPPING else f"{stem}{'ᵻ' if len(stem) > 1 else 'ɪ'}d"
        return stem + ("t" if stem[-1] in "pkfθʃsʧ" else f"{self.weak}d" if stem[-1] in "td" else "d")

    def participle(self, word: str, tag: str, stress: float | None, following: Following) -> str | None:
        """Derive the phonemes of a word with -ing from its stem: "run" for "running", and "make" for "making"."""
        if len(word) < 5 or not word.endswith("ing"):
            return None
        stems = (
            word[:-3] if len(word) > 5 else "",
            f"{word[:-3]}e",
            word[:-4] if len(word) > 5 and DOUBLED.search(word) else "",
        )
        stem = self.stem_phonemes(stems, tag, stress, following)
        if self.british:
            return None if stem and stem[-1] in "əː" else stem and f"{stem}ɪŋ"
        if stem and len(stem) > 1 and stem[-1] == "t" and stem[-2] in FLAPPING:
            return f"{stem[:-1]}ɾɪŋ"
        return stem and f"{stem}ɪŋ"

    def stem_phonemes(self, stems: tuple[str, ...], tag: str, stress: float | None, following: Following) -> str | None:
        """Find the phonemes of the first of ``stems`` that is known."""
        return next(
            (self.look_up(stem, tag, stress, following) for stem in stems if stem and self.is_known(stem)), None
        )


def stressed(phonemes: str | None, stress: float | None) -> str | None:
    """Strengthen (``stress`` above 0) or weaken (below 0) the stress of a word's phonemes. ``None`` changes nothing."""
    if phonemes is None or stress is None:
        return phonemes
    if PRIMARY in phonemes:
        return phonemes if stress > 0 else phonemes.replace(SECONDARY, "").replace(PRIMARY, SECONDARY)
    if SECONDARY in phonemes:
        return phonemes.replace(SECONDARY, PRIMARY) if stress >= 1 else phonemes
    vowel = next((index for index, phoneme in enumerate(phonemes) if phoneme in VOWELS), None)
    if vowel is None or stress < 0:
        return phonemes
    return phonemes[:vowel] + (SECONDARY if stress <= 1 else PRIMARY) + phonemes[vowel:]
