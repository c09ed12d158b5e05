"""Declare Kokoro to bundles and commands, and read its files in the layouts that others publish.

    kokoro-onnx         *.onnx and voices*.bin (or .npz, an archive with one array per voice) in one folder
    onnx-community      onnx/*.onnx, voices/VOICE.bin (float32), tokenizer.json
    a bundle            model.onnx, voices.npz, config.json

The vocabulary comes from config.json, vocab.json or tokenizer.json. If no file has it, it comes from the metadata of
the graph. If the metadata has no vocabulary either, ``VOCABULARY`` is used.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from ane.bundles import Bundle
from ane.bundles.contents import Contents
from ane.bundles.hub import Snapshot, download_files
from ane.models.styletts.graph import CONFIG_FILE, StyleFamily, with_durations
from ane.models.styletts.graph import VOCABULARY as KITTEN_VOCABULARY
from ane.models.styletts.settings import KokoroSettings
from ane.models.styletts.voices import KITTEN_DEFAULT, StyleVoices, read_tables
from ane.system.errors import UserError
from ane.system.files import read_json

GRAPH_FILE, VOICES_FILE = "model.onnx", "voices.npz"
VOCABULARY_FILES = CONFIG_FILE, "vocab.json", "tokenizer.json"
DEFAULT_VOICE = "af_heart"
METADATA = "kokoro_config"  # key in the graph's metadata under which the vocabulary may be

# The ids of Kokoro 1.0 (kokoro_onnx/config.json of 0.6.1). They differ from KittenTTS's only in these 14 symbols.
VOCABULARY = {
    character: KITTEN_VOCABULARY[character]
    for character in (
        ";:,.!?—… IOQSTWYabcdefhijklmnopqrstuvwxyzɑɐɒæβɔɕçɖðʤəɚɛɜɟɡɥɨɪʝɯɰŋɳɲɴøɸθœɹɾɻʁɽʂʃʈʧʊʋʌɣɤχʎʒʔˈˌːʰʲ↓→↗↘ᵻ"
    )
} | {
    '"': 11,
    "(": 12,
    ")": 13,
    "“": 14,
    "”": 15,
    "\u0303": 17,
    "ʣ": 18,
    "ʥ": 19,
    "ʦ": 20,
    "ʨ": 21,
    "ᵝ": 22,
    "ꭧ": 23,
    "A": 24,
    "ᵊ": 42,
}


def import_kokoro(path: Path, voices: Path | None = None) -> Contents:
    """Read the model in a folder, or a graph and the files next to it.

    Raises:
        UserError: The graph or the voices are missing, several files may be the graph, or a file is damaged.
    """
    folder, graph, tables = find_files(path, voices)
    content, archive = with_durations(graph), BytesIO()
    metadata = FAMILY.check_graph(content, graph)
    np.savez(archive, **read_voices(tables).tables)  # type: ignore[arg-type]
    vocabulary = json.dumps({"vocab": find_vocabulary(folder, metadata)}, ensure_ascii=False) + "\n"
    return Contents(
        "kokoro",
        folder,
        files={
            "config": (CONFIG_FILE, vocabulary.encode()),
            "graph": (GRAPH_FILE, content),
            "voices": (VOICES_FILE, archive.getvalue()),
        },
    )


def read_voices(path: Path) -> StyleVoices:
    """Read the voices in a file or a folder. Raises UserError if they are missing, damaged, or KittenTTS's voices."""
    tables = read_tables(path)
    if KITTEN_DEFAULT in tables:
        raise UserError(
            f"{path} has the voices of a KittenTTS model, whose {CONFIG_FILE} is missing next to it: download the "
            "model again"
        )
    return StyleVoices(tables, DEFAULT_VOICE)


def find_vocabulary(folder: Path, metadata: Mapping[str, str]) -> dict[str, int]:
    """Find the vocabulary (character to id) in a file of the folder, in the graph's metadata, or in ``VOCABULARY``.

    Raises:
        UserError: A file is damaged.
    """
    for name in VOCABULARY_FILES:
        if (folder / name).is_file() and (vocabulary := vocabulary_of(read_json(folder / name))):
            return vocabulary
    config = metadata.get(METADATA)
    return json.loads(config)["vocab"] if config else VOCABULARY


def find_files(path: Path, voices: Path | None = None) -> tuple[Path, Path, Path]:
    """Find the folder, the ONNX graph and the voices of a Kokoro model.

    Raises:
        UserError: The graph or the voices are missing, or several files may be the graph.
    """
    if not path.exists():
        raise UserError(f"{path} is missing: download the model again")
    folder = path if path.is_dir() else path.parent
    if folder.name == "onnx" and path.is_file():
        folder = folder.parent
    graphs = sorted(graphs_in(folder)) if path.is_dir() else [path]
    if not graphs:
        raise UserError(f"{folder} has no .onnx file, so it is not a Kokoro model: download the model again")
    chosen = graphs[0] if len(graphs) == 1 else next((file for file in graphs if file.name == GRAPH_FILE), None)
    if chosen is None:
        raise UserError(f"{folder} has the graphs {', '.join(file.name for file in graphs)}: name one of these files")
    tables = voices or next(voices_in(folder), None)
    if tables is None:
        raise UserError(
            f"there are no voices next to {chosen} (voices*.bin, *.npz or a folder voices): give their path with voices"
        )
    return folder, chosen, tables


def graphs_in(folder: Path) -> list[Path]:
    """List the graphs in a folder. If there are none, list the graphs in its subfolder ``onnx``."""
    return [*folder.glob("*.onnx")] or [*folder.glob("onnx/*.onnx")]


def voices_in(folder: Path) -> Iterator[Path]:
    """Yield paths in a folder that may have voices: the subfolder "voices", and files for several voices."""
    if any(folder.glob("voices/*.bin")):
        yield folder / "voices"
    for pattern in ("voices*.npz", "voices*.bin", "*.npz"):
        yield from sorted(folder.glob(pattern))


def vocabulary_of(content: Any) -> dict[str, int] | None:
    """Return the vocabulary in the content of a JSON file, or ``None`` if there is none.

    The vocabulary is the object "vocab", at the top level or in the object "model". The object must map characters to
    ids.
    """
    if not isinstance(content, dict):
        return None
    inner = content.get("model")
    vocabulary = content.get("vocab") or (inner.get("vocab") if isinstance(inner, dict) else None)
    valid = (
        isinstance(vocabulary, dict)
        and vocabulary
        and all(len(character) == 1 and type(number) is int for character, number in vocabulary.items())
    )
    return vocabulary if valid else None


VOICES = """alloy aoede bella heart jessica kore nicole nova river sarah sky
            adam echo eric fenrir liam michael onyx puck santa  alice emma isabella lily  daniel fable george lewis"""
GROUPS = ("af", 11), ("am", 9), ("bf", 4), ("bm", 4)  # prefix (American or British, female or male), and its voices
REQUIRED = "onnx/model.onnx", f"voices/{DEFAULT_VOICE}.bin"  # files that a repository must have


class KokoroFamily(StyleFamily):
    name, title = "kokoro", "Kokoro"
    settings = KokoroSettings
    repositories, extra = "kokoro", "onnx"
    import_checkpoints = staticmethod(import_kokoro)  # type: ignore[assignment]

    def recognises(self, path: Path) -> bool:
        if path.is_file():
            return path.suffix == ".onnx"
        return bool(graphs_in(path)) and any(voices_in(path))

    def source_files(self, path: Path, voices: Path | None = None) -> dict[str, Path]:  # type: ignore[override]
        folder, graph, tables = find_files(path, voices)
        files = sorted(tables.glob("*.bin")) if tables.is_dir() else [tables]
        vocabularies = [file for name in VOCABULARY_FILES if (file := folder / name).is_file()]
        return {
            file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.name: file
            for file in (*vocabularies, graph, *files)
        }

    def voices(self, model: Bundle) -> StyleVoices:
        return read_voices(model.file("voices"))

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Snapshot:
        groups = [group for group, count in GROUPS for _ in range(count)]
        voices = [f"voices/{group}_{name}.bin" for group, name in zip(groups, VOICES.split(), strict=True)]
        return download_files(
            repository,
            REQUIRED,
            (REQUIRED[0], "tokenizer.json", *voices),
            revision=revision,
            kind=self.title,
            progress=progress,
        )


FAMILY = KokoroFamily()
