"""Compute the mels and the speaker embeddings of recordings, and measure how well embeddings tell speakers apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from ane.audio import read_audio, resample
from ane.audio.mel import CONDITIONING_RATE, conditioning_mel
from ane.models.tortoise.checkpoints import packaged_file
from ane.system.files import replacing
from benchmarks.data_packages import package_folder
from benchmarks.yardsticks import SpeakerEncoder
from training.speech import RATE, Shard

PEOPLE = "two_cities", "beckett", "clone-test"  # recordings of one person
PIECE_SECONDS = 5.0  # about the length of their pieces


@dataclass(frozen=True, eq=False)
class HeardClip:
    """A recording as networks hear it.

    Attributes:
        speaker: Name of the speaker, with the rate at which the recording is played.
        mel: Mel spectrogram of the whole recording (``conditioning_mel``), (L, 80) float16.
        embedding: Embedding of the recording by Resemblyzer, (256,) float32.
    """

    speaker: str
    mel: np.ndarray
    embedding: np.ndarray


class Ear:
    """Turns sound into mels and embeddings. Resemblyzer's weights are loaded when they are first needed."""

    def __init__(self) -> None:
        self.mel_norms = load_file(packaged_file("mel_norms.safetensors"))["mel_norms"]
        self.encoder = cache(SpeakerEncoder)

    def hear(self, speaker: str, audio: np.ndarray, rate: float) -> HeardClip:
        """Compute the mel and the embedding of audio (S,) float32."""
        mel = conditioning_mel(resample(audio, rate, CONDITIONING_RATE), self.mel_norms)
        return HeardClip(speaker, mel.T.astype(np.float16), self.encoder().embedding(audio, rate))

    def heard(self, path: Path, rate: float, folder: Path) -> HeardClip:
        """Hear the clips of a shard one after another, played ``rate`` times as fast. Keep the result in ``folder``."""
        name, _, place = path.stem.partition("-")
        speaker, kept = f"{name}@{rate:.2f}", folder / f"{name}@{rate:.2f}-{place}.npz"
        if kept.exists():
            with np.load(kept) as data:
                return HeardClip(speaker, data["mel"], data["embedding"])
        heard = self.hear(speaker, np.concatenate(Shard.load(path).clips), round(RATE * rate))
        with replacing(kept) as target, target.open("wb") as file:
            np.savez(file, mel=heard.mel, embedding=heard.embedding)
        return heard


def recordings_of_speakers(folder: Path, kind: str) -> dict[str, list[Path]]:
    """Return the files of each speaker in FOLDER/speech whose name begins with ``kind``, in the order of the names."""
    paths = sorted((folder / "speech").glob(f"{kind}*.npz"), key=lambda path: int(path.stem.partition("-")[2]))
    speakers: dict[str, list[Path]] = {}
    for path in paths:
        speakers.setdefault(path.stem.partition("-")[0], []).append(path)
    return dict(sorted(speakers.items()))


def people(ear: Ear) -> list[HeardClip]:
    """Hear pieces of about 5 s of the recordings of people in the package moonshine-voice. A recording is a speaker.

    The recordings differ in their rooms and microphones too, so they are easier to tell apart than their speakers.
    """
    folder, heard = package_folder("moonshine-voice") / "moonshine_voice" / "assets", []
    for name in PEOPLE:
        audio, rate = read_audio(folder / f"{name}.wav")
        count = max(1, int(len(audio) / rate / PIECE_SECONDS))
        heard += [ear.hear(name, piece, rate) for piece in np.array_split(audio, count)]
    return heard


def separation(embeddings: np.ndarray, speakers: Sequence[str]) -> dict[str, float]:
    """Measure how well embeddings (n, 256) with the norm 1 tell the speakers of n recordings apart.

    Returns:
        ``same`` and ``other``: the mean cosine of two recordings of a speaker, and of two speakers. ``other_p95``: the
        95th percentile of the second. ``auc``: how often a pair of one speaker is more alike than a pair of two.
        ``eer``: the equal error rate, at which as many pairs of one speaker are refused as pairs of two are accepted.
    """
    names = np.asarray(speakers)
    first, second = np.triu_indices(len(names), 1)
    cosines, alike = (embeddings[first] * embeddings[second]).sum(axis=1), names[first] == names[second]
    same, other = np.sort(cosines[alike]), np.sort(cosines[~alike])
    below = np.searchsorted(other, same, "left") + np.searchsorted(other, same, "right")
    limits = np.sort(cosines)  # if pairs are accepted from such a cosine on
    refused = np.searchsorted(same, limits) / len(same)
    accepted = 1 - np.searchsorted(other, limits) / len(other)
    place = int(np.abs(refused - accepted).argmin())
    return {
        "same": float(same.mean()),
        "other": float(other.mean()),
        "other_p95": float(np.quantile(other, 0.95)),
        "auc": float(below.mean() / 2 / len(other)),
        "eer": float((refused[place] + accepted[place]) / 2),
    }
