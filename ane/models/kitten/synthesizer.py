"""Synthesis of 24 kHz speech with a KittenTTS model: text to phonemes by espeak-ng, these to the ids that the
graph takes, as KittenTTS 0.8.1 has them (kittentts/onnx_model.py), and these to sound.

The extra ``kitten`` installs espeak-ng. It is GPL-3.0-or-later, so nothing else imports it.
"""

import os
import re
import threading
from collections.abc import Callable
from functools import cached_property

import numpy as np

from ane.audio.trimming import trimmed
from ane.models.kitten.published_text import preprocess, split_published
from ane.models.styletts.graph import VOCABULARY
from ane.models.styletts.settings import KittenSettings
from ane.models.styletts.speaker import MOST_IDS, SAMPLE_RATE, StyleChunk, StyleSpeaker
from ane.speech.chunks import split_to_fit
from ane.speech.request import SpeechContext, SpeechRequest
from ane.system.errors import UserError
from ane.text import nothing_to_say_error
from ane.text.english import normalise_cased
from ane.text.passages import Passage

Phonemizer = Callable[[str], str]  # English text → IPA with stress marks, punctuation kept

END_ID = 10  # "…", which ends every text

# espeak-ng has one state for the whole process: concurrent calls return wrong phonemes. Every call takes this lock.
PHONEMIZER_LOCK = threading.RLock()


def phonemize(phonemizer: Phonemizer, text: str) -> str:
    """IPA of ``text``. Only one thread of the process is in a phonemizer at a time."""
    with PHONEMIZER_LOCK:
        return phonemizer(text)


def word_ids(phonemes: str, text: str) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    """Ids (T,) int64, and each word of ``text`` with its first id and the one after its last.

    The ids are those of the words and marks of ``phonemes``, joined by spaces, between the pad and "…" with the pad;
    characters outside the vocabulary are dropped. There are no words when the phonemes have another number of them.
    """
    groups, words, ids = phonemes.split(), text.split(), [0]
    spans: dict[int, tuple[int, int]] = {}
    for index, group in enumerate(groups):
        for piece in re.findall(r"\w+|[^\w\s]", group):
            ids += [VOCABULARY[" "]] * bool(spans)
            first, _ = spans.get(index, (len(ids), 0))
            ids += [VOCABULARY[character] for character in piece if character in VOCABULARY]
            spans[index] = first, len(ids)
    aligned = len(words) == len(groups)
    return (
        np.array([*ids, END_ID, 0], np.int64),
        [(word, *spans[index]) for index, word in enumerate(words)] if aligned else [],
    )


def load_espeak() -> Phonemizer:
    """Load espeak-ng for American English, as KittenTTS does: stress marks, punctuation preserved.

    The data of the espeakng_loader wheel is passed on in the variable ESPEAK_DATA_PATH of this process.

    Raises:
        UserError: phonemizer or espeakng_loader is not installed, or the library does not load.
    """
    try:
        import espeakng_loader
        from phonemizer.backend import EspeakBackend
        from phonemizer.backend.espeak.wrapper import EspeakWrapper
    except ImportError as error:
        raise UserError(
            f"KittenTTS needs {error.name} to convert text to phonemes: pip install '.[kitten]' "
            "(espeak-ng, GPL-3.0-or-later), or set phonemizer, a function from text to IPA"
        ) from error
    try:
        EspeakWrapper.set_library(espeakng_loader.get_library_path())
        os.environ["ESPEAK_DATA_PATH"] = espeakng_loader.get_data_path()
        backend = EspeakBackend("en-us", preserve_punctuation=True, with_stress=True)
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"espeak-ng does not load: {error}; pip install --force-reinstall espeakng_loader phonemizer"
        ) from error

    return lambda text: backend.phonemize([text])[0]


PUBLISHED_CUT = 5000  # samples that the published code cuts from the end of every chunk
END_SILENCE = 0.1  # seconds of silence that may stay at the end of a chunk
SPELLED = re.compile(r"(?<=\b[A-Z])\.(?=[A-Z]\b)")  # in "U.S.A", which espeak-ng reads right as USA
ENDED = re.compile(r"[.!?,;:]['\")]*$")


class KittenSynthesizer(StyleSpeaker):
    """A KittenTTS model. The published graphs draw noise themselves, so only the length of speech is the same in every
    run; ``published`` texts of a few letters may have no samples.
    """

    settings, speeds = KittenSettings, (0.1, 10.0)

    @cached_property
    def phonemizer(self) -> Phonemizer:
        """Text → IPA: espeak-ng, loaded with the first text, or what is set in its place."""
        return load_espeak()

    def with_defaults(self, request: SpeechRequest) -> SpeechRequest:
        request = super().with_defaults(request)
        unused = [name for name in ("ssml", "lexicon", "cast") if getattr(request, name)]
        if request.settings.published and unused:
            raise UserError(f"{unused[0]} has no effect with published settings: leave one out")
        return request

    def normaliser(self, settings: KittenSettings) -> Callable[[str], str]:
        return preprocess if settings.published else normalise_cased

    def chunks(self, request: SpeechRequest, context: SpeechContext) -> list[StyleChunk]:
        """The style of a chunk is the row with the number of its characters, as it is spoken."""

        def make(piece: str, passage: Passage) -> StyleChunk | None:
            return self.chunk_of(piece, spoken_form(piece), passage, request, context)

        with context.timeline.record("phonemes"):
            if not request.settings.published:
                return split_to_fit(context.passages(request), make, request.settings.split, MOST_IDS, "phonemes")
            texts = split_published(preprocess(request.text))
            if not texts:
                raise nothing_to_say_error(request.text)
            chunks = [
                chunk
                for text in texts
                if (chunk := self.chunk_of(text, text, Passage(text), request, context, empty=True))
            ]
            for chunk in chunks[:-1]:
                chunk.final = False
            return chunks

    def chunk_of(
        self,
        text: str,
        spoken: str,
        passage: Passage,
        request: SpeechRequest,
        context: SpeechContext,
        empty: bool = False,
    ) -> StyleChunk | None:
        """The chunk of a text by what is ``spoken`` of it; None for one without a letter or digit, unless ``empty``."""
        if not (empty or any(map(str.isalnum, spoken))):
            return None
        return self.chunk(
            text, *word_ids(phonemize(self.phonemizer, spoken), spoken), len(spoken), passage, request, context
        )

    def trimmed(self, wave: np.ndarray, settings: KittenSettings) -> tuple[np.ndarray, int]:
        return (cut_as_published if settings.published else trim_end)(wave), 0


def spoken_form(text: str) -> str:
    """A text in words, which ends in a mark."""
    words = SPELLED.sub("", normalise_cased(text))
    return words if ENDED.search(words) else f"{words},"


def cut_as_published(wave: np.ndarray) -> np.ndarray:
    """The waveform (S,) without its last 5000 samples; empty when it has no more."""
    return wave[: max(0, len(wave) - PUBLISHED_CUT)]


def trim_end(wave: np.ndarray) -> np.ndarray:
    """The waveform (S,) within ±1, with at most ``END_SILENCE`` seconds of silence at its end."""
    if not len(wave):
        return wave
    return trimmed(np.clip(wave, -1, 1), (len(wave) / SAMPLE_RATE, END_SILENCE))


SPEAKER = KittenSynthesizer
