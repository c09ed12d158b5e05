"""Declare Whisper to bundles and backends, with its stages (named network calls).

Dimension names: B batch, M mel bands, L mel frames, N states (L / 2), D width.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from ane.backends.base import DecoderStage, ModelStages, Stage, TensorSpec
from ane.backends.fixed_shapes import Exact
from ane.bundles.family import ModelFamily
from ane.bundles.hub import Snapshot, download_files
from ane.models.whisper.alignment_heads import GENERATION
from ane.models.whisper.checkpoints import (
    CONFIG,
    CTRANSLATE2,
    INDEX,
    WEIGHTS,
    import_whisper,
    is_whisper,
    shard_names,
    whisper_files,
)
from ane.models.whisper.networks import WHISPER_NETWORKS

ENCODER = Stage(
    "encoder",
    {"mel": TensorSpec(("B", "M", "L"))},
    TensorSpec(("B", "N", "D")),
    packaged=Exact("states", "states", per=2, sequence=True),
)
TABLES = {"token": "token_embedding.weight", "position": "positional_embedding"}
WHISPER_STAGES = ModelStages({"encoder": ENCODER}, DecoderStage("decoder", TABLES, tied=("token",)))

# Files that the import uses if they are in the folder of the weights.
BESIDE = (CONFIG, INDEX, CTRANSLATE2, GENERATION, "tokenizer.json", "vocab.json", "merges.txt")


class WhisperFamily(ModelFamily):
    name, title = "whisper", "Whisper"
    networks, stages = WHISPER_NETWORKS, WHISPER_STAGES
    data = frozenset({"tokenizer"})
    repositories = "whisper"
    recognises, import_checkpoints = staticmethod(is_whisper), staticmethod(import_whisper)  # type: ignore[assignment]

    def source_files(self, path: Path) -> dict[str, Path]:
        _, folder, files = whisper_files(path)
        beside = (folder / name for name in (WEIGHTS, *BESIDE))
        return {file.name: file for file in (*files, *beside) if file.is_file()}

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Snapshot:
        """Download the weights, which are one file or the shards that an index lists, and the files next to them."""
        get = partial(download_files, repository, kind=self.title, progress=progress)
        found = get((CONFIG,), (WEIGHTS, *BESIDE), revision=revision)
        if not {WEIGHTS, CTRANSLATE2}.isdisjoint(found.files):
            return found
        # If the repository has no index either, the download fails with an error that says that WEIGHTS is missing.
        names = shard_names(found.directory / INDEX) if INDEX in found.files else [WEIGHTS]
        return replace(found, files={**found.files, **get(names, revision=found.revision).files})


FAMILY = WhisperFamily()
