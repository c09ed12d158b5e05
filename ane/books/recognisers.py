"""The recognisers of ``ane read --check``: what each finds wrong with the words of a sound.

pocketsphinx is given the words and must find them all, in order, with pauses between them. Where a word is missing,
said twice or replaced, the word that is put there instead fits the sound badly; what was added at an end is left over
as a loud pause. A short word that is missing may go unnoticed so; it is found where the recogniser may leave words out.
Whisper writes down what it hears.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from ane.audio import resample
from ane.books.judging import FRAMES, UNHEARD, ChunkProblem, TextFit, WordFit, misfits
from ane.models.whisper.transcription import Transcriber, TranscriptionOptions
from ane.system.errors import UserError
from ane.text import NORMALISERS

SAMPLE_RATE = 16000  # Hz of the recogniser's acoustic model
LEAD = 0.2  # seconds of silence before and after: the recogniser needs them
PEAK = 0.9  # of the sound that it is given
# of 16-bit samples, root mean square: in digital silence the recogniser misses the last word of one chunk in fifty
NOISE = 3.0
LEAST = 1e-300  # of a likelihood
LEFT_OUT = 1e-6  # probability with which a word may be missing
LETTERS = re.compile(r"[a-z][a-z']*")
# which speech reduces so far that their absence is not certain
REDUCED = frozenset(("a", "an", "the", "are", "is", "be"))
VARIANT = re.compile(r"\(\d+\)$")  # of a pronunciation
NO_WORD = "<[+("  # first characters of silence and noise
# A phoneme for each letter of a word that is not in the dictionary, so that the words beside it are found.
PHONEMES = "AE B K D EH F G HH IH JH K L M N AA P K R S T AH V W K Y Z".split()  # noqa: SIM905
GUESSES = dict(zip("abcdefghijklmnopqrstuvwxyz", PHONEMES, strict=True))
INSTALL = "pip install '.[check]'"


class TextAligner:
    """pocketsphinx with its model of American English: it is given the words and must find them."""

    name = "pocketsphinx"  # a job's results are kept under it

    def __init__(self) -> None:
        try:
            from pocketsphinx import Decoder
        except ImportError as error:
            raise UserError(f"checking needs the recogniser pocketsphinx: {INSTALL}") from error
        # each sound is normalised by itself, so that a result depends on no other
        self._decoder = Decoder(
            samprate=SAMPLE_RATE, loglevel="FATAL", lm=None, cmn="batch", beam=1e-80, wbeam=1e-60, pbeam=1e-80
        )
        self._guessed: set[str] = set()
        self._grammar = ""

    def problems(self, text: str, audio: np.ndarray, rate: int, loudness: float) -> list[ChunkProblem]:
        """Return the faults in the words of a sound (S,), whose speech has ``loudness`` dBFS."""
        fit = self.fit(text, audio, rate)
        suspect = {word.word for word in fit.words or () if word.excess > UNHEARD}
        return misfits(fit, audio, rate, loudness) or [
            ChunkProblem(f"{word!r} is not heard", 2.0) for word in self.left_out(text, audio, rate) if word in suspect
        ]

    def fit(self, text: str, audio: np.ndarray, rate: int) -> TextFit:
        """How a sound (S,) float32 fits an English text."""
        words = LETTERS.findall(NORMALISERS["english"](text))
        if not words or not len(audio):
            return TextFit(())
        segments = self._segments(words, audio, rate)
        if segments is None:
            return TextFit(None)
        found, pauses, count = [], [], 0
        for part in segments:
            start, end = part.start_frame / FRAMES - LEAD, (part.end_frame + 1) / FRAMES - LEAD
            word = VARIANT.sub("", part.word)
            if word[0] in NO_WORD:
                pauses.append((start, end))
                continue
            count += 1
            if word not in self._guessed:
                misfit = -float(np.log(max(part.ascore, LEAST))) / max(1, part.end_frame + 1 - part.start_frame)
                found.append(WordFit(word, start, end, misfit))
        return TextFit(tuple(found), tuple(pauses)) if count == len(words) else TextFit(None)

    def left_out(self, text: str, audio: np.ndarray, rate: int) -> list[str]:
        """The words of an English text that are not heard in a sound (S,) float32, if any may be missing.

        None of ``REDUCED``, and none that the dictionary lacks: how it is pronounced is a guess.
        """
        words = LETTERS.findall(NORMALISERS["english"](text))
        if not words or not len(audio):
            return []
        segments = self._segments(words, audio, rate, LEFT_OUT)
        heard = [VARIANT.sub("", part.word) for part in segments or () if part.word[0] not in NO_WORD]
        return [
            word
            for kind, first, last, _, _ in SequenceMatcher(None, words, heard, False).get_opcodes()
            if kind != "equal"
            for word in words[first:last]
        ]

    def _segments(
        self, words: Sequence[str], audio: np.ndarray, rate: int, left_out: float = 0.0
    ) -> Sequence[Any] | None:
        """What the recogniser finds in a sound, of these words in order; None: nothing fits.

        ``left_out``: probability with which a word may be missing.
        """
        self._expect(words, left_out)
        sound = resample(audio, rate, SAMPLE_RATE)
        loud = np.pad(PEAK * sound / max(1e-6, float(np.abs(sound).max())) * 32767, round(LEAD * SAMPLE_RATE))
        samples = np.rint(loud + NOISE * np.random.default_rng(0).standard_normal(len(loud))).astype(np.int16)
        decoder = self._decoder
        decoder.reinit_feat()  # forgets the noise of the sound before
        decoder.start_utt()
        decoder.process_raw(samples.tobytes(), full_utt=True)
        decoder.end_utt()
        return None if decoder.hyp() is None else list(decoder.seg())

    def _expect(self, words: Sequence[str], left_out: float) -> None:
        """Make the recogniser expect these words."""
        decoder = self._decoder
        for word in words:
            if decoder.lookup_word(word) is None:
                decoder.add_word(word, " ".join(GUESSES[letter] for letter in word if letter in GUESSES), True)
                self._guessed.add(word)
        former, self._grammar = self._grammar, f"words{int(self._grammar[5:] or 0) + 1}"
        steps: list[tuple[Any, ...]] = [(index, index + 1, 1.0, word) for index, word in enumerate(words)]
        if left_out:
            steps += [
                (index, index + 1, left_out)
                for index, word in enumerate(words)
                if word not in self._guessed and word not in REDUCED
            ]
        decoder.add_fsg(self._grammar, decoder.create_fsg(self._grammar, 0, len(words), steps))
        decoder.activate_search(self._grammar)
        if former:
            decoder.remove_search(former)


OTHER_LETTERS = 5  # letters by which a place of the transcript may not differ: spellings of a word differ by fewer


class TranscribingRecogniser:
    """Whisper, which writes down what it hears; that is compared with the text. Its attribute and its method are those
    of ``TextAligner``.
    """

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
            what = {
                "delete": f"{said!r} is not heard",
                "insert": f"{instead!r} is heard, which its text does not have",
                "replace": f"{instead!r} is heard instead of {said!r}",
            }[kind]
            found.append(ChunkProblem(what, letters / (OTHER_LETTERS - 1)))
    return found


def letters_apart(one: str, other: str) -> int:
    """Letters of the longer string that the other does not have in this order."""
    common = sum(block.size for block in SequenceMatcher(None, one, other, False).get_matching_blocks())
    return max(len(one), len(other)) - common
