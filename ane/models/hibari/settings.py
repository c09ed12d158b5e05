"""The settings of a request, apart from its text."""

from pydantic import Field

from ane.speech.settings import SpeechSettings, split_setting
from ane.system.checked import checked


@checked
class HibariSettings(SpeechSettings):
    split: tuple[int, int] | None = split_setting(100, 250)
    pause: float = Field(0.0, ge=0, le=10)      # seconds between two chunks, beside the half second of the model
