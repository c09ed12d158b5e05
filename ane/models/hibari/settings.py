"""The settings of a request, apart from its text."""

from pydantic import Field

from ane.speech.settings import SpeechSettings, split_setting
from ane.system.checked import checked


@checked
class HibariSettings(SpeechSettings):
    speed: float = Field(1.0, ge=0.25, le=4)
    split: tuple[int, int] | None = split_setting(100, 250)
    pause: float = Field(0.0, ge=0, le=10)      # seconds between two chunks, beside the half second of the model
    seed: int = Field(0, ge=0)      # of the noise in the sound, the same for every chunk; nothing else is random
