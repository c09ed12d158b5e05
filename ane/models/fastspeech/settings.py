"""Define the settings of a request to FastSpeech."""

from pydantic import Field

from ane.models.durations import Rounding
from ane.speech.settings import SpeechSettings, split_setting
from ane.system.checked import validated

SAMPLE_RATE = 22050
HOP = 256  # samples per mel frame
HIGHEST = 8000.0  # Hz, upper end of the highest mel band


@validated
class FastSpeechSettings(SpeechSettings):
    """Settings of a request to FastSpeech.

    Attributes:
        split: Desired and maximum number of characters in a chunk. ``None`` makes the whole text one chunk.
        pause: Seconds of silence between two chunks.
        batch: Largest number of chunks that are computed in one pass.
        rounding: Rule for rounding a duration that is halfway between two numbers of frames: "half_to_even" as in
            NVIDIA's PyTorch class, or "half_up" as in its TensorRT graph.
    """

    split: tuple[int, int] | None = split_setting(150, 250)
    pause: float = Field(default=0.15, ge=0, le=10)
    batch: int = Field(default=8, ge=1)
    rounding: Rounding = "half_to_even"
