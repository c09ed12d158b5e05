"""How often speaking a sentence calls each function, by which the functions' times are weighted."""

import math
from collections.abc import Mapping, Sequence
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
        """Calls of a function of this kind and bucket, except those of a decoder's step (``step_calls``)."""
        batch = bucket.get("batch", 1)
        vocoder_calls = self.frames / bucket.get("frames", self.frames)
        counts = {"prefill": 1, "condition": 1, "clvp_text": 1, "clvp_speech": self.candidates / batch,
                  "denoise": self.steps * (batch == 1 + self.guided),
                  "sample": self.steps / bucket.get("steps", 1) * (batch == 1 + self.guided),
                  "univnet": vocoder_calls * (self.steps > 0), "hifigan": vocoder_calls * (self.steps == 0)}
        return counts.get(kind, 0)

    def lanes(self, buckets: Sequence[Mapping[str, int]]) -> int:
        """Candidates that steps of these buckets, which differ in their slots only, decode at once.

        Each needs slots of the largest bucket for all the codes that it may get.
        """
        columns, slots = buckets[0]["columns"], max(bucket.get("slots", math.inf) for bucket in buckets)
        fitting = columns if slots == math.inf else int(max(slots - self.prefix, 0)) // self.capacity
        return min(columns, fitting, self.candidates)

    def step_calls(self, buckets: Sequence[Mapping[str, int]]) -> list[float]:
        """Calls of a step of each of these buckets, which differ in their slots only; at least one lane must fit.

        A call takes the fewest slots that hold the prefix and the codes that its lanes have by then.
        """
        lanes, calls = self.lanes(buckets), [0.0] * len(buckets)
        slots = [bucket.get("slots", math.inf) for bucket in buckets]
        for code in range(CODES):
            needed = min(self.prefix + lanes * code, max(slots))
            calls[slots.index(min(size for size in slots if size >= needed))] += self.candidates / lanes
        return calls

    def store_calls(self, bucket: Mapping[str, int]) -> float:
        """Calls that store the codes of all candidates in a state, a block of columns at a time."""
        return CODES * self.candidates / bucket["columns"]
