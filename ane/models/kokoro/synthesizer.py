"""Speak with a Kokoro model. For the same phonemes, kokoro-onnx 0.6.1 makes the same sound."""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from ane.models.phoneme_chunks import notes_on_words, symbol_ids
from ane.models.styletts.settings import KokoroSettings
from ane.models.styletts.speaker import MOST_IDS, StyleChunk, StyleSpeaker
from ane.speech.chunks import split_to_fit
from ane.speech.request import SpeechContext, SpeechRequest
from ane.system.files import read_json
from ane.text.english import normalise_cased
from ane.text.passages import Passage
from ane.text.phonemes import phonemise

BRITISH = "bf_", "bm_"  # how the names of British voices begin
PAUSES = (".!?…", 0.25), (",;:", 0.1)  # seconds after a chunk that ends in one of these marks
FRAME, HOP = 2048, 512  # to find silence: samples in a frame, and samples from one frame to the next
SILENCE = 1e-6  # a frame is silent below this share of the loudest frame's power (−60 dB)


class KokoroSynthesizer(StyleSpeaker):
    """A Kokoro model. It speaks American or British English, depending on the voice.

    The same text and voice always result in the same sound.
    """

    settings, speeds = KokoroSettings, (0.5, 2.0)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The id of each character."""
        return read_json(self.model.file("config"))["vocab"]

    def normaliser(self, settings: KokoroSettings) -> Callable[[str], str]:
        return normalise_cased

    def chunks(self, request: SpeechRequest, context: SpeechContext) -> list[StyleChunk]:
        """Split the text into chunks. A chunk of n phonemes has the style in row n − 1 of the voice's table."""

        def make(piece: str, passage: Passage) -> StyleChunk | None:
            british = self.voice_of_passage(passage, request, context).startswith(BRITISH)
            ids, spans = symbol_ids(words := phonemise(piece, british), self.vocabulary)
            if not spans:
                return None
            chunk = self.chunk(piece, ids, spans, len(ids) - 3, passage, request, context)
            chunk.notes = notes_on_words(words)
            return chunk

        with context.timeline.record("phonemes"):
            return split_to_fit(
                context.passages(request), make, request.settings.split, MOST_IDS, "phonemes", self.pause
            )

    def pause(self, text: str) -> float:
        return next((seconds for marks, seconds in PAUSES if text.rstrip("\"'”’)] ").endswith(tuple(marks))), 0.0)

    def trimmed(self, wave: np.ndarray, settings: KokoroSettings) -> tuple[np.ndarray, int]:
        loud = np.flatnonzero(loud_frames(wave))  # never empty, because the loudest frame is in it
        begin = int(loud[0]) * HOP
        return np.clip(wave[begin : (int(loud[-1]) + 1) * HOP], -1, 1), begin


def loud_frames(wave: np.ndarray) -> np.ndarray:
    """Find the frames of a waveform (S,) that are not silent. Returns (n,) bool.

    Frame i is centred on sample i · ``HOP``. A frame counts as silent by the same rule as in librosa's ``trim`` and in
    kokoro_onnx/trim.py.
    """
    padded = np.pad(wave, FRAME // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::HOP]
    power = np.maximum((frames**2).mean(axis=1), 1e-10)
    return power > SILENCE * power.max()


SPEAKER = KokoroSynthesizer
