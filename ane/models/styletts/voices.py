"""The voice tables of a model: styles by the length of what is spoken."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ane.system.errors import NotFoundError, UserError
from ane.system.file_gate import check_regular, read_regular

STYLE_WIDTH = 256
KITTEN_DEFAULT = "expr-voice-5-m"  # the voice that the published code of KittenTTS speaks with
MAX_TABLES = 256 << 20  # bytes of all voices of a model: those of Kokoro have 28 MB


@dataclass(frozen=True)
class StyleVoices:
    """Styles and speeds by voice."""

    tables: Mapping[str, np.ndarray]  # name → (rows, 256) float32; a row for each length
    preferred: str  # the voice that speaks when none is named, if there is one of that name
    aliases: Mapping[str, str] = field(default_factory=dict)  # friendly name → name of a table
    speed_priors: Mapping[str, float] = field(default_factory=dict)  # name of a table → factor of the speed

    @property
    def names(self) -> list[str]:
        """Every name that ``resolve`` knows, friendly names first."""
        return [*self.aliases, *(name for name in self.tables if name not in self.aliases)]

    @property
    def default(self) -> str:
        """The preferred voice, else the first one."""
        return self.preferred if self.preferred in self.tables else next(iter(self.tables))

    def resolve(self, voice: str | None) -> str:
        """The name of a voice's table; None: the default. Raises UserError when no voice has that name."""
        name = self.default if voice is None else self.aliases.get(voice, voice)
        if name not in self.tables:
            raise NotFoundError(f"no voice is named {voice!r}; there are {', '.join(self.names)}")
        return name

    def style(self, name: str, row: int) -> tuple[int, np.ndarray]:
        """A row that the table has, the last one for any beyond it, and its style, (1, 256) float32."""
        row = min(row, len(self.tables[name]) - 1)
        return row, self.tables[name][row : row + 1]

    def speed(self, name: str, speed: float) -> np.ndarray:
        """The graph's input for a speed, which the voice's own factor changes: (1,) float32."""
        return np.array([speed * self.speed_priors.get(name, 1.0)], np.float32)


def read_tables(path: Path) -> dict[str, np.ndarray]:
    """Tables (rows, 256) float32 by voice: of an .npz (no pickles), or a folder with a file VOICE.bin of each. Raises
    UserError: the file is missing or damaged, or an array is no table of styles.
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
                    raise ValueError(f"it states more than {MAX_TABLES >> 20} MB")
                tables = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise UserError(f"{path} is missing: download the model again") from None
    except Exception as error:  # numpy, zipfile and zlib raise any exception for an archive that is damaged
        raise UserError(
            f"{path} cannot be read as voices ({error}): it is damaged; download the model again"
        ) from error
    if not tables:
        raise UserError(f"{path} has no voices: download the model again")
    return {name: checked_table(table, f"{path}: voice {name}") for name, table in tables.items()}


def checked_table(table: np.ndarray, where: str) -> np.ndarray:
    """A table (rows, 256) or (rows, 1, 256), the former as float32. Raises UserError for anything else."""
    if not isinstance(table, np.ndarray):  # a member of an archive that has no header of an array
        raise UserError(f"{where} is not an array: the file is damaged")
    flat = table[:, 0] if table.ndim == 3 and table.shape[1] == 1 else table
    if flat.ndim != 2 or flat.shape[1] != STYLE_WIDTH or not len(flat) or flat.dtype.kind != "f":
        raise UserError(f"{where} must be rows of {STYLE_WIDTH} floats, not {table.dtype} {table.shape}")
    if not np.isfinite(flat).all():
        raise UserError(f"{where} has NaN or infinite values: the file is damaged")
    return flat.astype(np.float32)
