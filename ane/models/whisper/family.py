"""What Whisper declares to bundles and backends."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ane.bundles.family import ModelFamily
from ane.bundles.hub import Snapshot, download_files
from ane.bundles.model import Model
from ane.models.whisper.alignment_heads import GENERATION, check_alignment_heads
from ane.models.whisper.checkpoints import (
    CONFIG,
    CTRANSLATE2,
    INDEX,
    WEIGHTS,
    WhisperCheckpoint,
    is_whisper,
    shard_names,
)
from ane.models.whisper.networks import WHISPER_NETWORKS
from ane.models.whisper.stages import WHISPER_STAGES
from ane.system.errors import UserError

if TYPE_CHECKING:       # the transcriber imports libraries for sound, which conversions do not need
    from ane.backends.base import Backend
    from ane.models.whisper.transcription import Transcriber

# width that attention splits evenly among heads, and the number of heads, by network
HEADS = {"encoder": ("n_audio_state", "n_audio_head"), "decoder": ("n_text_state", "n_text_head")}


def check_size(name: str, value: Any, official: Any, where: str) -> None:
    """Raise UserError unless the JSON ``value`` is a positive integer, as all sizes of Whisper are, or heads."""
    if name == "alignment_heads":       # ``check_heads`` knows how many there are
        check_alignment_heads(value, math.inf, math.inf, where)
    elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{where}: {name} must be like {official!r}, not {value!r}")


def check_heads(network: str, config: Any, where: str) -> None:
    """Raise UserError when the heads do not divide the width, or words are to be timed by a head that is not there."""
    width, heads = (getattr(config, name) for name in HEADS[network])
    if width % heads:
        raise UserError(f"{where}: {HEADS[network][0]} {width} cannot be split among {heads} {HEADS[network][1]}")
    if network == "decoder":
        check_alignment_heads(config.alignment_heads, config.n_text_layer, heads, where)


def download_whisper(repository: str, revision: str | None, progress: Callable[[str], None]) -> Snapshot:
    """Download a repository's files, weights in one file (CTranslate2's too) or in the shards that its index names.

    Raises:
        UserError: as ``ane.bundles.hub.download_files``, or a damaged index.
    """
    def download(required: Sequence[str], files: Sequence[str] | None = None, at: str | None = revision) -> Snapshot:
        return download_files(repository, required, files, revision=at, kind=FAMILY.title, progress=progress)

    found = download((CONFIG,), FAMILY.files)
    if not {WEIGHTS, CTRANSLATE2}.isdisjoint(found.files):
        return found
    names = shard_names(found.directory / INDEX) if INDEX in found.files else [WEIGHTS]     # the latter is an error
    return replace(found, files={**found.files, **download(names, at=found.revision).files})


class WhisperFamily(ModelFamily):
    name, title = "whisper", "Whisper"
    networks, stages = WHISPER_NETWORKS, WHISPER_STAGES
    transcribes = True
    import_options = frozenset({"precision"})
    data = frozenset({"tokenizer"})
    package_formats = frozenset(("coreml", "onnx"))
    extra_files = (CONFIG, INDEX, CTRANSLATE2, GENERATION, "tokenizer.json", "vocab.json", "merges.txt")
    repository, repositories = "openai/whisper-base.en", "whisper"
    usage = "ane transcribe FILE --model"

    def synthesizer(self, model: Model, backend: "Backend") -> NoReturn:
        raise UserError(f"{model.name} is a Whisper model: it transcribes speech (ane transcribe) and cannot speak")

    def check_option(self, model: Model, name: str) -> None:
        self.synthesizer(model, None)

    def transcriber(self, model: Model, backend: "Backend") -> "Transcriber":
        from ane.models.whisper.transcription import Transcriber

        return Transcriber(model, backend)

    def recognises(self, path: Path) -> bool:
        return is_whisper(path)

    def open_checkpoints(self, path: Path, arguments: Mapping[str, Any] | None, origin: str, **options: Any) -> Model:
        """A checkpoint of any layout. Their sizes are their own, so ``arguments`` must be empty."""
        if arguments:
            raise UserError(f"{origin}: a Whisper checkpoint states its own sizes: leave the config out")
        return WhisperCheckpoint(path)

    def source_files(self, path: Path, **options: Any) -> dict[str, Path]:
        """The files of the checkpoint and those of its tokenizer beside it, by name."""
        checkpoint = WhisperCheckpoint(path)
        beside = (checkpoint.folder / name for name in self.files)
        return {file.name: file for file in (*checkpoint.files, *beside) if file.is_file()}

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Snapshot:
        return download_whisper(repository, revision, progress)

    check_value, check_config = staticmethod(check_size), staticmethod(check_heads)


FAMILY = WhisperFamily()
