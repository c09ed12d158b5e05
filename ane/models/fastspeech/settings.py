"""Define the settings of FastSpeech."""

from pydantic import Field

from ane.models.durations import Rounding
from ane.speech.settings import SpeechSettings, split_setting
from ane.system.checked import validated

SAMPLE_RATE = 22050
HOP = 256  # samples of a mel frame
HIGHEST = 8000.0  # Hz, upper end of the mel bands


@validated
class FastSpeechSettings(SpeechSettings):
    """Settings of FastSpeech.

    Attributes:
        split: Desired and maximum characters of a chunk. ``None`` makes the text one chunk.
        pause: Seconds of silence between two chunks.
        batch: Most chunks that are spoken in one pass.
        rounding: Rounding of durations halfway between two numbers of frames: "half_to_even" as in NVIDIA's PyTorch
            class, "half_up" as in its TensorRT graph.
    """

    split: tuple[int, int] | None = split_setting(150, 250)
    pause: float = Field(default=0.15, ge=0, le=10)
    batch: int = Field(default=8, ge=1)
    rounding: Rounding = "half_to_even"
