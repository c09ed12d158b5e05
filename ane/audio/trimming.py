"""The silent ends of a piece of sound, cut short on the fly: pieces in, pieces out."""

import numpy as np

RATE = 24000                    # Hz
FRAME = 240                     # samples that are loud or silent together: 10 ms
QUIET = 10 ** (-45 / 20)        # root mean square of a frame, up to which it is silent: −45 dBFS
FADE = 120                      # samples over which sound fades where it was cut: 5 ms


class Trimmer:
    """Lets sound through as it comes, but for what is silent at its ends beyond ``lead`` and ``tail`` seconds.

    The pieces that come out make one sound, which does not depend on how it was cut into the pieces that went in.
    Silence is held back until sound follows it. Of a piece that is silent throughout its last ``lead`` seconds remain.

    Raises:
        ValueError: less than a sample of silence is to be kept.
    """

    def __init__(self, lead: float, tail: float):
        self.lead, self.tail = round(lead * RATE), round(tail * RATE)
        if min(self.lead, self.tail) < 1:
            raise ValueError(f"silence of {lead} and {tail} s: at least a sample must be kept")
        self.begun = self.shortened = False         # whether sound was met; whether silence before it was dropped
        self.unframed = self.held = np.empty(0, np.float32)

    def feed(self, audio: np.ndarray) -> np.ndarray:
        """(S,) float32 at 24 kHz → what is now certain to be kept, (n,) float32, maybe nothing."""
        audio = np.concatenate((self.unframed, audio))
        whole = len(audio) // FRAME * FRAME
        self.unframed = audio[whole:]
        return self._pass(audio[:whole], FRAME)

    def finish(self) -> np.ndarray:
        """The rest, when all has been fed: (n,) float32."""
        last = self._pass(self.unframed, max(1, len(self.unframed)))
        if not self.begun:
            return self._led(self.held)
        end = self.held[:self.tail].copy()
        if len(self.held) > self.tail:
            fade = min(FADE, len(end))
            end[-fade:] *= ramp(fade)[::-1]
        return np.concatenate((last, end))

    def _pass(self, audio: np.ndarray, frame: int) -> np.ndarray:
        """Frames of sound → all up to the last loud one; the silence after it is held."""
        energy = (audio.reshape(-1, frame) ** 2).mean(axis=1)
        loud = np.flatnonzero(~(energy <= QUIET ** 2))      # so that NaN is not taken for silence
        together = np.concatenate((self.held, audio))
        if not len(loud):
            if not self.begun and len(together) > self.lead:
                together, self.shortened = together[-self.lead:], True
            self.held = together
            return audio[:0]
        first, end = (len(self.held) + frame * index for index in (loud[0], loud[-1] + 1))
        self.held = together[end:]
        if self.begun:
            return together[:end]
        self.begun, start = True, max(0, first - self.lead)
        self.shortened |= bool(start)
        return self._led(together[start:end])

    def _led(self, audio: np.ndarray) -> np.ndarray:
        """The beginning of all that is kept, faded in where silence before it was dropped."""
        if not self.shortened:
            return audio
        fade = min(FADE, self.lead, len(audio))
        return np.concatenate((audio[:fade] * ramp(fade), audio[fade:]))


def ramp(samples: int) -> np.ndarray:
    """From nearly 0 to nearly 1: (samples,) float32."""
    return ((np.arange(samples, dtype=np.float32) + 0.5) / samples).astype(np.float32)


def trimmed(audio: np.ndarray, silence: tuple[float, float] | None) -> np.ndarray:
    """Sound (S,) with at most these seconds of silence before and after it; None: as it is."""
    if silence is None:
        return audio
    trimmer = Trimmer(*silence)
    return np.concatenate((trimmer.feed(audio), trimmer.finish()))
