"""Read sound from FFmpeg's containers with PyAV, and mix channels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# FFmpeg's names of containers with sound. Formats that refer to other files, such as concat and hls, are left out.
CONTAINERS = "aac,ac3,aiff,amr,ape,asf,au,avi,caf,eac3,flac,flv,matroska,mov,mp3,mpeg,mpegts,ogg,tta,w64,wav,wv"
# Channels cancel each other if the power of their mean is below this share of their mean power. The share is 1 if
# channels are equal, and 0.5 if they have nothing in common.
CANCELLED = 0.02


class ChannelMix:
    """A mix of the channels of a sound, which notices if they cancel each other.

    Args:
        first_only: Whether to use the first channel instead of the mean.
    """

    def __init__(self, first_only: bool = False):
        self._first_only = first_only
        self._mixed = self._apart = 0.0  # power of the mean, and mean of the channels' powers

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
        """Whether the channels so far have opposite signs, so that little is left of the sound."""
        return self._mixed < CANCELLED * self._apart


def read_container(path: Path, max_seconds: float) -> tuple[np.ndarray, int, bool]:
    """Read the first sound of a container such as m4a, AVI or webm, up to a little more than ``max_seconds``.

    Returns:
        Audio (S,) float32 mono, its rate in Hz, and whether only the first channel was used because the channels cancel
        each other.

    Raises:
        OSError, ValueError, IndexError: FFmpeg cannot read it, or it has no sound.
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
    """Yield the samples (n,) float32 of a container's first sound with its rate in Hz. There is at least one piece.

    Raises:
        OSError, ValueError, IndexError: FFmpeg cannot read it, or it has no sound.
    """
    import av

    # The options prevent that a container makes FFmpeg open other files or the network.
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
