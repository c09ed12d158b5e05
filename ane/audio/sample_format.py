"""Parse the format in which a file stores its samples, in the syntax of macOS's say.

For example, LEI16@22050 means 16-bit integers, little-endian, at 22,050 Hz.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr

from ane.audio.writer import FORMATS
from ane.system.errors import NoEffectError, UserError

ENCODINGS = {
    "I8": "PCM_S8",
    "UI8": "PCM_U8",
    "I16": "PCM_16",
    "I24": "PCM_24",
    "I32": "PCM_32",
    "F32": "FLOAT",
    "F64": "DOUBLE",
    "ULAW": "ULAW",
    "ALAW": "ALAW",
}  # name in macOS's say → name in libsndfile
RATES = 8000, 192_000  # smallest and largest sample rate in Hz
PATTERN = re.compile(r"(?:LE|BE)?(?P<encoding>[A-Z]+\d*)(?:@(?P<rate>\d{1,7}))?", re.IGNORECASE)


@dataclass(frozen=True)
class SampleFormat:
    """The format in which a file stores its samples.

    Attributes:
        name: Name of the type in ``ENCODINGS``. The file format decides the byte order.
        rate: Sample rate in Hz. ``None`` keeps the rate of the speech.
    """

    name: str
    rate: int | None = None

    @classmethod
    def read(cls, text: str) -> "SampleFormat":
        """Parse a format, such as "LEI16@22050", "F32" or "I24@48000". Raises UserError if ``text`` is not a format."""
        match = PATTERN.fullmatch(text)
        if match is None or match["encoding"].upper() not in ENCODINGS:
            raise UserError(
                f"data_format must be one of {', '.join(ENCODINGS)}, and may end in @RATE, such as "
                f"I24@48000, got {text}",
                "data_format",
            )
        rate = match["rate"] and int(match["rate"])
        if rate is not None and not RATES[0] <= rate <= RATES[1]:  # type: ignore[operator]
            raise UserError(
                f"data_format {text}: the sample rate must be from {RATES[0]} to {RATES[1]} Hz", "data_format"
            )
        return cls(match["encoding"].upper(), rate)

    def subtype(self, suffix: str, given: str = "") -> str:
        """Return libsndfile's name of the type. Raises UserError if files with this suffix cannot store the type.

        ``given`` is the name that the user gave, for the message.
        """
        container, encoding = FORMATS.get(suffix, ("", ""))[0], ENCODINGS[self.name]
        if not container or not soundfile.check_format(container, encoding):
            able = [name for name, (kind, _) in FORMATS.items() if soundfile.check_format(kind, encoding)]
            where = f"on {suffix or 'standard output'}"
            message = (
                f"data_format {given or self.name} has no effect {where}: end the file's name in {', '.join(able)}"
            )
            raise NoEffectError("data_format", where, text=message)
        return encoding


@contextmanager
def resampling(
    append: Callable[[np.ndarray], None], rate: int, wanted: int | None
) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that resamples audio (n,) float32 from ``rate`` to ``wanted`` Hz, and passes it to ``append``.

    At the end of the block, ``append`` gets the last samples. If ``wanted`` is ``None``, the rate does not change.
    """
    if wanted is None or wanted == rate:
        yield append
        return
    stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32")
    yield lambda audio: append(stream.resample_chunk(np.asarray(audio, np.float32)))
    append(stream.resample_chunk(np.zeros(0, np.float32), last=True))
