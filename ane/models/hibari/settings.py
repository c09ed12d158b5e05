"""Define the settings of a request to hibari."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field

from ane.speech.settings import SpeechSettings, split_setting
from ane.system.checked import validated


@validated
class HibariSettings(SpeechSettings):
    split: tuple[int, int] | None = split_setting(100, 250)
    pause: float = Field(0.0, ge=0, le=10)  # seconds between two chunks, in addition to the model's half second
    british: bool = False  # whether the voice speaks British English, as bundle.json says

    @classmethod
    def of(cls, preset: str | None = None, model: Mapping[str, Any] | None = None, **changes: Any) -> Self:
        return super().of(preset, **{**(model or {}), **changes})
