"""Make the teachers' speech in shards, each with pitch and the mel that the quantiser encodes, and clips of it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from ane.audio import resample
from ane.audio.loudness import LoudnessMeter
from ane.audio.mel import CONDITIONING_RATE, conditioning_mel
from ane.system.files import replacing
from ane.text import Tokenizer
from training.pitch import RATE, pitch_of

MAX_SECONDS = 11.5  # most seconds of a clip: the decoder has no more positions
CLIP_SECONDS = 3.0  # seconds of a clip, to compute the number of clips from hours
LOUDNESS = -19.0  # LUFS of every clip
LEAD, TAIL = 0.08, 0.10  # seconds of silence before and after the words
SOUND = 0.008  # samples above it are not silence
STAND_IN = "tones"  # a teacher that needs no package

Speak = Callable[[str], np.ndarray]  # text → (S,) float32 at ``RATE``


def teacher_of(name: str) -> Speak:
    """Return a teacher by its name in the recipe.

    Raises UserError if it is unknown or its packages cannot be fetched.
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
    """Return a tone for each letter, as a stand-in for a teacher."""
    time = np.arange(int(0.06 * RATE)) / RATE
    return np.concatenate([0.3 * np.sin(2 * np.pi * 120 * (1 + ord(letter) % 7) * time) for letter in text]).astype(
        np.float32
    )


def trim_and_level(audio: np.ndarray) -> np.ndarray:
    """Return speech (S,) at equal loudness with short silences at its ends, or no samples if all is silent."""
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
    """Some clips of one voice."""

    texts: list[str]
    audio: np.ndarray  # (samples,) int16 at 24 kHz, concatenated
    samples: np.ndarray  # (clips,) lengths of clips in ``audio``
    mel: np.ndarray  # (frames, 80) float16, ``conditioning_mel`` of the clips
    frames: np.ndarray  # (clips,) lengths of clips in ``mel``, multiples of 4

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
        """The clips, (S,) float32 at 24 kHz each."""
        return [clip.astype(np.float32) / 32767 for clip in np.split(self.audio, self.samples.cumsum()[:-1])]

    @property
    def pitches(self) -> list[np.ndarray]:
        """The pitch of every clip, (L,) Hz at the mel's frames, 0 where it is unvoiced."""
        return [pitch_of(clip, int(frames)) for clip, frames in zip(self.clips, self.frames, strict=True)]

    @property
    def hours(self) -> float:
        return int(self.samples.sum()) / RATE / 3600


def load_mels(shard: Path) -> list[np.ndarray]:
    """Return the mel (L, 80) float16 of every clip in a shard."""
    with np.load(shard) as data:  # loads only the arrays it uses
        return np.split(data["mel"], data["frames"].cumsum()[:-1])


def code_mel(audio: np.ndarray, mel_norms: np.ndarray) -> np.ndarray:
    """Return the mel (80, L) of a clip (S,) at 24 kHz.

    L is a multiple of the four frames of a code. An incomplete last code is dropped.
    """
    mel = conditioning_mel(resample(audio, RATE, CONDITIONING_RATE), mel_norms)
    return mel[:, : mel.shape[1] // 4 * 4]


def speak_shard(path: Path, texts: Sequence[str], teacher: str, mel_norms: np.ndarray) -> None:
    torch.set_num_threads(1)
    speak = teacher_of(teacher)
    clips = [(text, trim_and_level(speak(text))) for text in texts]
    clips = [(text, audio) for text, audio in clips if RATE // 4 < len(audio) < MAX_SECONDS * RATE]
    mels = [code_mel(audio, mel_norms) for _, audio in clips]
    Shard(
        [text for text, _ in clips],
        np.concatenate([np.rint(audio * 32767).astype(np.int16) for _, audio in clips]),
        np.array([len(audio) for _, audio in clips]),
        np.concatenate([mel.T for mel in mels]).astype(np.float16),
        np.array([mel.shape[1] for mel in mels]),
    ).save(path)


def speak_all(
    folder: Path, texts: Sequence[str], voice: str, teacher: str, mel_norms: np.ndarray, size: int, workers: int
) -> list[Path]:
    """Write the speech of all texts by a voice as shards with ``size`` clips. Existing shards stay."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        (folder / f"{index:04d}-{voice}.npz", texts[start : start + size], teacher, mel_norms)
        for index, start in enumerate(range(0, len(texts), size))
    ]
    if missing := [job for job in jobs if not job[0].exists()]:
        teacher_of(teacher)  # fetches its packages once
        with ProcessPoolExecutor(min(workers, len(missing)), mp_context=get_context("spawn")) as pool:
            list(pool.map(speak_shard, *zip(*missing, strict=True)))  # list() lets an error or Ctrl-C cancel the rest
    return [job[0] for job in jobs]


def voice_of(shard: Path, voices: Sequence[str]) -> int:
    return voices.index(shard.stem.split("-")[1])


def number_of(shard: Path) -> int:
    """Return the shard's number among the shards of its voice."""
    return int(shard.stem.split("-")[0])


def clips_in(hours: float) -> int:
    """Estimate how many clips these hours of speech have."""
    return round(hours * 3600 / CLIP_SECONDS)


@dataclass(frozen=True)
class Clip:
    """One clip of the training speech."""

    text: list[int]  # token ids
    codes: np.ndarray  # (n,) int64
    voice: int  # index of the teacher
    shard: Path  # file of its audio
    index: int  # position in it


def load_clips(
    shards: Sequence[Path], codes: Sequence[Path], voices: Sequence[str], tokenizer: Tokenizer
) -> list[Clip]:
    clips = []
    for shard_path, codes_path in zip(shards, codes, strict=True):
        voice = voice_of(shard_path, voices)
        with np.load(shard_path) as data:  # loads only the arrays it uses
            texts, frames = data["texts"].tolist(), data["frames"]
        rows = np.split(np.load(codes_path).astype(np.int64), np.cumsum(frames // 4)[:-1])
        clips += [
            Clip(tokenizer.encode_normalised(text), row, voice, shard_path, index)
            for index, (text, row) in enumerate(zip(texts, rows, strict=True))
        ]
    return clips


class Batches:
    """Batches of clips with similar length, about ``size`` positions each. The first epoch begins with short clips.

    ``batches[step]`` depends only on the step.
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
            if epoch == 0:  # short clips first, shuffled within a third of the epoch
                keys = np.arange(len(batches)) + rng.uniform(0, len(batches) / 3, len(batches))
                batches = [batches[index] for index in np.argsort(keys)]
            else:
                rng.shuffle(batches)
            self.epochs = {0: self.epochs.get(0, batches), epoch: batches}
        return self.epochs[epoch]
