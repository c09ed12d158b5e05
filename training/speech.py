"""Make the speech on which the networks are trained: let teachers speak texts, and store the speech in shards.

A teacher is a text-to-speech program. A shard is a file with some clips of one voice and their mel spectrograms.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from ane.audio import resample
from ane.audio.loudness import LoudnessMeter
from ane.audio.mel import CONDITIONING_RATE, conditioning_mel
from ane.system.files import replacing
from ane.text import Tokenizer
from training.pitch import RATE, pitch_of

MAX_SECONDS = 11.5  # longest clip in seconds, because the decoder has no more positions
CLIP_SECONDS = 3.0  # assumed length of a clip in seconds, from which ``clips_in`` estimates numbers of clips
LOUDNESS = -19.0  # loudness of every clip in LUFS
LEAD, TAIL = 0.08, 0.10  # seconds of silence that a clip keeps before the first word and after the last word
SOUND = 0.008  # a sample with a larger absolute value is not silence
STAND_IN = "tones"  # name of a teacher that needs no package

Speak = Callable[[str], np.ndarray]  # takes a text, and returns speech (S,) float32 at ``RATE``


def teacher_of(name: str) -> Speak:
    """Load a teacher by the name that the recipe uses.

    Raises:
        UserError: The teacher is unknown, or its packages cannot be fetched.
    """
    if name == STAND_IN:
        return tones
    from benchmarks.teachers import teacher_speech

    speak = teacher_speech(name)

    def speech(text: str) -> np.ndarray:
        audio, rate = speak(text)
        return resample(audio, rate, RATE)

    return speech


def tones(text: str) -> np.ndarray:
    """Make a tone for each letter. This takes the place of a teacher in tests of the recipe."""
    time = np.arange(int(0.06 * RATE)) / RATE
    return np.concatenate([0.3 * np.sin(2 * np.pi * 120 * (1 + ord(letter) % 7) * time) for letter in text]).astype(
        np.float32
    )


def trim_and_level(audio: np.ndarray) -> np.ndarray:
    """Set the loudness of speech (S,) to ``LOUDNESS``, and shorten the silence at its ends.

    If the speech is silent, return no samples.
    """
    meter = LoudnessMeter(RATE)
    meter.feed(np.pad(audio, (0, RATE // 2)))
    if not np.isfinite(meter.loudness):
        return audio[:0]
    audio = audio * 10 ** ((LOUDNESS - meter.loudness) / 20)
    loud = np.flatnonzero(np.abs(audio) > SOUND)
    audio = audio[max(0, loud[0] - int(LEAD * RATE)) : loud[-1] + int(TAIL * RATE)]
    return np.clip(audio, -0.98, 0.98).astype(np.float32)


@dataclass
class Shard:
    """Some clips of one voice, with their texts and mel spectrograms.

    Attributes:
        texts: Text of each clip.
        audio: Samples of all clips, one clip after another, (samples,) int16 at 24 kHz.
        samples: Number of samples of each clip, (clips,).
        mel: Mel spectrograms of all clips (``conditioning_mel``), one after another, (frames, 80) float16.
        frames: Number of mel frames of each clip, which is a multiple of 4, (clips,).
    """

    texts: list[str]
    audio: np.ndarray
    samples: np.ndarray
    mel: np.ndarray
    frames: np.ndarray

    def save(self, path: Path) -> None:
        with replacing(path) as target, target.open("wb") as file:
            np.savez(
                file,
                texts=np.array(self.texts),
                audio=self.audio,
                samples=self.samples,
                mel=self.mel,
                frames=self.frames,
            )

    @classmethod
    def load(cls, path: Path) -> "Shard":
        with np.load(path) as data:
            return cls(data["texts"].tolist(), data["audio"], data["samples"], data["mel"], data["frames"])

    @property
    def clips(self) -> list[np.ndarray]:
        """The samples of each clip, (S,) float32 at 24 kHz."""
        return [clip.astype(np.float32) / 32767 for clip in np.split(self.audio, self.samples.cumsum()[:-1])]

    @property
    def pitches(self) -> list[np.ndarray]:
        """The pitch of each clip in Hz at its mel frames, (L,). It is 0 in unvoiced frames."""
        return [pitch_of(clip, int(frames)) for clip, frames in zip(self.clips, self.frames, strict=True)]

    @property
    def hours(self) -> float:
        return int(self.samples.sum()) / RATE / 3600


def load_mels(shard: Path) -> list[np.ndarray]:
    """Read the mel spectrogram (L, 80) float16 of every clip in a shard."""
    with np.load(shard) as data:  # reads only the arrays that are used
        return np.split(data["mel"], data["frames"].cumsum()[:-1])


def code_mel(audio: np.ndarray, mel_norms: np.ndarray) -> np.ndarray:
    """Compute the mel spectrogram (80, L) of a clip (S,) at 24 kHz.

    A code takes four frames. Frames at the end that do not fill a code are dropped, so L is a multiple of 4.
    """
    mel = conditioning_mel(resample(audio, RATE, CONDITIONING_RATE), mel_norms)
    return mel[:, : mel.shape[1] // 4 * 4]


def speak_shard(path: Path, texts: Sequence[str], teacher: str, mel_norms: np.ndarray) -> None:
    shard_of(texts, teacher_of(teacher), mel_norms).save(path)


def shard_of(texts: Sequence[str], speak: Speak, mel_norms: np.ndarray) -> Shard:
    """Let a teacher speak texts, and keep the clips that are not silent and not longer than ``MAX_SECONDS``."""
    clips = [(text, trim_and_level(speak(text))) for text in texts]
    clips = [(text, audio) for text, audio in clips if RATE // 4 < len(audio) < MAX_SECONDS * RATE]
    mels = [code_mel(audio, mel_norms) for _, audio in clips]
    return Shard(
        [text for text, _ in clips],
        np.concatenate([np.rint(audio * 32767).astype(np.int16) for _, audio in clips]),
        np.array([len(audio) for _, audio in clips]),
        np.concatenate([mel.T for mel in mels]).astype(np.float16),
        np.array([mel.shape[1] for mel in mels]),
    )


def speak_all(
    folder: Path,
    texts: Mapping[str, Sequence[str]],
    teachers: Mapping[str, str],
    mel_norms: np.ndarray,
    size: int,
    workers: int,
) -> list[Path]:
    """Let teachers speak the texts of each voice in several processes, and write shards with ``size`` clips each.

    Shards that exist already are not written again. ``teachers`` has the name of each voice's teacher.

    Returns:
        The paths of all shards, one voice after another.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        (folder / f"{index:04d}-{voice}.npz", some[start : start + size], teachers[voice], mel_norms)
        for voice, some in texts.items()
        for index, start in enumerate(range(0, len(some), size))
    ]
    if missing := [job for job in jobs if not job[0].exists()]:
        for teacher in {teacher for _, _, teacher, _ in missing}:
            teacher_of(teacher)  # fetches the teacher's packages before the processes start
        with ProcessPoolExecutor(min(workers, len(missing)), mp_context=get_context("spawn")) as pool:
            list(pool.map(speak_shard, *zip(*missing, strict=True)))  # with list(), an error or Ctrl-C cancels the rest
    return [job[0] for job in jobs]


def voice_of(shard: Path, voices: Sequence[str]) -> int:
    return voices.index(shard.stem.split("-")[1])


def number_of(shard: Path) -> int:
    """Return the number of a shard among the shards of its voice, from the name of the file."""
    return int(shard.stem.split("-")[0])


def clips_in(hours: float) -> int:
    """Estimate the number of clips in some hours of speech."""
    return round(hours * 3600 / CLIP_SECONDS)


@dataclass(frozen=True)
class Clip:
    """One clip of the training speech.

    Attributes:
        text: Token ids of the text.
        codes: Codes of the speech, (n,) int64.
        voice: Index of the voice.
        shard: Path of the shard with the audio.
        index: Index of the clip in the shard.
    """

    text: list[int]
    codes: np.ndarray
    voice: int
    shard: Path
    index: int


def load_clips(
    shards: Sequence[Path], codes: Sequence[Path], voices: Sequence[str], tokenizer: Tokenizer
) -> list[Clip]:
    clips = []
    for shard_path, codes_path in zip(shards, codes, strict=True):
        voice = voice_of(shard_path, voices)
        with np.load(shard_path) as data:  # reads only the arrays that are used
            texts, frames = data["texts"].tolist(), data["frames"]
        rows = np.split(np.load(codes_path).astype(np.int64), np.cumsum(frames // 4)[:-1])
        clips += [
            Clip(tokenizer.encode_normalised(text), row, voice, shard_path, index)
            for index, (text, row) in enumerate(zip(texts, rows, strict=True))
        ]
    return clips


class Batches:
    """Batches of clips that have similar lengths. ``batches[step]`` has the indices of the clips of a step.

    A batch has about ``size`` positions in total. The first epoch begins with short clips. A batch depends only on its
    step, so that a training that was interrupted continues with the same batches.
    """

    def __init__(self, lengths: Sequence[int], size: int, seed: int):
        self.lengths, self.size, self.seed = np.asarray(lengths), size, seed
        self.epochs: dict[int, list[np.ndarray]] = {}
        self.epoch_steps = len(self.epoch(0))

    def __getitem__(self, step: int) -> np.ndarray:
        epoch = self.epoch(step // self.epoch_steps)
        return epoch[step % self.epoch_steps % len(epoch)]

    def epoch(self, epoch: int) -> list[np.ndarray]:
        if epoch not in self.epochs:
            rng = np.random.default_rng([self.seed, epoch])
            order = np.argsort(self.lengths + rng.uniform(0, 6, len(self.lengths)))
            ends = np.cumsum(self.lengths[order]) // self.size
            batches = np.split(order, np.flatnonzero(np.diff(ends)) + 1)
            if epoch == 0:  # sort by length, and move each batch by up to a third of the epoch at random
                keys = np.arange(len(batches)) + rng.uniform(0, len(batches) / 3, len(batches))
                batches = [batches[index] for index in np.argsort(keys)]
            else:
                rng.shuffle(batches)
            self.epochs = {0: self.epochs.get(0, batches), epoch: batches}
        return self.epochs[epoch]
