"""Speak with a KittenTTS model: espeak-ng turns text into phonemes, and the graph turns their ids into 24 kHz sound.

The ids are the same as in KittenTTS 0.8.1 (kittentts/onnx_model.py). The extra ``kitten`` installs espeak-ng. Only this
module imports it, because it is GPL-3.0-or-later.
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
from ane.system.errors import NoEffectError, UserError
from ane.text import nothing_to_say_error
from ane.text.english import normalise_cased
from ane.text.passages import Passage

Phonemizer = Callable[[str], str]  # takes English text, and returns IPA with stress marks and the text's punctuation

END_ID = 10  # id of "…", with which every chunk ends

# Every call of espeak-ng takes this lock. espeak-ng has one state per process, and returns wrong phonemes if two
# threads call it at the same time.
PHONEMIZER_LOCK = threading.RLock()


def phonemize(phonemizer: Phonemizer, text: str) -> str:
    """Convert text to IPA. The call waits while another thread of the process runs a phonemizer."""
    with PHONEMIZER_LOCK:
        return phonemizer(text)


def word_ids(phonemes: str, text: str) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    """Convert phonemes to ids.

    The ids are a pad, the words and punctuation marks of ``phonemes`` with spaces between them, "…" and a pad.
    Characters without an id are left out.

    Returns:
        The ids, (T,) int64. Then a triple for each word of ``text``: the word, the index of its first id, and the index
        after its last id. There are no triples if ``phonemes`` and ``text`` have different numbers of words.
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
    """Load espeak-ng for American English with stress marks and punctuation, as KittenTTS does.

    The function sets ESPEAK_DATA_PATH in the environment of this process, to the path of the data in the wheel of
    espeakng_loader.

    Raises:
        UserError: phonemizer or espeakng_loader is not installed, or espeak-ng does not load.
    """
    try:
        import espeakng_loader
        from phonemizer.backend import EspeakBackend
        from phonemizer.backend.espeak.wrapper import EspeakWrapper
    except ImportError as error:
        raise UserError(
            f"KittenTTS needs {error.name} to convert text to phonemes: run pip install '.[kitten]' "
            "(espeak-ng, GPL-3.0-or-later), or set phonemizer to a function from text to IPA"
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


PUBLISHED_CUT = 5000  # number of samples that KittenTTS's own code cuts from the end of every chunk
END_SILENCE = 0.1  # longest silence at the end of a chunk, in seconds
SPELLED = re.compile(r"(?<=\b[A-Z])\.(?=[A-Z]\b)")  # the points in "U.S.A"; espeak-ng reads "USA" correctly
ENDED = re.compile(r"[.!?,;:]['\")]*$")


class KittenSynthesizer(StyleSpeaker):
    """A KittenTTS model.

    The published graphs draw random noise, so only the length of the sound is the same in every run. With the setting
    ``published``, the sound of a few letters may have no samples left.
    """

    settings, speeds = KittenSettings, (0.1, 10.0)

    @cached_property
    def phonemizer(self) -> Phonemizer:
        """The function that converts text to IPA.

        Unless you set another, it is espeak-ng, which loads with the first text.
        """
        return load_espeak()

    def with_defaults(self, request: SpeechRequest) -> SpeechRequest:
        request = super().with_defaults(request)
        unused = [name for name in ("ssml", "lexicon", "cast") if getattr(request, name)]
        if request.settings.published and unused:
            raise NoEffectError(unused[0], "together with published", "leave one of them out", ("published",))
        return request

    def normaliser(self, settings: KittenSettings) -> Callable[[str], str]:
        return preprocess if settings.published else normalise_cased

    def chunks(self, request: SpeechRequest, context: SpeechContext) -> list[StyleChunk]:
        """Split the text into chunks. A chunk with n spoken characters has the style in row n of the voice's table."""

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
        """Make a chunk from a text and its spoken form.

        If ``spoken`` has neither letters nor digits and ``empty`` is false, returns ``None``.
        """
        if not (empty or any(map(str.isalnum, spoken))):
            return None
        return self.chunk(
            text, *word_ids(phonemize(self.phonemizer, spoken), spoken), len(spoken), passage, request, context
        )

    def trimmed(self, wave: np.ndarray, settings: KittenSettings) -> tuple[np.ndarray, int]:
        return (cut_as_published if settings.published else trim_end)(wave), 0


def spoken_form(text: str) -> str:
    """Spell out a text in words, and end it with a punctuation mark."""
    words = SPELLED.sub("", normalise_cased(text))
    return words if ENDED.search(words) else f"{words},"


def cut_as_published(wave: np.ndarray) -> np.ndarray:
    """Cut the last 5000 samples from a waveform (S,). Shorter waveforms become empty."""
    return wave[: max(0, len(wave) - PUBLISHED_CUT)]


def trim_end(wave: np.ndarray) -> np.ndarray:
    """Clip a waveform (S,) to ±1, and leave at most ``END_SILENCE`` seconds of silence at its end."""
    if not len(wave):
        return wave
    return trimmed(np.clip(wave, -1, 1), (len(wave) / SAMPLE_RATE, END_SILENCE))


SPEAKER = KittenSynthesizer
