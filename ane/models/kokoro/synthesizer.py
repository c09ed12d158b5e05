"""Synthesis of 24 kHz speech with a Kokoro model: the sound that kokoro-onnx 0.6.1 makes of the same phonemes."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np

from ane.models.phoneme_chunks import split_into_phonemes
from ane.models.styletts.settings import KokoroSettings
from ane.models.styletts.speaker import MOST_IDS, StyleChunk, StyleSpeaker
from ane.speech.request import Run, SpeechRequest
from ane.text.english import normalise_cased

BRITISH = "bf_", "bm_"                      # how names of British voices begin
PAUSES = (".!?…", 0.25), (",;:", 0.1)       # seconds after a chunk that ends in one of these marks
FRAME, HOP = 2048, 512                      # samples of a frame, and between two, when silence is looked for
SILENCE = 1e-6                              # of the loudest frame's power, −60 dB: a frame with no more is silent


class KokoroSynthesizer(StyleSpeaker):
    """A Kokoro model: English, American or British as the voice is. The same text and voice give the same sound.

    Args: ``StyleSpeaker``, of a ``KokoroModel``.
    """

    settings = KokoroSettings
    model: Any

    def normaliser(self, settings: KokoroSettings) -> Callable[[str], str]:
        return normalise_cased

    def chunks(self, request: SpeechRequest, run: Run) -> list[StyleChunk]:
        """The style of n phonemes is row n − 1."""
        with run.timeline.record("phonemes"):
            return [self.chunk(chunk.text, chunk.ids, chunk.spans, len(chunk.ids) - 3, chunk.delivery, request, run)
                    for british, own in
                    groupby(run.passages(request),
                            lambda each: self.voice_of(each.voice, request, run).startswith(BRITISH))
                    for chunk in split_into_phonemes(list(own), request.settings.split, MOST_IDS,
                                                     self.model.vocabulary, british)]

    def pause(self, text: str) -> float:
        return next((seconds for marks, seconds in PAUSES if text.rstrip("\"'”’)] ").endswith(tuple(marks))), 0.0)

    def trimmed(self, wave: np.ndarray, settings: KokoroSettings) -> tuple[np.ndarray, int]:
        loud = np.flatnonzero(loud_frames(wave))        # at least the loudest
        begin = int(loud[0]) * HOP
        return np.clip(wave[begin:(int(loud[-1]) + 1) * HOP], -1, 1), begin


def loud_frames(wave: np.ndarray) -> np.ndarray:
    """Which frames of a waveform (S,), each with its middle at a multiple of ``HOP``, are not silent: (n,) bool.

    As librosa's ``trim`` in kokoro_onnx/trim.py.
    """
    padded = np.pad(wave, FRAME // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::HOP]
    power = np.maximum((frames ** 2).mean(axis=1), 1e-10)
    return power > SILENCE * power.max()


SPEAKER = KokoroSynthesizer
