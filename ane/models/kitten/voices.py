"""The voice tables: an .npz with one array of styles for each voice, by length of the text."""

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ane.system.errors import UserError

STYLE_WIDTH = 256
PUBLISHED_DEFAULT = "expr-voice-5-m"


@dataclass(frozen=True)
class KittenVoices:
    """Styles and speeds by voice.

    Attributes:
        tables: name → (rows, 256) float32; row n is the style for a chunk of n characters.
        aliases: friendly name → name of a table.
        speed_priors: name of a table → factor of the speed.
    """

    tables: Mapping[str, np.ndarray]
    aliases: Mapping[str, str] = field(default_factory=dict)
    speed_priors: Mapping[str, float] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Every name that ``resolve`` knows, friendly names first."""
        return [*self.aliases, *(name for name in self.tables if name not in self.aliases)]

    @property
    def default(self) -> str:
        """The voice that the published code speaks with; a model that lacks it: its first one."""
        return PUBLISHED_DEFAULT if PUBLISHED_DEFAULT in self.tables else next(iter(self.tables))

    def resolve(self, voice: str | None) -> str:
        """The name of a voice's table; None: the default. Raises UserError when no voice has that name."""
        name = self.default if voice is None else self.aliases.get(voice, voice)
        if name not in self.tables:
            raise UserError(f"no voice is named {voice!r}; there are {', '.join(self.names)}")
        return name

    def style_row(self, name: str, characters: int) -> int:
        """The row for a chunk of that many characters."""
        return min(characters, len(self.tables[name]) - 1)

    def style(self, name: str, row: int) -> np.ndarray:
        """(1, 256) float32."""
        return self.tables[name][row:row + 1]

    def speed(self, name: str, speed: float) -> np.ndarray:
        """The graph's input for a speed, which the voice's own factor changes: (1,) float32."""
        return np.array([speed * self.speed_priors.get(name, 1.0)], np.float32)


def read_voices(path: Path, aliases: Mapping[str, str], speed_priors: Mapping[str, float]) -> KittenVoices:
    """Read the tables of an .npz; no pickles.

    Raises:
        UserError: the file is missing or damaged, an array is no table of styles, or an alias names no table.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            tables = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise UserError(f"{path} is missing: download the model again") from None
    # what numpy, zipfile and zlib raise for archives that are cut off, altered or of another kind
    except (OSError, EOFError, ValueError, AttributeError, KeyError, NotImplementedError, zipfile.BadZipFile,
            zlib.error) as error:
        raise UserError(f"{path} cannot be read as voices ({error}): it is damaged; download the model "
                        "again") from error
    if not tables:
        raise UserError(f"{path} has no voices: download the model again")
    for name, table in tables.items():
        if table.ndim != 2 or table.shape[1] != STYLE_WIDTH or not len(table) or table.dtype.kind != "f":
            raise UserError(f"{path}: voice {name} must be rows of {STYLE_WIDTH} floats, not {table.dtype} "
                            f"{table.shape}")
        if not np.isfinite(table).all():
            raise UserError(f"{path}: voice {name} has NaN or infinite values: the file is damaged")
    for alias, name in aliases.items():
        if name not in tables:
            raise UserError(f"{path} has no voice {name}, which the alias {alias} of config.json names")
    return KittenVoices({name: table.astype(np.float32) for name, table in tables.items()}, aliases, speed_priors)
