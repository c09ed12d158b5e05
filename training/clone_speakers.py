"""Define the speakers from which a voice encoder learns to tell speakers apart: mixtures of Kokoro's style tables.

A style table of Kokoro makes its decoder speak in one voice. The speakers are the English tables, mixtures of two or
three tables, and mixtures that are moved away from the mean of all tables. Some English tables are held back: these
tables and their mixtures are speakers that the encoder never meets.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from ane.system.errors import UserError
from benchmarks.data_packages import package_folder
from benchmarks.teachers import kokoro_style
from training.trainer import PartSchedule

CONFIG = Path(__file__).parent / "config" / "clone.toml"
TIMBRE = 128  # Kokoro's decoder takes so many columns of a style. The other columns decide durations, pitch and energy
ENGLISH = "af_", "am_", "bf_", "bm_"  # beginnings of the names of English tables


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SpeakerCounts(Strict):
    """Numbers of speakers, recordings and texts. ``training/config/clone.toml`` explains the fields."""

    learned: int
    held_back: int
    held_back_tables: tuple[str, ...]
    recordings: int
    held_back_recordings: int
    texts: int
    different_texts: int
    reach: float


class Gate(Strict):
    """The measurements that a speaker must reach, or the encoder does not learn from this speaker."""

    sentences: int
    distillmos: float
    word_errors: float


class EncoderLosses(Strict):
    rates: tuple[float, ...]
    contrast: float
    temperature: float


class CloneConfig(Strict):
    """What training/config/clone.toml says."""

    seed: int
    speakers: SpeakerCounts
    gate: Gate
    encoder: EncoderLosses
    schedule: PartSchedule


@dataclass(frozen=True)
class MixedSpeaker:
    """A speaker: the shares of style tables in a mixture.

    Attributes:
        name: Name in the names of files.
        held_back: Whether the encoder does not learn from this speaker.
        timbre: Share of each table in the columns that Kokoro's decoder takes. The shares add up to 1, and some are
            negative if the mixture is moved away from the mean of all tables.
        prosody: Share of each table in the other columns.
    """

    name: str
    held_back: bool
    timbre: dict[str, float]
    prosody: dict[str, float]

    def style(self) -> np.ndarray:
        """Mix the style tables, (510, 256) float32."""
        timbre, prosody = (
            sum(share * kokoro_style(table) for table, share in shares.items())
            for shares in (self.timbre, self.prosody)
        )
        return np.concatenate([timbre[:, :TIMBRE], prosody[:, TIMBRE:]], axis=1).astype(np.float32)


def speakers_of(config: CloneConfig, tables: Sequence[str]) -> list[MixedSpeaker]:
    """Choose the speakers: first those that are held back, then those to learn from, in a random order.

    A mixture to learn from has prosody of English tables, and timbre of all tables that are not held back.
    """
    counts = config.speakers
    if unknown := set(counts.held_back_tables) - set(tables):
        raise UserError(f"held_back_tables: Kokoro has no style table {min(unknown)}")
    rng = np.random.default_rng(config.seed)
    learned = [table for table in tables if table not in counts.held_back_tables]
    speakers = []
    for held_back, timbres, count in (
        (True, counts.held_back_tables, counts.held_back),
        (False, learned, counts.learned),
    ):
        prosodies = [table for table in timbres if table.startswith(ENGLISH)]
        shares = [({table: 1.0}, {table: 1.0}) for table in prosodies[:count]]
        while len(shares) < count:
            shares.append(
                (moved(mixture(timbres, rng), timbres, rng.uniform(1, counts.reach)), mixture(prosodies, rng))
            )
        order = rng.permutation(count) if not held_back else range(count)
        name = "held" if held_back else "learned"
        speakers += [MixedSpeaker(f"{name}{place:03d}", held_back, *shares[index]) for place, index in enumerate(order)]
    return speakers


def mixture(tables: Sequence[str], rng: np.random.Generator) -> dict[str, float]:
    chosen = rng.choice(len(tables), min(len(tables), int(rng.integers(2, 4))), replace=False)
    return {
        tables[index]: float(share) for index, share in zip(chosen, rng.dirichlet(np.ones(len(chosen))), strict=True)
    }


def moved(shares: dict[str, float], tables: Sequence[str], reach: float) -> dict[str, float]:
    """Move a mixture away from the mean of all tables, to ``reach`` times its distance."""
    return {table: reach * shares.get(table, 0.0) - (reach - 1) / len(tables) for table in tables}


def kokoro_tables() -> list[str]:
    """Return the names of Kokoro's 54 style tables."""
    return sorted(path.stem for path in (package_folder("kokoro-js") / "package" / "voices").glob("*.bin"))


def passes(gate: Gate, judged: dict[str, float]) -> bool:
    """Return whether the measurements of a speaker (``training.clone_speech.judge_speakers``) pass the gate."""
    return judged["distillmos"] >= gate.distillmos and judged["errors"] <= gate.word_errors * judged["words"]


def read_config(path: Path) -> CloneConfig:
    """Read the configuration. Raises UserError if it is missing or wrong."""
    try:
        return CloneConfig(**tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:  # pydantic's and tomllib's errors are ValueErrors
        raise UserError(f"{path} does not describe speakers to clone: {str(error).splitlines()[0]}") from error
