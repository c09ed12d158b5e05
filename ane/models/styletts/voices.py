"""Read a model's voices. A voice is a table with a style vector for each length of text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ane.system.errors import NotFoundError, UserError
from ane.system.file_gate import check_regular, read_regular

STYLE_WIDTH = 256
KITTEN_DEFAULT = "expr-voice-5-m"  # default voice in KittenTTS's own code
MAX_TABLES = 256 << 20  # largest size of all voices together, in bytes; Kokoro's voices have 28 MB


@dataclass(frozen=True)
class StyleVoices:
    """The voices of a model.

    Attributes:
        tables: Table of each voice, (rows, 256) float32. A row is the style for one length of text.
        preferred: Name of the default voice. The model may lack it.
        aliases: Name of the table, by friendly name.
        speed_priors: Factor by which to multiply the speed, by name of the table.
    """

    tables: Mapping[str, np.ndarray]
    preferred: str
    aliases: Mapping[str, str] = field(default_factory=dict)
    speed_priors: Mapping[str, float] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names that ``resolve`` accepts. Friendly names come first."""
        return [*self.aliases, *(name for name in self.tables if name not in self.aliases)]

    @property
    def default(self) -> str:
        """The name of the preferred voice, or of the first voice if the model lacks the preferred one."""
        return self.preferred if self.preferred in self.tables else next(iter(self.tables))

    def resolve(self, voice: str | None) -> str:
        """Return the name of the table for a voice's name or alias. ``None`` means the default voice.

        Raises:
            NotFoundError: No voice has this name.
        """
        name = self.default if voice is None else self.aliases.get(voice, voice)
        if name not in self.tables:
            raise NotFoundError(f"no voice is named {voice!r}: the voices are {', '.join(self.names)}")
        return name

    def style(self, name: str, row: int) -> tuple[int, np.ndarray]:
        """Return a row's number and its style, (1, 256) float32. If the table has no such row, return its last row."""
        row = min(row, len(self.tables[name]) - 1)
        return row, self.tables[name][row : row + 1]

    def speed(self, name: str, speed: float) -> np.ndarray:
        """Multiply a speed by the voice's factor. Returns the graph's input, (1,) float32."""
        return np.array([speed * self.speed_priors.get(name, 1.0)], np.float32)


def read_tables(path: Path) -> dict[str, np.ndarray]:
    """Read the tables of all voices, each (rows, 256) float32.

    Args:
        path: Path of an .npz file (without pickles), or of a folder with one file VOICE.bin per voice.

    Raises:
        UserError: The file is missing or damaged, or an array is not a table of styles.
    """
    try:
        if path.is_dir():
            tables = {
                file.stem: np.frombuffer(read_regular(file, MAX_TABLES), np.float32).reshape(-1, STYLE_WIDTH)
                for file in sorted(path.glob("*.bin"))
            }
        else:
            check_regular(path)
            with np.load(path, allow_pickle=False) as archive:
                if sum(part.file_size for part in archive.zip.infolist()) > MAX_TABLES:
                    raise ValueError(f"it claims more than {MAX_TABLES >> 20} MB")
                tables = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise UserError(f"{path} is missing: download the model again") from None
    except Exception as error:  # numpy, zipfile and zlib raise any exception for a damaged archive
        raise UserError(f"{path} cannot be read as voices ({error}): download the model again") from error
    if not tables:
        raise UserError(f"{path} has no voices: download the model again")
    return {name: checked_table(table, f"{path}: voice {name}") for name, table in tables.items()}


def checked_table(table: np.ndarray, where: str) -> np.ndarray:
    """Convert a table (rows, 256) or (rows, 1, 256) to (rows, 256) float32. Raises UserError for anything else."""
    if not isinstance(table, np.ndarray):  # the file in the archive did not begin with NumPy's header
        raise UserError(f"{where} is not an array: the file is damaged")
    flat = table[:, 0] if table.ndim == 3 and table.shape[1] == 1 else table
    if flat.ndim != 2 or flat.shape[1] != STYLE_WIDTH or not len(flat) or flat.dtype.kind != "f":
        raise UserError(f"{where} must be rows of {STYLE_WIDTH} floats, not {table.dtype} {table.shape}")
    if not np.isfinite(flat).all():
        raise UserError(f"{where} has NaN or infinite values: the file is damaged")
    return flat.astype(np.float32)
