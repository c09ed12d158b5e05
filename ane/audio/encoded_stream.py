"""Sound encoded by FFmpeg into an open container of PyAV."""

from fractions import Fraction
from typing import Any

import numpy as np

from ane.audio.writer import pcm16

OPUS_RATE = 48000       # Hz of every Opus stream


class EncodedStream:
    """The one stream of sound of a container.

    Args:
        container: of ``av.open``, for writing. encoder: FFmpeg's name of it. bit_rate: bits a second; None: the
            encoder's own. rate: of the sound, Hz; PyAV resamples it where the encoder takes another.
    """

    def __init__(self, container: Any, encoder: str, bit_rate: int | None, rate: int):
        import av

        self._frames, self._container, self._rate = av.AudioFrame, container, rate
        self._stream = container.add_stream(encoder, rate=OPUS_RATE if encoder == "libopus" else rate, layout="mono")
        if bit_rate:
            self._stream.bit_rate = bit_rate
        self.samples = 0

    def append(self, audio: np.ndarray) -> None:
        """Encode audio (n,) float32, clipped to [-1, 1]."""
        if len(audio):
            frame = self._frames.from_ndarray(pcm16(audio)[None], format="s16", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = self._rate, self.samples, Fraction(1, self._rate)
            self.samples += len(audio)
            self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Write what the encoder still holds."""
        self._container.mux(self._stream.encode(None))
