"""Symbols of FastSpeech for the training clips: letters, or phonemes for some words, each with its mel frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from ane.models.fastspeech.text import IDS, VOWELS
from training.letter_alignment import LetterAlignment, Phonemes
from training.text import spoken_words
from training.timed_speech import PHONES, TimedClip, flite_voice

ALIGNED_WORDS = 6000        # most frequent ones of the lexicon, that the alignment is learned from
NO_SOUND = -1
BARE = tuple(dict.fromkeys(phone.rstrip("012") for phone in PHONES))        # without stress
BARE_INDEX = np.array([BARE.index(phone.rstrip("012")) for phone in PHONES])
SPOKEN_AS_PHONEMES = 0.08   # share of the words


@dataclass(frozen=True)
class Symbol:
    """A letter or mark of a text: its id, its word's index (-1: none), its mel frames and its sound's class."""

    id: int
    word: int
    frames: int
    sound: int


class TeacherLexicon:
    """The pronunciations of frequent words by flite, and what each letter of a word sounds like.

    A letter's sound, its phonemes, has a number; the network learns to predict it beside durations and mel.
    """

    def __init__(self, voice: str, libraries: str | None):
        self.voice, self.libraries = voice, libraries
        self.words, self.weights = spoken_words()

    @cached_property
    def pronunciations(self) -> dict[str, Phonemes]:
        flite = flite_voice(self.voice, self.libraries)
        return {word: tuple(flite.pronounce(word)) for word in self.words}

    @cached_property
    def alignment(self) -> LetterAlignment:
        pairs = [(word, bare(phones)) for word, phones in list(self.pronunciations.items())[:ALIGNED_WORDS]]
        return LetterAlignment(pairs, [BARE.index(vowel) for vowel in VOWELS])

    @cached_property
    def sounds(self) -> dict[Phonemes, int]:
        """The phonemes that a letter stands for, by number."""
        found: dict[Phonemes, int] = {}
        for word, phones in self.pronunciations.items():
            for part in self.split(word, phones):
                found.setdefault(part, len(found))
        return found

    def split(self, letters: str, phones: Sequence[int]) -> list[Phonemes]:
        """The phonemes of each letter."""
        ends = np.cumsum([0, *self.alignment.align(letters, bare(phones))])
        return [tuple(phones[begin:end]) for begin, end in pairwise(ends)]

    @cached_property
    def examples(self) -> list[tuple[list[int], list[int]]]:
        """Symbol ids and sounds of the letters of every word."""
        return [([IDS[letter] for letter in word], [self.sounds[part] for part in self.split(word, phones)])
                for word, phones in self.pronunciations.items()]


def bare(phones: Sequence[int]) -> Phonemes:
    """Phonemes without their stress."""
    return tuple(BARE_INDEX[list(phones)].tolist())


def timed_symbols(clip: TimedClip, lexicon: TeacherLexicon) -> list[Symbol]:
    """The symbols of a clip's text; their frames add up to those of the clip.

    A pause belongs to the mark that it is at, else to the space, else to the letter before it.
    """
    frames, sounds, places = [], [], []     # of each letter of the text, in order
    pauses: dict[int, int] = {}             # number of letters before → frames
    for word, letters in enumerate(clip.words):
        rows = clip.segments[clip.segments[:, 1] == word]
        ends = np.cumsum([0, *rows[:, 2]])
        begin = 0
        for part in lexicon.split(letters, rows[:, 0].tolist()):
            end = begin + len(part)
            frames.append(int(ends[end] - ends[begin]))
            sounds.append(lexicon.sounds.get(part, NO_SOUND))
            places.append(word)
            begin = end
    spoken = np.cumsum([len(letters) for letters in clip.words])
    word = -1
    for _, row_word, length in clip.segments.tolist():
        if row_word >= 0:
            word = row_word
        else:
            before = int(spoken[word]) if word >= 0 else 0
            pauses[before] = pauses.get(before, 0) + length
    symbols, used = [], 0
    for character in clip.text:
        if character.isalpha():
            symbols.append(Symbol(IDS[character], places[used], frames[used], sounds[used]))
            used += 1
        elif character in IDS:
            inside = 0 < used < len(places) and places[used - 1] == places[used]      # an apostrophe
            symbols.append(Symbol(IDS[character], places[used] if inside else -1, 0, NO_SOUND))
    return with_pauses(symbols, pauses)


def with_pauses(symbols: Sequence[Symbol], pauses: dict[int, int]) -> list[Symbol]:
    """``pauses``: frames by the number of letters before the pause."""
    letters = np.cumsum([is_letter(symbol) for symbol in symbols])
    out = list(symbols)
    for before, length in pauses.items():
        gap = [index for index, count in enumerate(letters) if count == before and not is_letter(out[index])]
        marks = [index for index in gap if out[index].id != IDS[" "]]
        last = int(np.searchsorted(letters, before)) if before else 0
        place = marks[0] if marks else gap[0] if gap else last
        symbol = out[place]
        out[place] = Symbol(symbol.id, symbol.word, symbol.frames + length, symbol.sound)
    return out


def is_letter(symbol: Symbol) -> bool:
    return symbol.id >= IDS["A"]


def with_phonemes(symbols: Sequence[Symbol], clip: TimedClip, rng: np.random.Generator,
                  share: float = SPOKEN_AS_PHONEMES) -> list[Symbol]:
    """The symbols with the phonemes of some words in place of their letters, as text in braces gives them.

    A phoneme's stress is sometimes written otherwise, since ARPAbet also has 2 and none.
    """
    chosen = rng.random(len(clip.words)) < share
    if not chosen.any():
        return list(symbols)
    out: list[Symbol] = []
    spelled = -1
    for symbol in symbols:
        if symbol.word < 0 or not chosen[symbol.word]:
            out.append(symbol)
        elif symbol.word != spelled:
            spelled = symbol.word
            rows = clip.segments[clip.segments[:, 1] == spelled]
            surplus = sum(one.frames for one in symbols if one.word == spelled) - int(rows[:, 2].sum())
            for index, (phone, _, length) in enumerate(rows.tolist()):
                more = surplus if index == len(rows) - 1 else 0         # a pause that the last letter has
                out.append(Symbol(IDS[f"@{restressed(PHONES[phone], rng)}"], spelled, length + more, NO_SOUND))
    return out


def restressed(phone: str, rng: np.random.Generator) -> str:
    draw = rng.random()
    if phone[-1] not in "01" or draw < 0.8:
        return phone
    return phone[:-1] + ("2" if phone[-1] == "1" and draw < 0.9 else "")
