"""The settings of a request, apart from its text and voice."""

from pydantic import Field

from ane.speech.settings import SpeechSettings, split_setting
from ane.system.checked import checked


@checked
class KokoroSettings(SpeechSettings):
    """Settings of a request.

    Attributes:
        speed: speed of speech, 1 as trained, 2 twice as fast.
        split: desired and maximum characters of a chunk; None: the text is one chunk. A chunk of more phonemes than one
            pass takes is split further, or with None an error.

    Raises:
        UserError: a value is out of range.
    """

    speed: float = Field(default=1.0, ge=0.5, le=2)
    split: tuple[int, int] | None = split_setting(100, 250)
