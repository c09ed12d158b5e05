"""Reading sound from containers of FFmpeg's with PyAV, and mixing channels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# FFmpeg's names of containers that hold sound. Formats that name other files, such as concat and hls, are left out
CONTAINERS = "aac,ac3,aiff,amr,ape,asf,au,avi,caf,eac3,flac,flv,matroska,mov,mp3,mpeg,mpegts,ogg,tta,w64,wav,wv"
# Channels cancel each other if the power of their mean is below this share of their mean power. Equal channels have 1,
# and channels without anything in common 0.5
CANCELLED = 0.02


class ChannelMix:
    """Averages the channels of a sound, and notices when they cancel each other.

    Args:
        first_only: Whether the first channel is taken instead.
    """

    def __init__(self, first_only: bool = False):
        self._first_only = first_only
        self._mixed = self._apart = 0.0  # power of the mean, and mean power of the channels

    def mono(self, samples: np.ndarray) -> np.ndarray:
        """Return the mean (n,) of samples (n, channels) float32, or the first channel."""
        if self._first_only or samples.shape[1] == 1:
            return samples[:, 0]
        mean = samples.mean(axis=1)
        self._mixed += float(mean @ mean)
        self._apart += float(np.einsum("nc,nc->", samples, samples)) / samples.shape[1]
        return mean

    @property
    def cancelled(self) -> bool:
        """Whether the channels of all samples so far have opposite signs, so that little is left of them."""
        return self._mixed < CANCELLED * self._apart


def read_container(path: Path, max_seconds: float) -> tuple[np.ndarray, int, bool]:
    """Read the first sound of a container such as m4a, AVI or webm, up to a moment after ``max_seconds``.

    Returns:
        audio (S,) float32 mono, its rate in Hz, and whether the first channel was taken because they cancel each other.

    Raises:
        OSError, ValueError, IndexError: FFmpeg cannot read it, or it holds no sound.
    """
    mix = ChannelMix()
    audio, rate = _decoded(path, max_seconds, mix)
    if mix.cancelled:
        audio, rate = _decoded(path, max_seconds, ChannelMix(first_only=True))
    return audio, rate, mix.cancelled


def _decoded(path: Path, max_seconds: float, mix: ChannelMix) -> tuple[np.ndarray, int]:
    pieces: list[np.ndarray] = []
    samples = rate = 0
    for piece, rate in container_pieces(path, mix):
        pieces.append(piece)
        samples += len(piece)
        if samples > max_seconds * rate:
            break
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32), rate


def container_pieces(path: Path, mix: ChannelMix) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the samples (n,) float32 of a container's first sound, and its rate in Hz: at least one piece.

    Raises:
        OSError, ValueError, IndexError: FFmpeg cannot read it, or it holds no sound.
    """
    import av

    # the file alone: no other files, no network, however the container refers to them
    with av.open(
        str(path), options={"protocol_whitelist": "file", "format_whitelist": CONTAINERS, "enable_drefs": "0"}
    ) as container:
        stream: Any = container.streams.audio[0]
        rate = int(stream.rate)
        if rate <= 0:
            raise ValueError("the sound has no rate")
        yield np.zeros(0, np.float32), rate
        as_floats = av.AudioResampler("fltp", rate=rate)
        for frame in container.decode(stream):
            for part in as_floats.resample(frame):
                yield mix.mono(part.to_ndarray().T), rate
