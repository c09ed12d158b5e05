"""The recognisers of ``ane read --check``: what each finds wrong with the words of a sound."""

from difflib import SequenceMatcher
from typing import Protocol

import numpy as np

from ane.books.checking.forced_alignment import LETTERS, TextAligner
from ane.books.checking.judging import ChunkProblem, misfits
from ane.models.whisper.transcription import Transcriber, TranscriptionOptions
from ane.text import NORMALISERS

OTHER_LETTERS = 5       # letters by which a place of the transcript may not differ: spellings of a word differ by fewer


class ChunkRecogniser(Protocol):
    """Compares a sound with the words that it should say. ``name``: what a job's results are kept under."""

    @property
    def name(self) -> str: ...

    def problems(self, text: str, audio: np.ndarray, rate: int, loudness: float) -> list[ChunkProblem]:
        """What is wrong with the words of a sound (S,) float32, whose speech has ``loudness`` dBFS."""


class AligningRecogniser:
    """pocketsphinx, which is given the words and must find them. Raises UserError when it is not installed."""

    name = TextAligner.name

    def __init__(self) -> None:
        self.aligner = TextAligner()

    def problems(self, text: str, audio: np.ndarray, rate: int, loudness: float) -> list[ChunkProblem]:
        found = misfits(self.aligner.fit(text, audio, rate), audio, rate, loudness)
        return found or [ChunkProblem(f"{word!r} is not heard", 2.0)
                         for word in self.aligner.left_out(text, audio, rate)]


class TranscribingRecogniser:
    """Whisper, which writes down what it hears; that is compared with the text."""

    def __init__(self, transcriber: Transcriber):
        self.transcriber, self.name = transcriber, f"whisper {transcriber.model.identity}"

    def problems(self, text: str, audio: np.ndarray, rate: int, loudness: float) -> list[ChunkProblem]:
        options = TranscriptionOptions("en", temperatures=(0.0,), condition_on_previous_text=False)
        return differences(text, self.transcriber.transcribe(audio, rate, options).text)


def differences(text: str, transcript: str) -> list[ChunkProblem]:
    """Where a transcript differs from an English text by ``OTHER_LETTERS`` or more, both read by the normaliser."""
    expected, heard = (LETTERS.findall(NORMALISERS["english"](one)) for one in (text, transcript))
    found = []
    for kind, first, last, begin, end in SequenceMatcher(None, expected, heard, False).get_opcodes():
        said, instead = " ".join(expected[first:last]), " ".join(heard[begin:end])
        letters = letters_apart(said.replace(" ", ""), instead.replace(" ", ""))
        if kind != "equal" and letters >= OTHER_LETTERS:
            what = {"delete": f"{said!r} is not heard", "insert": f"{instead!r} is heard, which its text does not have",
                    "replace": f"{instead!r} is heard instead of {said!r}"}[kind]
            found.append(ChunkProblem(what, letters / (OTHER_LETTERS - 1)))
    return found


def letters_apart(one: str, other: str) -> int:
    """Letters of the longer string that the other does not have in this order."""
    common = sum(block.size for block in SequenceMatcher(None, one, other, False).get_matching_blocks())
    return max(len(one), len(other)) - common
