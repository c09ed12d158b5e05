"""The settings of a request, apart from its text."""

from pydantic import Field

from ane.speech.settings import SpeechSettings, split_setting
from ane.system.checked import checked


@checked
class HibariSettings(SpeechSettings):
    """Settings of a request.

    Attributes:
        speed: speed of speech, 1 as trained; 2 is twice as fast.
        split: desired and maximum characters of a chunk; None: the text is one chunk. A chunk of more phonemes than one
            pass takes is split further, or with None an error.
        pause: seconds of silence between two chunks, in addition to the half second that the model makes.
        seed: of the noise in the sound, the same for every chunk; nothing else is random.

    Raises:
        UserError: a value is out of range.
    """

    speed: float = Field(1.0, ge=0.25, le=4)
    split: tuple[int, int] | None = split_setting(100, 250)
    pause: float = Field(0.0, ge=0, le=10)
    seed: int = Field(0, ge=0)
