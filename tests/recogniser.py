"""Provide a speech recogniser, with which tests check that speech can be understood."""

from collections.abc import Sequence

import numpy as np

from ane.audio import resample
from ane.system.errors import UserError
from benchmarks.listening import words

RECOGNISED_RATE = 16000  # sample rate of the acoustic model in Hz


class Recogniser:
    """pocketsphinx with its model of American English: free transcription, and a choice among sentences."""

    def __init__(self, choices: Sequence[str]):
        from pocketsphinx import Decoder

        self.free = Decoder(samprate=RECOGNISED_RATE, loglevel="FATAL")
        self.choices = [" ".join(words(choice)) for choice in choices]
        for word in {word for choice in self.choices for word in choice.split()}:
            if self.free.lookup_word(word) is None:
                raise UserError(f"the recogniser does not know the word {word!r}: choose sentences without it")
        if self.choices:  # a grammar cannot be empty
            self.forced = Decoder(samprate=RECOGNISED_RATE, loglevel="FATAL", lm=None)
            alternatives = " | ".join(self.choices)
            self.forced.add_jsgf_string("choice", f"#JSGF V1.0; grammar choice; public <s> = {alternatives};")
            self.forced.activate_search("choice")

    def transcribe(self, audio: np.ndarray, rate: int) -> str:
        """Audio (S,) float32 → the words recognised."""
        return self._decode(self.free, audio, rate)

    def chosen(self, audio: np.ndarray, rate: int) -> str:
        """The words of the choice that fits best; empty when none fits or there are no choices."""
        return self._decode(self.forced, audio, rate) if self.choices else ""

    @staticmethod
    def _decode(decoder, audio: np.ndarray, rate: int) -> str:
        samples = np.rint(np.clip(resample(audio, rate, RECOGNISED_RATE), -1, 1) * 32767).astype(np.int16)
        silence = np.zeros(RECOGNISED_RATE // 5, np.int16)  # the recogniser needs silence before the first word
        decoder.start_utt()
        decoder.process_raw(np.concatenate((silence, samples, silence)).tobytes(), full_utt=True)
        decoder.end_utt()
        hypothesis = decoder.hyp()
        return " ".join(words(hypothesis.hypstr)) if hypothesis else ""
