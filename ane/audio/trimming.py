"""Shorten the silence at both ends of a sound that may arrive in pieces."""

import numpy as np

RATE = 24000  # sample rate of the sound in Hz
FRAME = 240  # samples per frame, 10 ms. A frame is either loud or silent
QUIET = 10 ** (-45 / 20)  # a frame is silent if its root mean square is at most this value, −45 dBFS
FADE = 120  # where silence was cut off, the sound fades over this many samples, 5 ms


class Trimmer:
    """A trimmer that shortens the silence at both ends of a sound.

    The whole output does not depend on how the input is divided into pieces. The trimmer holds back silence until sound
    follows. If all input is silent, the last ``lead`` seconds of the input remain.

    Args:
        lead: Most silence to keep before the sound, in seconds.
        tail: Most silence to keep after the sound, in seconds.

    Attributes:
        removed: Number of samples that were removed before the sound.
        begun: Whether the input had any sound so far.
    """

    def __init__(self, lead: float, tail: float):
        self.lead, self.tail = round(lead * RATE), round(tail * RATE)
        if min(self.lead, self.tail) < 1:
            raise ValueError(f"lead and tail must be at least a sample, got {lead} and {tail} s")
        self.removed, self.begun = 0, False
        self.unframed = self.held = np.empty(0, np.float32)

    def feed(self, audio: np.ndarray) -> np.ndarray:
        """Take the next samples (S,) float32 at 24 kHz.

        Return the samples that no later samples can change, (n,) float32.
        """
        audio = np.concatenate((self.unframed, audio))
        whole = len(audio) // FRAME * FRAME
        self.unframed = audio[whole:]
        return self._frames(audio[:whole], FRAME)

    def finish(self) -> np.ndarray:
        """Return the sound that is still held, (n,) float32. Call this after the last ``feed``."""
        last = self._frames(self.unframed, max(1, len(self.unframed)))
        if not self.begun:
            return self._faded_in(self.held)
        end = self.held[: self.tail].copy()
        if len(self.held) > self.tail:
            fade = min(FADE, len(end))
            end[-fade:] *= ramp(fade)[::-1]
        return np.concatenate((last, end))

    def _frames(self, audio: np.ndarray, frame: int) -> np.ndarray:
        """Return the sound up to the end of the last loud frame. Hold the silence after it until more sound arrives."""
        energy = (audio.reshape(-1, frame) ** 2).mean(axis=1)
        loud = np.flatnonzero(~(energy <= QUIET**2))  # NaN is not silence
        together = np.concatenate((self.held, audio))
        if not len(loud):
            if not self.begun and len(together) > self.lead:
                self.removed += len(together) - self.lead
                together = together[-self.lead :]
            self.held = together
            return audio[:0]
        first, end = (len(self.held) + frame * index for index in (loud[0], loud[-1] + 1))
        self.held = together[end:]
        if self.begun:
            return together[:end]
        self.begun, start = True, max(0, first - self.lead)
        self.removed += start
        return self._faded_in(together[start:end])

    def _faded_in(self, audio: np.ndarray) -> np.ndarray:
        """Fade in the start of the sound, if silence before it was removed."""
        if not self.removed:
            return audio
        fade = min(FADE, self.lead, len(audio))
        return np.concatenate((audio[:fade] * ramp(fade), audio[fade:]))


def ramp(samples: int) -> np.ndarray:
    """Return a linear ramp from nearly 0 to nearly 1, (samples,) float32."""
    return (np.arange(samples, dtype=np.float32) + 0.5) / samples


def trimmed(audio: np.ndarray, silence: tuple[float, float] | None) -> np.ndarray:
    """Shorten the silence at both ends of audio (S,).

    ``silence`` is a pair: the most seconds of silence to keep before the sound, and the most seconds to keep after it.
    If ``silence`` is ``None``, the function returns the audio unchanged.
    """
    if silence is None:
        return audio
    trimmer = Trimmer(*silence)
    return np.concatenate((trimmer.feed(audio), trimmer.finish()))
