"""What is measured: a row for each function or stage, and one for each way to say the sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from ane.backends.tuning import Tuning
from ane.models.tortoise.settings import Settings

SENTENCE = "The train leaves at nine, and it will not wait for anyone."
SEED = 0
CODES = 86          # of the sentence that functions are measured for: 4 s of speech
TOKENS = 40         # of its text


@dataclass(frozen=True)
class Row:
    """A function of a package, or a stage on torch, in one setting.

    Attributes:
        backend: as ``--backend`` takes it. precision: of the package, or that torch was asked for.
        kind: "step", "denoise", … (``FunctionRecord``). bucket: its lengths.
        units: of Core ML; threads: of torch on the CPU. cache, lanes: of a decoder's step.
        compile_s: seconds that compiling its package took, in the row that it was compiled for.
        cold_load_s: seconds of its first load. first_ms: of the first prediction, which does what Core ML puts off.
        warm_load_s: seconds of another load. p50_ms, p95_ms: percentiles of ``runs`` predictions after a warm-up.
        placement: share of Core ML's estimated cost by device, where it was asked.
        error: why there are no figures.
    """

    backend: str
    network: str
    function: str
    kind: str
    bucket: dict[str, int]
    precision: str
    units: str | None = None
    threads: int | None = None
    cache: str | None = None
    lanes: int | None = None
    compile_s: float | None = None
    cold_load_s: float | None = None
    first_ms: float | None = None
    warm_load_s: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    runs: int = 0
    placement: dict[str, float] | None = None
    error: str | None = None

    @property
    def what(self) -> tuple[str, str, str]:
        """Which it is, among those of one backend, units and threads."""
        return self.network, self.precision, self.function


@dataclass(frozen=True)
class Spoken:
    """The sentence said twice with one tuning, each time by a fresh process; figures are of the second.

    Attributes:
        seconds: of audio. spent: of work, by stage. real_time_factor: work for a second of audio.
        first_audio_s: from the start of the process until there is something to hear, which is the whole file: there is
            no streaming yet.
        cold_first_audio_s: the same of the first time, compiling included.
        peak_bytes: largest resident set. joules: of the chip (CPU, GPU, Neural Engine) meanwhile, of all that ran.
        error: why there are no figures.
    """

    tuning: Tuning
    backend: str = ""
    seconds: float | None = None
    real_time_factor: float | None = None
    first_audio_s: float | None = None
    cold_first_audio_s: float | None = None
    peak_bytes: int | None = None
    spent: dict[str, float] = field(default_factory=dict)
    joules: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Calls:
    """How often saying the sentence calls functions, in its preset."""

    candidates: int
    steps: int          # of diffusion; 0: there is none
    guided: bool
    frames: int
    capacity: int       # codes that a lane has room for
    prefix: int = TOKENS + 4

    @classmethod
    def of(cls, settings: Settings) -> Self:
        from ane.models.tortoise.diffusion import frame_count

        diffusion = settings.diffusion
        return cls(settings.candidates, diffusion.steps if diffusion else 0,
                   bool(diffusion and diffusion.guidance), frame_count(CODES), settings.sampling.max_codes)

    def count(self, kind: str, bucket: Mapping[str, int]) -> float:
        """Calls of a function; of a decoder's step: as if all its lanes were of use."""
        rows = bucket.get("batch", 1)
        sound = self.frames / bucket.get("frames", self.frames)
        counts = {"prefill": 1, "condition": 1, "clvp_text": 1, "clvp_speech": self.candidates / rows,
                  "denoise": self.steps * (rows == 1 + self.guided),
                  "sample": self.steps / bucket.get("steps", 1) * (rows == 1 + self.guided),
                  "univnet": sound * (self.steps > 0), "hifigan": sound * (self.steps == 0)}
        if kind in ("step", "state"):
            return CODES * self.candidates / max(self.lanes(bucket), 1)
        return counts.get(kind, 0)

    def lanes(self, bucket: Mapping[str, int]) -> int:
        """Candidates that a step really takes at once: each needs slots for all the codes it may get."""
        slots = bucket.get("slots")
        room = bucket["columns"] if slots is None else max(slots - self.prefix, 0) // self.capacity
        return min(bucket["columns"], room, self.candidates)


def percentile(times: Sequence[float], share: float) -> float:
    """The value that a share of ``times`` does not exceed, between two of them by straight lines (numpy's "linear")."""
    return float(np.percentile(times, 100 * share))


def plain(figures: Row | Spoken) -> dict[str, Any]:
    return asdict(figures)
