"""A stand-in for flite's C library: a tone for each letter, and a phoneme for each letter that is not silent."""

import numpy as np

from training.speech import RATE
from training.timed_speech import PHONES, Segment

SECONDS = 0.06      # of a phoneme
SILENT = "h"        # a letter that is not spoken
VOWELS = {"a": "AE1", "e": "EH1", "i": "IH1", "o": "OW1", "u": "UH1"}
OTHERS = {"c": "K", "j": "JH", "q": "K", "x": "Z"}
SOUNDS = {letter: PHONES.index(VOWELS.get(letter) or OTHERS.get(letter) or letter.upper())
          for letter in "abcdefgijklmnopqrstuvwxyz"}


class ToneTeacher:
    """Takes the place of ``training.timed_speech.TimedFlite``."""

    def __init__(self, voice: str, libraries: str | None = None):
        self.voice = voice

    def pronounce(self, word: str) -> list[int]:
        return [SOUNDS[letter] for letter in word if letter in SOUNDS]

    def speak(self, text: str, stretch: float = 1.0) -> tuple[np.ndarray, list[Segment], list[str]]:
        """A pause before, after, and at every comma."""
        seconds, now, sound = SECONDS * stretch, 0.0, []
        segments, words = [], [word.strip("',.?!;:-").replace("'", "") for word in text.split()]

        def add(phone: int, word: int) -> None:
            nonlocal now
            now += seconds
            segments.append(Segment(phone, word, now))
            time = np.arange(round(now * RATE) - sum(map(len, sound))) / RATE
            sound.append(0.3 * np.sin(2 * np.pi * (100 + 10 * phone) * time) * (phone > 0))

        add(0, -1)
        for index, word in enumerate(text.split()):
            for phone in self.pronounce(word.lower()):
                add(phone, index)
            if word.endswith(","):
                add(0, -1)
        add(0, -1)
        return np.concatenate(sound).astype(np.float32), segments, words
