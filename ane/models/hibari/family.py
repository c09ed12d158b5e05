"""Declare hibari to bundles, backends and commands: its stages (named network calls) and how packages run them.

Dimension names: B batch, T phonemes, S slow frames (40 Hz), L frames (80 Hz), P channels of the states for the prosody,
C channels of the states for the sound. A mask is 1 at the positions of a row and 0 at the padding after them, where the
output has no meaning.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ane.backends.base import ModelStages, Stage, TensorSpec
from ane.backends.fixed_shapes import Rows
from ane.bundles.family import ModelFamily
from ane.models.hibari.config import MAX_GRAPH, NETWORKS, PITCH_SCALE
from ane.models.hibari.settings import HibariSettings
from ane.models.vocoders.harmonic_noise import BINS, SPECTRA
from ane.system.errors import UserError
from ane.system.file_gate import read_regular

if TYPE_CHECKING:
    from ane.bundles.contents import Contents
    from ane.bundles.hub import Snapshot

REPOSITORY = "maureesewilliams/hibari"
TABLES = "pn.text.emb.weight", "m.text.emb.weight"  # embeddings of the phonemes, for the prosody and for the sound


def two_frames(pairs: np.ndarray) -> np.ndarray:
    """Split slow frames (B, S, 4), as packages return them, into frames (B, 2S, 2).

    A slow frame has two values of f0 in units of 100 Hz, then two of energy. A frame has f0 in Hz and energy.
    """
    B, S, _ = pairs.shape
    prosody = pairs.reshape(B, S, 2, 2).transpose(0, 1, 3, 2).reshape(B, 2 * S, 2)
    return prosody * np.array([PITCH_SCALE, 1], np.float32)


STAGES = {
    # The output's channels are the states for the prosody, then the states for the sound, then the log durations.
    "text": Stage(
        "hibari",
        {"ids": TensorSpec(("B", "T"), "int64"), "mask": TensorSpec(("B", "T"))},
        TensorSpec(("B", "T", "P+C+1")),
        "text",
        Rows("symbols", tables=TABLES),
    ),
    # Predicts f0 in Hz and energy. The host has repeated each phoneme's state for the phoneme's duration.
    "prosody": Stage(
        "hibari",
        {"states": TensorSpec(("B", "S", "P")), "mask": TensorSpec(("B", "S"))},
        TensorSpec(("B", "2S", 2)),
        "prosody",
        Rows("frames", finish=two_frames),
    ),
    "spectra": Stage(
        "hibari",
        {"frames": TensorSpec(("B", "L", "C+2")), "mask": TensorSpec(("B", "L"))},
        TensorSpec(("B", "L", SPECTRA * BINS)),
        "spectra",
        Rows("frames"),
    ),
}


class HibariFamily(ModelFamily):
    name, title = "hibari", "heart"
    networks, stages, settings = NETWORKS, ModelStages(STAGES), HibariSettings
    repositories = f"^{REPOSITORY}(/|$)"

    def recognises(self, path: Path) -> bool:
        if path.suffix != ".onnx" or not path.is_file() or path.stat().st_size > MAX_GRAPH:
            return False
        content = read_regular(path, MAX_GRAPH)
        return all(key in content for key in (b"pn.dur.0.weight", b"m.dec_in.weight"))

    def import_checkpoints(self, path: Path) -> "Contents":
        try:
            from ane.models.hibari.published import import_published
        except ModuleNotFoundError as error:
            raise UserError(f"{path} is an ONNX graph, which needs {error.name}: pip install '.[onnx]'") from error

        return import_published(path)

    def source_files(self, path: Path) -> dict[str, Path]:
        return {path.name: path}

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> "Snapshot":
        from ane.bundles.hub import Snapshot, download_files

        file = repository.removeprefix(REPOSITORY).strip("/")
        if not file:
            raise UserError(
                f"{repository} has one file per voice: name one, such as {REPOSITORY}/voices/am_fenrir_v2.int8.onnx"
            )
        files = download_files(REPOSITORY, (file,), revision=revision, kind="hibari", progress=progress)
        return Snapshot(files.revision, files.directory / file, files.files, files.licence)


FAMILY = HibariFamily()
