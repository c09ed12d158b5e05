"""Speak with a KittenTTS model: text to phonemes by espeak-ng, phonemes to ids, and ids to 24 kHz sound.

The ids are the same as in KittenTTS 0.8.1 (kittentts/onnx_model.py). The extra ``kitten`` installs espeak-ng, which is
GPL-3.0-or-later, so no other module imports it.
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

# espeak-ng has one state for the whole process, and concurrent calls return wrong phonemes: every call takes this lock
PHONEMIZER_LOCK = threading.RLock()


def phonemize(phonemizer: Phonemizer, text: str) -> str:
    """Convert text to IPA. Only one thread of the process runs a phonemizer at once."""
    with PHONEMIZER_LOCK:
        return phonemizer(text)


def word_ids(phonemes: str, text: str) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    """Convert phonemes to ids.

    The ids are the pad, the words and marks of ``phonemes`` joined by spaces, "…" and the pad. Characters outside the
    vocabulary are left out.

    Returns:
        The ids, (T,) int64, and the words of ``text`` with the index of their first id and of the id after their last.
        There are no words if ``phonemes`` has a different number of words.
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
    """Load espeak-ng for American English as KittenTTS does, with stress marks and punctuation.

    This sets ESPEAK_DATA_PATH in the environment of the process to the data of the espeakng_loader wheel.

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
            f"espeak-ng does not load ({error}): pip install --force-reinstall espeakng_loader phonemizer"
        ) from error

    return lambda text: backend.phonemize([text])[0]


PUBLISHED_CUT = 5000  # samples that the published code cuts from the end of every chunk
END_SILENCE = 0.1  # seconds of silence that may stay at the end of a chunk
SPELLED = re.compile(r"(?<=\b[A-Z])\.(?=[A-Z]\b)")  # points in "U.S.A", which espeak-ng reads correctly as USA
ENDED = re.compile(r"[.!?,;:]['\")]*$")


class KittenSynthesizer(StyleSpeaker):
    """A KittenTTS model.

    The published graphs draw random noise, so only the length of the speech is the same in every run. With the setting
    ``published``, a text of a few letters may have no samples.
    """

    settings, speeds = KittenSettings, (0.1, 10.0)

    @cached_property
    def phonemizer(self) -> Phonemizer:
        """Function from text to IPA: espeak-ng, which is loaded with the first text, or a function that you set."""
        return load_espeak()

    def with_defaults(self, request: SpeechRequest) -> SpeechRequest:
        request = super().with_defaults(request)
        unused = [name for name in ("ssml", "lexicon", "cast") if getattr(request, name)]
        if request.settings.published and unused:
            raise UserError(f"{unused[0]} has no effect with the setting published: leave one out")
        return request

    def normaliser(self, settings: KittenSettings) -> Callable[[str], str]:
        return preprocess if settings.published else normalise_cased

    def chunks(self, request: SpeechRequest, context: SpeechContext) -> list[StyleChunk]:
        """Split the text into chunks. A chunk's style is the row for its number of spoken characters."""

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
        """Make the chunk for a text from its spoken form.

        Returns ``None`` if ``spoken`` has no letter or digit, unless ``empty`` is true.
        """
        if not (empty or any(map(str.isalnum, spoken))):
            return None
        return self.chunk(
            text, *word_ids(phonemize(self.phonemizer, spoken), spoken), len(spoken), passage, request, context
        )

    def trimmed(self, wave: np.ndarray, settings: KittenSettings) -> tuple[np.ndarray, int]:
        return (cut_as_published if settings.published else trim_end)(wave), 0


def spoken_form(text: str) -> str:
    """Spell out a text in words, and end it with a mark."""
    words = SPELLED.sub("", normalise_cased(text))
    return words if ENDED.search(words) else f"{words},"


def cut_as_published(wave: np.ndarray) -> np.ndarray:
    """Cut the last 5000 samples from a waveform (S,), or all samples if there are fewer."""
    return wave[: max(0, len(wave) - PUBLISHED_CUT)]


def trim_end(wave: np.ndarray) -> np.ndarray:
    """Clip a waveform (S,) to ±1, and leave at most ``END_SILENCE`` seconds of silence at its end."""
    if not len(wave):
        return wave
    return trimmed(np.clip(wave, -1, 1), (len(wave) / SAMPLE_RATE, END_SILENCE))


SPEAKER = KittenSynthesizer
