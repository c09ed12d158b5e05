"""Synthesis of 24 kHz speech with a KittenTTS model."""

import re
from collections.abc import Callable
from functools import cached_property

import numpy as np

from ane.audio.trimming import trimmed
from ane.models.kitten.phonemes import Phonemizer, load_espeak, phonemize, word_ids
from ane.models.kitten.published_text import preprocess, split_published
from ane.models.kitten.settings import KittenSettings
from ane.models.styletts.speaker import MOST_IDS, SAMPLE_RATE, StyleChunk, StyleSpeaker
from ane.speech.request import Run, SpeechRequest
from ane.system.errors import UserError
from ane.text import nothing_to_say_error
from ane.text.english import normalise_cased
from ane.text.passages import PLAIN, split_to_fit

PUBLISHED_CUT = 5000        # samples that the published code cuts from the end of every chunk
END_SILENCE = 0.1           # seconds of silence that may stay at the end of a chunk
SPELLED = re.compile(r"(?<=\b[A-Z])\.(?=[A-Z]\b)")      # in "U.S.A", which espeak-ng reads right as USA
ENDED = re.compile(r"[.!?,;:]['\")]*$")


class KittenSynthesizer(StyleSpeaker):
    """A KittenTTS model. The published graphs draw noise themselves, so only the length of speech is the same in every
    run; ``published`` texts of a few letters may have no samples.

    Attributes:
        phonemizer: text → IPA: espeak-ng, loaded with the first text, or what is set in its place. Only one thread of
            the process calls a phonemizer at a time.
    """

    settings = KittenSettings

    @cached_property
    def phonemizer(self) -> Phonemizer:
        return load_espeak()

    def completed(self, request: SpeechRequest) -> SpeechRequest:
        unused = [name for name in ("ssml", "lexicon", "cast") if getattr(request, name)]
        if request.settings.published and unused:
            raise UserError(f"{unused[0]} has no effect with published settings: leave one out")
        return super().completed(request)

    def normaliser(self, settings: KittenSettings) -> Callable[[str], str]:
        return preprocess if settings.published else normalise_cased

    def chunks(self, request: SpeechRequest, run: Run) -> list[StyleChunk]:
        """The style of a chunk is the row with the number of its characters, as it is spoken."""
        def encode(piece: str) -> tuple[int, tuple[np.ndarray, list[tuple[str, int, int]], int]] | None:
            spoken = spoken_form(piece)
            ids, spans = word_ids(phonemize(self.phonemizer, spoken), spoken)
            return (len(ids), (ids, spans, len(spoken))) if any(map(str.isalnum, spoken)) else None

        with run.timeline.record("phonemes"):
            if request.settings.published:
                texts = split_published(preprocess(request.text))
                if not texts:
                    raise nothing_to_say_error(request.text)
                return [self.chunk(text, *word_ids(phonemize(self.phonemizer, text), text), len(text), PLAIN, request,
                                   run) for text in texts]
            return [self.chunk(text, *found, delivery, request, run) for text, found, delivery in
                    split_to_fit(run.passages(request), encode, request.settings.split, MOST_IDS, "phonemes")]

    def trimmed(self, wave: np.ndarray, settings: KittenSettings) -> tuple[np.ndarray, int]:
        return (cut_as_published if settings.published else trim_end)(wave), 0


def spoken_form(text: str) -> str:
    """A text in words, which ends in a mark."""
    words = SPELLED.sub("", normalise_cased(text))
    return words if ENDED.search(words) else f"{words},"


def cut_as_published(wave: np.ndarray) -> np.ndarray:
    """The waveform (S,) without its last 5000 samples; empty when it has no more."""
    return wave[:max(0, len(wave) - PUBLISHED_CUT)]


def trim_end(wave: np.ndarray) -> np.ndarray:
    """The waveform (S,) within ±1, with at most ``END_SILENCE`` seconds of silence at its end."""
    if not len(wave):
        return wave
    return trimmed(np.clip(wave, -1, 1), (len(wave) / SAMPLE_RATE, END_SILENCE))
