"""Speech of a flite voice with the exact times of its phonemes, through flite's C library.

The flite program prints phonemes and times, but not which word a phoneme belongs to.
"""

import ctypes
from concurrent.futures import ProcessPoolExecutor
from ctypes import POINTER, c_char_p, c_float, c_int, c_short, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ane.audio import resample
from ane.models.fastspeech.stages import HOP, SAMPLE_RATE
from ane.models.fastspeech.text import PHONEMES
from ane.system.errors import UserError
from ane.system.files import replacing
from training.speech import RATE, level, shard_size
from training.text import letters_of
from training.trained_mel import trained_mel

PAUSE, PHONES = "pau", ("pau", *PHONEMES)       # flite's silence is index 0
LEAD_FRAMES, TAIL_FRAMES = 2, 6     # mel frames of silence before and after the words
MAX_FRAMES = 1000                   # of a clip, 11.6 s
STRETCHED = 0.4                     # share of the clips that are slower or faster, by up to MAX_STRETCH
MAX_STRETCH = 2.2
LIBRARIES = ("flite", "flite_usenglish", "flite_cmulex", "flite_cmu_us_{voice}")


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


@cache
def flite_voice(voice: str, libraries: str | None) -> TimedFlite:
    """One for each process."""
    return TimedFlite(voice, libraries)


@dataclass(eq=False)       # hashed by identity
class TimedClip:
    """A clip with its symbols' times.

    Attributes:
        text: that was spoken, lower case. words: letters of each word that flite pronounced, in order.
        audio: (256·L,) int16 at 22.05 kHz; mel: (L, 80) float16.
        segments: (n, 3) int16: index in ``PHONES``, index of the word (-1: pause), mel frames.
        stretch: how much longer its phonemes are than the voice's own.
    """

    text: str
    words: list[str]
    audio: np.ndarray
    mel: np.ndarray
    segments: np.ndarray
    stretch: float


def timed_clip(flite: TimedFlite, text: str, stretch: float) -> TimedClip | None:
    """Speak a text; None where flite pronounced other letters than the text has, such as an abbreviation's."""
    audio, segments, words = flite.speak(text, stretch)
    words = [letters_of(word) for word in words]
    if "".join(words) != letters_of(text) or not all(words):
        return None
    while segments[-1].word < 0:
        segments.pop()
    ends = np.array([segment.end for segment in segments]) * SAMPLE_RATE       # samples
    lead = next(index for index, segment in enumerate(segments) if segment.word >= 0)
    begin = (ends[lead - 1] if lead else 0) - LEAD_FRAMES * HOP
    frames = np.rint((ends[lead:] - begin) / HOP).astype(int)                   # where each segment ends
    count = int(frames[-1]) + TAIL_FRAMES
    if count > MAX_FRAMES:
        return None
    sound = resample(level(audio), RATE, SAMPLE_RATE)
    first = round(begin)
    sound = np.pad(sound, (max(0, -first), count * HOP))[max(0, first):][:count * HOP]
    rows = [*((segment.phone, segment.word, length)
              for segment, length in zip(segments[lead:], np.diff(frames, prepend=0), strict=True)),
            (0, -1, TAIL_FRAMES)]
    return TimedClip(text, words, np.rint(sound * 32767).astype(np.int16), trained_mel(sound).T.astype(np.float16),
                     np.array(rows, np.int16), stretch)


def speak_timed_shard(path: Path, texts: list[str], voice: str, libraries: str | None, seed: int) -> None:
    """Write the clips of ``texts`` to a file of NumPy arrays, concatenated."""
    flite, rng = flite_voice(voice, libraries), np.random.default_rng(seed)
    stretches = np.where(rng.random(len(texts)) < STRETCHED,
                         MAX_STRETCH ** rng.uniform(-1, 1, len(texts)), 1.0)
    clips = [clip for text, stretch in zip(texts, stretches, strict=True)
             if (clip := timed_clip(flite, text, float(stretch))) is not None]
    with replacing(path) as target, target.open("wb") as file:
        np.savez(file, texts=np.array([clip.text for clip in clips]),
                 words=np.array([" ".join(clip.words) for clip in clips]),
                 audio=np.concatenate([clip.audio for clip in clips]),
                 mel=np.concatenate([clip.mel for clip in clips]),
                 frames=np.array([len(clip.mel) for clip in clips]),
                 segments=np.concatenate([clip.segments for clip in clips]),
                 counts=np.array([len(clip.segments) for clip in clips]),
                 stretches=np.array([clip.stretch for clip in clips]))


def load_timed_shard(path: Path, sound: bool = True) -> list[TimedClip]:
    """The clips of a shard, without their audio unless ``sound``."""
    with np.load(path) as data:         # loads only the arrays it uses
        ends = data["frames"].cumsum()[:-1]
        audio = np.split(data["audio"], ends * HOP) if sound else [np.empty(0, np.int16)] * len(data["frames"])
        parts = (data["texts"].tolist(), data["words"].tolist(), audio,
                 np.split(data["mel"], ends), np.split(data["segments"], data["counts"].cumsum()[:-1]),
                 data["stretches"].tolist())
    return [TimedClip(text, words.split(), *rest) for text, words, *rest in zip(*parts, strict=True)]


def timed_hours(path: Path) -> float:
    """Hours of speech in a shard."""
    with np.load(path) as data:
        return int(data["frames"].sum()) * HOP / SAMPLE_RATE / 3600


def speak_all_timed(folder: Path, texts: list[str], voice: str, libraries: str | None, seed: int,
                    workers: int) -> list[Path]:
    """Write the speech of all texts as shards. Existing shards are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    size = shard_size(len(texts))
    jobs = [(folder / f"{index:04d}-{voice}.npz", texts[start:start + size], voice, libraries, seed + index)
            for index, start in enumerate(range(0, len(texts), size))]
    missing = [job for job in jobs if not job[0].exists()]
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(speak_timed_shard, *zip(*missing, strict=True)))
    return [job[0] for job in jobs]
