"""Speech of flite's voices, for benchmarks of the embedded voices that learned from them: as sound, and with the exact
times of its phonemes through flite's C library.
"""

import ctypes
import os
import subprocess
import tempfile
from ctypes import POINTER, c_char_p, c_float, c_int, c_short, c_void_p
from dataclasses import dataclass

import numpy as np
import soundfile

from ane.audio import resample
from ane.models.fastspeech.text import PHONEMES
from ane.system.errors import UserError
from training.pitch import RATE as SPEECH_RATE

RATE = 16000                # Hz of flite's voices
PAUSE, PHONES = "pau", ("pau", *PHONEMES)       # flite's silence is index 0
LIBRARIES = ("flite", "flite_usenglish", "flite_cmulex", "flite_cmu_us_{voice}")


@dataclass(frozen=True)
class Flite:
    """The flite program, and the folder of its libraries if it is unpacked rather than installed."""

    program: str = "flite"
    libraries: str | None = None

    def speak(self, text: str, voice: str) -> np.ndarray:
        """(S,) float32 at 24 kHz, at equal loudness, silence at its ends trimmed to ``LEAD`` and ``TAIL``.

        Raises:
            UserError: flite is not installed, or lacks the voice.
        """
        environment = dict(os.environ)
        if self.libraries:
            environment["LD_LIBRARY_PATH"] = self.libraries
        with tempfile.NamedTemporaryFile(suffix=".wav", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
            try:
                # through a file: on the command line flite takes a text without a space for a file name
                subprocess.run([self.program, "-voice", voice, "-f", "/dev/stdin", "-o", file.name], check=True,
                               env=environment, input=text.encode(), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
            except (OSError, subprocess.CalledProcessError) as error:
                raise UserError(f"flite failed with voice {voice} ({error}): install it (Debian: flite), or give its "
                                "path with --flite and --flite-libraries") from error
            audio, rate = soundfile.read(file.name, dtype="float32")
        assert rate == RATE, f"flite's {voice} speaks at {rate} Hz"
        from training.speech import trim_and_level

        return trim_and_level(resample(audio, rate, SPEECH_RATE))


class FliteWave(ctypes.Structure):
    """flite's cst_wave."""

    _fields_ = (("type", c_char_p), ("sample_rate", c_int), ("num_samples", c_int), ("num_channels", c_int),
                ("samples", POINTER(c_short)))



@dataclass(frozen=True)
class Segment:
    """A phoneme: its index in ``PHONES``, the index of its word (-1: a pause), and where it ends in seconds."""

    phone: int
    word: int
    end: float



class TimedFlite:
    """A voice of flite in this process.

    Args:
        libraries: folder of flite's shared libraries; None: where the system has them.

    Raises:
        UserError: the libraries, or the voice's, are not there.
    """

    def __init__(self, voice: str, libraries: str | None = None):
        self.libraries = f"{libraries}/" if libraries else ""
        try:
            if libraries:       # flite plays sound with it, and the loader does not look for it in the folder
                ctypes.CDLL(f"{self.libraries}libasound.so.2", ctypes.RTLD_GLOBAL)
            self.flite, _, lexicon, library = [
                ctypes.CDLL(f"{self.libraries}lib{name.format(voice=voice)}.so.1", ctypes.RTLD_GLOBAL)
                for name in LIBRARIES]
        except OSError as error:
            raise UserError(f"flite's library for voice {voice} cannot be loaded ({error}): install it (Debian: "
                            "libflite1), or give its folder with --flite-libraries") from error
        self.flite.flite_init()
        self.voice = self.declare(library, f"register_cmu_us_{voice}", c_void_p, c_char_p)(None)
        self.lexicon = self.declare(lexicon, "cmu_lex_init", c_void_p)()
        # the second member of cst_voice
        self.features = ctypes.cast(self.voice, POINTER(c_void_p))[1]
        self.function("feat_set_float", None, c_void_p, c_char_p, c_float)
        self.function("flite_synth_text", c_void_p, c_char_p, c_void_p)
        self.function("delete_utterance", None, c_void_p)
        self.function("utt_wave", POINTER(FliteWave), c_void_p)
        self.function("utt_relation", c_void_p, c_void_p, c_char_p)
        self.function("item_as", c_void_p, c_void_p, c_char_p)
        for name in ("relation_head", "item_next", "item_parent", "val_car", "val_cdr"):
            self.function(name, c_void_p, c_void_p)
        self.function("ffeature_string", c_char_p, c_void_p, c_char_p)
        self.function("ffeature_float", c_float, c_void_p, c_char_p)
        self.function("lex_lookup", c_void_p, c_void_p, c_char_p, c_char_p, c_void_p)
        self.function("val_string", c_char_p, c_void_p)
        self.function("delete_val", None, c_void_p)

    def function(self, name, result, *arguments):
        self.declare(self.flite, name, result, *arguments)

    @staticmethod
    def declare(library, name, result, *arguments):
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(arguments)
        return function

    def speak(self, text: str, stretch: float = 1.0) -> tuple[np.ndarray, list[Segment], list[str]]:
        """Sound (S,) float32 at 16 kHz, its segments, and the words as flite pronounced them.

        ``stretch`` multiplies the durations that the voice predicts.
        """
        self.flite.feat_set_float(self.features, b"duration_stretch", stretch)
        utterance = self.flite.flite_synth_text(text.encode(), self.voice)
        try:
            wave = self.flite.utt_wave(utterance).contents
            assert wave.sample_rate == RATE
            audio = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).astype(np.float32) / 32768
            segments, words = self.segments(utterance)
        finally:
            self.flite.delete_utterance(utterance)
        return audio, segments, words

    def segments(self, utterance: int) -> tuple[list[Segment], list[str]]:
        flite, segments, words, previous = self.flite, [], [], None
        item = flite.relation_head(flite.utt_relation(utterance, b"Segment"))
        while item:
            name, end = flite.ffeature_string(item, b"name").decode(), flite.ffeature_float(item, b"end")
            if name == PAUSE:
                segments.append(Segment(0, -1, end))
            else:
                word = flite.item_parent(flite.item_parent(flite.item_as(item, b"SylStructure")))
                if word != previous:
                    words.append(flite.ffeature_string(word, b"name").decode())
                    previous = word
                stress = flite.ffeature_string(item, b"R:SylStructure.parent.stress").decode()
                segments.append(Segment(phone_index(name, stress), len(words) - 1, end))
            item = flite.item_next(item)
        return segments, words

    def pronounce(self, word: str) -> list[int]:
        """Indices in ``PHONES`` of a word's phonemes, from flite's lexicon or its letter-to-sound rules."""
        found, phones = self.flite.lex_lookup(self.lexicon, word.encode(), None, None), []
        cell = found
        while cell:
            name = self.flite.val_string(self.flite.val_car(cell)).decode()
            phones.append(phone_index(name.rstrip("012"), name[-1]))
            cell = self.flite.val_cdr(cell)
        self.flite.delete_val(found)
        return phones



def phone_index(name: str, stress: str) -> int:
    """Index in ``PHONES`` of flite's phoneme. Its schwa, ax, is ARPAbet's AH0."""
    name = "AH0" if name == "ax" else name.upper()
    return PHONES.index(name if name in PHONES and f"{name}0" not in PHONES else
                        name if name == "AH0" else f"{name}{1 if stress == '1' else 0}")

