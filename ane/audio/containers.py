"""Read sound with PyAV from files that libsndfile cannot read, such as m4a or webm, and mix channels to mono."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# FFmpeg's names of containers with sound. Formats that refer to other files, such as concat and hls, are not in the
# list
CONTAINERS = "aac,ac3,aiff,amr,ape,asf,au,avi,caf,eac3,flac,flv,matroska,mov,mp3,mpeg,mpegts,ogg,tta,w64,wav,wv"
# Channels cancel each other if the power of their mean, divided by the mean of their powers, is less than this. The
# quotient is 1 for two equal channels, and 0.5 for two channels that have nothing in common.
CANCELLED = 0.02


class ChannelMix:
    """Mixes the channels of a sound to mono, and notices if the channels cancel each other.

    Args:
        first_only: Whether to use the first channel instead of the mean.
    """

    def __init__(self, first_only: bool = False):
        self._first_only = first_only
        self._mixed = self._apart = 0.0  # power of the channels' mean, and mean of the channels' powers

    def mono(self, samples: np.ndarray) -> np.ndarray:
        """Mix samples (n, channels) float32 to their mean (n,).

        If ``first_only`` is true, return the first channel instead.
        """
        if self._first_only or samples.shape[1] == 1:
            return samples[:, 0]
        mean = samples.mean(axis=1)
        self._mixed += float(mean @ mean)
        self._apart += float(np.einsum("nc,nc->", samples, samples)) / samples.shape[1]
        return mean

    @property
    def cancelled(self) -> bool:
        """Whether the channels that were mixed so far have opposite signs, so that their mean is almost silent."""
        return self._mixed < CANCELLED * self._apart


def read_container(path: Path, max_seconds: float) -> tuple[np.ndarray, int, bool]:
    """Read the first sound of a container such as m4a, AVI or webm, up to a little more than ``max_seconds``.

    Returns:
        Audio (S,) float32 mono, its rate in Hz, and whether the channels cancel each other. If the channels cancel each
        other, the audio is the first channel.

    Raises:
        OSError, ValueError, IndexError: FFmpeg cannot read the file, or the file has no sound.
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
    """Yield the first sound of a container in pieces: mono samples (n,) float32, and the rate in Hz.

    The first piece has no samples, so that the caller learns the rate even if the sound is empty.

    Raises:
        OSError, ValueError, IndexError: FFmpeg cannot read the file, or the file has no sound.
    """
    import av

    # the options forbid FFmpeg to open other files or network addresses to which a container refers
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
