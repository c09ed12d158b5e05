"""How often speaking a sentence calls each function, by which the functions' times are weighted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from ane.models.tortoise.settings import Settings

SENTENCE = "The train leaves at nine, and it will not wait for anyone."
SEED = 0
CODES = 86          # 4 s of speech
TOKENS = 40         # of the sentence's text


@dataclass(frozen=True)
class SentenceWork:
    """The work of speaking a sentence in one preset.

    Attributes:
        candidates: sampled for the sentence. frames: of its mel. guided: whether a step runs the denoiser twice.
        steps: diffusion steps; 0: HiFi-GAN speaks without diffusion.
        capacity: codes that a lane has slots for. prefix: positions before the first code.
    """

    candidates: int
    steps: int
    guided: bool
    frames: int
    capacity: int
    prefix: int = TOKENS + 4

    @classmethod
    def of(cls, settings: Settings) -> Self:
        from ane.models.tortoise.diffusion import frame_count

        diffusion = settings.diffusion
        return cls(settings.candidates, diffusion.steps if diffusion else 0,
                   bool(diffusion and diffusion.guidance), frame_count(CODES), settings.sampling.max_codes)

    def calls(self, kind: str, bucket: Mapping[str, int]) -> float:
        """Calls of a function of this kind and bucket; of a decoder step as if every lane were in use."""
        batch = bucket.get("batch", 1)
        vocoder_calls = self.frames / bucket.get("frames", self.frames)
        counts = {"prefill": 1, "condition": 1, "clvp_text": 1, "clvp_speech": self.candidates / batch,
                  "denoise": self.steps * (batch == 1 + self.guided),
                  "sample": self.steps / bucket.get("steps", 1) * (batch == 1 + self.guided),
                  "univnet": vocoder_calls * (self.steps > 0), "hifigan": vocoder_calls * (self.steps == 0)}
        if kind in ("step", "state"):
            return CODES * self.candidates / max(self.lanes(bucket), 1)
        return counts.get(kind, 0)

    def lanes(self, bucket: Mapping[str, int]) -> int:
        """Candidates that a step of this bucket decodes at once: each needs slots for all the codes it may get."""
        slots = bucket.get("slots")
        fitting = bucket["columns"] if slots is None else max(slots - self.prefix, 0) // self.capacity
        return min(bucket["columns"], fitting, self.candidates)
