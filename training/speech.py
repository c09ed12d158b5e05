"""Speech of the teachers (voices of flite), stored with the mel that the quantiser encodes."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from ane.audio import resample
from ane.audio.mel import CONDITIONING_RATE, conditioning_mel
from ane.system.errors import UserError
from ane.system.files import replacing

RATE = 16000                # Hz of flite's voices
MAX_CLIPS, MIN_SHARDS = 400, 12     # clips of a shard at most, and shards at least
LEVEL = 0.07                # root mean square of the spoken part, equal for both voices
MAX_SECONDS = 11.5          # of a clip: the decoder has no more positions
CLIP_SECONDS = 2.82         # mean length, to compute the number of clips from hours
LEAD, TAIL = 0.08, 0.10     # seconds of silence before and after the words


@dataclass(frozen=True)
class Flite:
    """The flite program, and the folder of its libraries if it is unpacked rather than installed."""

    program: str = "flite"
    libraries: str | None = None

    def speak(self, text: str, voice: str) -> np.ndarray:
        """(S,) float32 at 16 kHz, at equal loudness, silence at its ends trimmed to ``LEAD`` and ``TAIL``.

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
        return trim_and_level(audio)


def trim_and_level(audio: np.ndarray) -> np.ndarray:
    """Speech (S,) at equal loudness with short silences at its ends; no samples if all is silent."""
    loud = np.flatnonzero(np.abs(audio) > 0.01)
    if not len(loud):
        return audio[:0]
    return level(audio[max(0, loud[0] - int(LEAD * RATE)):loud[-1] + int(TAIL * RATE)])


def level(audio: np.ndarray) -> np.ndarray:
    """Speech (S,) at 16 kHz, not all silent, at equal loudness."""
    frames = audio[:len(audio) // 160 * 160].reshape(-1, 160)
    energy = np.sqrt((frames ** 2).mean(axis=1))
    spoken = energy[energy > 0.1 * energy.max()]
    return np.clip(audio * (LEVEL / np.sqrt((spoken ** 2).mean())), -0.95, 0.95).astype(np.float32)


@dataclass
class Shard:
    """Up to ``MAX_CLIPS`` clips of one voice.

    Attributes:
        texts: of the clips.
        audio: (samples,) int16 at 16 kHz, concatenated; samples: (clips,) their lengths.
        mel: (frames, 80) float16, ``conditioning_mel`` of the clips; frames: (clips,) their lengths, multiples of 4.
    """

    texts: list[str]
    audio: np.ndarray
    samples: np.ndarray
    mel: np.ndarray
    frames: np.ndarray

    def save(self, path: Path) -> None:
        with replacing(path) as target, target.open("wb") as file:
            np.savez(file, texts=np.array(self.texts), audio=self.audio, samples=self.samples, mel=self.mel,
                     frames=self.frames)

    @classmethod
    def load(cls, path: Path) -> "Shard":
        with np.load(path) as data:
            return cls(data["texts"].tolist(), data["audio"], data["samples"], data["mel"], data["frames"])

    def clip(self, index: int) -> np.ndarray:
        """(S,) float32 at 16 kHz."""
        end = int(self.samples[:index + 1].sum())
        return self.audio[end - self.samples[index]:end].astype(np.float32) / 32767

    @property
    def hours(self) -> float:
        return int(self.samples.sum()) / RATE / 3600


def load_mels(shard: Path) -> list[np.ndarray]:
    """(L, 80) float16 of every clip of a shard."""
    with np.load(shard) as data:            # loads only the arrays it uses
        return np.split(data["mel"], data["frames"].cumsum()[:-1])


def code_mel(audio: np.ndarray, mel_norms: np.ndarray) -> np.ndarray:
    """Clip (S,) at 16 kHz → (80, L), L a multiple of the four frames of a code; a last incomplete code is dropped."""
    mel = conditioning_mel(resample(audio, RATE, CONDITIONING_RATE), mel_norms)
    return mel[:, :mel.shape[1] // 4 * 4]


def speak_shard(path: Path, texts: Sequence[str], voice: str, flite: Flite, mel_norms: np.ndarray) -> None:
    clips = [(text, flite.speak(text, voice)) for text in texts]
    clips = [(text, audio) for text, audio in clips if RATE // 4 < len(audio) < MAX_SECONDS * RATE]
    mels = [code_mel(audio, mel_norms) for _, audio in clips]
    Shard([text for text, _ in clips], np.concatenate([np.rint(audio * 32767).astype(np.int16) for _, audio in clips]),
          np.array([len(audio) for _, audio in clips]), np.concatenate([mel.T for mel in mels]).astype(np.float16),
          np.array([mel.shape[1] for mel in mels])).save(path)


def voice_of(shard: Path, voices: Sequence[str]) -> int:
    return voices.index(shard.stem.split("-")[1])


def clips_in(hours: float) -> int:
    """About how many clips these hours of speech are."""
    return round(hours * 3600 / CLIP_SECONDS)


def shard_size(clips: int) -> int:
    """Number of clips in a shard when there are ``clips`` in all."""
    return min(MAX_CLIPS, -(-clips // MIN_SHARDS))


def speak_all(folder: Path, texts: Sequence[str], voices: Sequence[str], flite: Flite, mel_norms: np.ndarray,
              workers: int) -> list[Path]:
    """Write the speech of all texts as shards, alternating between the voices. Existing shards are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs, size = [], shard_size(len(texts))
    for index, start in enumerate(range(0, len(texts), size)):
        voice = voices[index % len(voices)]
        jobs.append((folder / f"{index:04d}-{voice}.npz", texts[start:start + size], voice, flite, mel_norms))
    missing = [job for job in jobs if not job[0].exists()]
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(speak_shard, *zip(*missing, strict=True)))     # list(): an error or Ctrl-C cancels the rest
    return [job[0] for job in jobs]
