"""Compare the words in a sound with its text, using the speech recognisers of ``ane read --check``.

pocketsphinx gets the words of the text, and must find all words in order, with pauses between them. If the speech
lacks, repeats or replaces a word, some word fits the sound badly. If there is additional speech before or after the
text, the search reports it as a loud pause. The search may not notice that a short word is missing. A second search,
which may skip words of the text, therefore looks for missing words.

Whisper transcribes the sound without knowing the text, and the transcript is compared with the text.
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
from ane.text.phonemes import phonemise

SAMPLE_RATE = 16000  # Hz of the recogniser's acoustic model
LEAD = 0.2  # seconds of silence that pocketsphinx needs before and after the speech
PEAK = 0.9  # peak to which the sound is scaled for pocketsphinx
# Root mean square of the noise added to the sound, in 16-bit samples. In digital silence, pocketsphinx misses the last
# word of one chunk in fifty.
NOISE = 3.0
LEAST = 1e-300  # smaller likelihoods become this value, because their logarithm is taken
LEFT_OUT = 1e-6  # probability that a word is missing, in the second search
LETTERS = re.compile(r"[a-z][a-z']*")
# words that people pronounce so weakly that pocketsphinx cannot tell whether they are missing
REDUCED = frozenset(("a", "an", "the", "are", "is", "be"))
VARIANT = re.compile(r"\(\d+\)$")  # number after a word with several pronunciations
NO_WORD = "<[+("  # first characters of the labels for silence and noise
# the recogniser's phonemes for those of ``ane.text.phonemes``, to spell words that its dictionary lacks
PHONEMES = (
    "A=EY I=AY O=OW Q=OW W=AW Y=OY æ=AE ɑ=AA ɔ=AO ə=AH ʌ=AH ɒ=AA ɛ=EH ɪ=IH i=IY u=UW ʊ=UH ɜ=ER ᵊ=AH ᵻ=IH a=AA b=B d=D "
    "f=F h=HH j=Y k=K l=L m=M n=N p=P s=S t=T v=V w=W z=Z ɡ=G ŋ=NG ɹ=R ʃ=SH ʒ=ZH θ=TH ð=DH ʤ=JH ʧ=CH ɾ=T ʔ=T"
)
INSTALL = "pip install '.[check]'"


class TextAligner:
    """A recogniser that aligns a sound with its text: pocketsphinx, with its acoustic model of American English."""

    name = "pocketsphinx"  # a job stores this name with the results

    def __init__(self) -> None:
        try:
            from pocketsphinx import Decoder
        except ImportError as error:
            raise UserError(f"checking needs the recogniser pocketsphinx: {INSTALL}") from error
        # cmn=batch normalises every sound separately, so that earlier sounds do not change a result
        self._decoder = Decoder(
            samprate=SAMPLE_RATE, loglevel="FATAL", lm=None, cmn="batch", beam=1e-80, wbeam=1e-60, pbeam=1e-80
        )
        self._guessed: set[str] = set()
        self._grammar = ""

    def problems(self, text: str, audio: np.ndarray, rate: int, loudness: float) -> list[ChunkProblem]:
        """Return the problems of the words in a sound (S,), which was spoken from ``text``.

        Args:
            loudness: Level of the speech in dBFS.
        """
        fit = self.fit(text, audio, rate)
        suspect = {word.word for word in fit.words or () if word.excess > UNHEARD}
        return misfits(fit, audio, rate, loudness) or [
            ChunkProblem(f"{word!r} is not heard", 2.0) for word in self.left_out(text, audio, rate) if word in suspect
        ]

    def fit(self, text: str, audio: np.ndarray, rate: int) -> TextFit:
        """Align a sound (S,) float32 with its English text, and return how well it fits."""
        words = LETTERS.findall(NORMALISERS["english"](text))
        if not words or not len(audio):
            return TextFit(())
        segments = self._segments(words, audio, rate)
        if segments is None:
            return TextFit(None)
        fits, pauses, count = [], [], 0
        for part in segments:
            start, end = part.start_frame / FRAMES - LEAD, (part.end_frame + 1) / FRAMES - LEAD
            word = VARIANT.sub("", part.word)
            if word[0] in NO_WORD:
                pauses.append((start, end))
                continue
            count += 1
            if word not in self._guessed:
                misfit = -float(np.log(max(part.ascore, LEAST))) / max(1, part.end_frame + 1 - part.start_frame)
                fits.append(WordFit(word, start, end, misfit))
        return TextFit(tuple(fits), tuple(pauses)) if count == len(words) else TextFit(None)

    def left_out(self, text: str, audio: np.ndarray, rate: int) -> list[str]:
        """Return the words of an English text that are not in a sound (S,) float32.

        Any word may be missing. Words in ``REDUCED``, and words whose pronunciation is guessed, always count as
        present.
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
        """Return the stretches of sound that pocketsphinx assigns to the words, or ``None`` if the words do not fit.

        Args:
            left_out: Probability that a word is missing.
        """
        self._expect(words, left_out)
        sound = resample(audio, rate, SAMPLE_RATE)
        loud = np.pad(PEAK * sound / max(1e-6, float(np.abs(sound).max())) * 32767, round(LEAD * SAMPLE_RATE))
        samples = np.rint(loud + NOISE * np.random.default_rng(0).standard_normal(len(loud))).astype(np.int16)
        decoder = self._decoder
        decoder.reinit_feat()  # forget the noise level of the sound before
        decoder.start_utt()
        decoder.process_raw(samples.tobytes(), full_utt=True)
        decoder.end_utt()
        return None if decoder.hyp() is None else list(decoder.seg())

    def _expect(self, words: Sequence[str], left_out: float) -> None:
        """Make pocketsphinx expect these words in order. Each word is missing with the probability ``left_out``."""
        decoder = self._decoder
        for word in words:
            if decoder.lookup_word(word) is None:
                decoder.add_word(word, guessed_phonemes(word), True)
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


def guessed_phonemes(word: str) -> str:
    """Return the phonemes with which the embedded voice would read a word, in the alphabet of pocketsphinx."""
    spoken = "".join(part.phonemes for part in phonemise(word)).replace("ɜɹ", "ɜ").replace("əɹ", "ɜ")
    names = dict(pair.split("=") for pair in PHONEMES.split())
    return " ".join(names[sound] for sound in spoken if sound in names) or names["ə"]


OTHER_LETTERS = 5  # minimum number of different letters for a problem (two spellings of a word differ by fewer)


class TranscribingRecogniser:
    """A recogniser that transcribes a sound with Whisper and compares the transcript with the text.

    It has the same interface as ``TextAligner``.
    """

    def __init__(self, transcriber: Transcriber):
        self.transcriber, self.name = transcriber, f"whisper {transcriber.model.identity}"

    def problems(self, text: str, audio: np.ndarray, rate: int, loudness: float) -> list[ChunkProblem]:
        """Return the differences between the transcript of a sound (S,) and its text."""
        options = TranscriptionOptions("en", temperatures=(0.0,), condition_on_previous_text=False)
        return differences(text, self.transcriber.transcribe(audio, rate, options).text)


def differences(text: str, transcript: str) -> list[ChunkProblem]:
    """Return where a transcript differs from an English text by ``OTHER_LETTERS`` letters or more.

    The normaliser first writes out numbers and abbreviations in both.
    """
    expected, heard = (LETTERS.findall(NORMALISERS["english"](words)) for words in (text, transcript))
    problems = []
    for kind, first, last, begin, end in SequenceMatcher(None, expected, heard, False).get_opcodes():
        written, spoken = " ".join(expected[first:last]), " ".join(heard[begin:end])
        letters = letters_apart(written.replace(" ", ""), spoken.replace(" ", ""))
        if kind != "equal" and letters >= OTHER_LETTERS:
            message = {
                "delete": f"{written!r} is not heard",
                "insert": f"{spoken!r} is heard, but is not in its text",
                "replace": f"{spoken!r} is heard instead of {written!r}",
            }[kind]
            problems.append(ChunkProblem(message, letters / (OTHER_LETTERS - 1)))
    return problems


def letters_apart(one: str, other: str) -> int:
    """Count the letters of the longer string that have no match in the other string.

    Both are read from left to right.
    """
    common = sum(block.size for block in SequenceMatcher(None, one, other, False).get_matching_blocks())
    return max(len(one), len(other)) - common
