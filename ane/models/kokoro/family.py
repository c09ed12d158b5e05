"""What Kokoro declares to bundles and commands, and the files of a model as they are published, and those of a bundle.

    kokoro-onnx         *.onnx and voices*.bin (or .npz, an archive of one array for each voice) in one folder
    onnx-community      onnx/*.onnx, voices/VOICE.bin (float32), tokenizer.json
    a bundle            model.onnx, voices.npz, config.json

The vocabulary is that of config.json, vocab.json or tokenizer.json, else of the graph's metadata, else ``VOCABULARY``.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ane.backends.choosing import load_backend
from ane.bundles.hub import Snapshot, download_files
from ane.models.styletts.bundle import CONFIG_FILE, StyleFamily, StyleModel, with_durations
from ane.models.styletts.bundle import VOCABULARY as KITTEN_VOCABULARY
from ane.models.styletts.settings import KokoroSettings
from ane.models.styletts.voices import KITTEN_DEFAULT, StyleVoices, read_tables
from ane.system.errors import UserError
from ane.system.files import read_json

GRAPH_FILE, VOICES_FILE = "model.onnx", "voices.npz"
VOCABULARY_FILES = CONFIG_FILE, "vocab.json", "tokenizer.json"
DEFAULT_VOICE = "af_heart"
METADATA = "kokoro_config"      # of the graph, with the vocabulary

# Kokoro 1.0's ids: those of KittenTTS but for 14, which that does not have there (kokoro_onnx/config.json of 0.6.1)
VOCABULARY = {character: KITTEN_VOCABULARY[character] for character in (
    ";:,.!?—… IOQSTWYabcdefhijklmnopqrstuvwxyzɑɐɒæβɔɕçɖðʤəɚɛɜɟɡɥɨɪʝɯɰŋɳɲɴøɸθœɹɾɻʁɽʂʃʈʧʊʋʌɣɤχʎʒʔˈˌːʰʲ↓→↗↘ᵻ")} | {
    '"': 11, "(": 12, ")": 13, "“": 14, "”": 15, "\u0303": 17, "ʣ": 18, "ʥ": 19, "ʦ": 20, "ʨ": 21, "ᵝ": 22, "ꭧ": 23,
    "A": 24, "ᵊ": 42}


@dataclass(frozen=True)
class KokoroModel(StyleModel):
    """A model whose files are where ``find_model`` found them."""

    kind, extra = "kokoro", "onnx"

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Characters and their ids. Raises UserError for a damaged file."""
        for name in VOCABULARY_FILES:
            if (self.folder / name).is_file() and (found := vocabulary_of(read_json(self.folder / name))):
                return found
        engine: Any = load_backend("auto", self)
        stated = engine.graph(None).metadata.get(METADATA)
        return json.loads(stated)["vocab"] if stated else VOCABULARY

    def graph_content(self) -> bytes:
        return with_durations(self.graph)

    @property
    def files(self) -> dict[str, Path]:
        voices = sorted(self.voices_path.glob("*.bin")) if self.voices_path.is_dir() else [self.voices_path]
        stated = [file for name in VOCABULARY_FILES if (file := self.folder / name).is_file()]
        return {file.relative_to(self.folder).as_posix() if file.is_relative_to(self.folder) else file.name: file
                for file in (*stated, self.graph, *voices)}

    def write_files(self, folder: Path) -> list[str]:
        (folder / GRAPH_FILE).write_bytes(with_durations(self.graph))
        np.savez(folder / VOICES_FILE, **self.read_voices().tables)     # type: ignore[arg-type]
        (folder / CONFIG_FILE).write_text(json.dumps({"vocab": self.vocabulary}, ensure_ascii=False) + "\n",
                                          encoding="utf-8")
        return [CONFIG_FILE, GRAPH_FILE, VOICES_FILE]

    def read_voices(self) -> StyleVoices:
        tables = read_tables(self.voices_path)
        if KITTEN_DEFAULT in tables:
            raise UserError(f"{self.voices_path} has the voices of KittenTTS, and there is no {CONFIG_FILE} of such a "
                            "model beside it: download the model again")
        return StyleVoices(tables, DEFAULT_VOICE)


def find_model(path: Path, voices: Path | None = None) -> KokoroModel:
    """The model in a folder, or that of a graph with the files beside it. Raises UserError: no graph or several, or no
    voices."""
    if not path.exists():
        raise UserError(f"{path} is missing: download the model again")
    folder = path if path.is_dir() else path.parent
    if folder.name == "onnx" and path.is_file():
        folder = folder.parent
    graphs = sorted(graphs_in(folder)) if path.is_dir() else [path]
    if not graphs:
        raise UserError(f"{folder} has no .onnx file: it is no Kokoro model")
    chosen = graphs[0] if len(graphs) == 1 else next((file for file in graphs if file.name == GRAPH_FILE), None)
    if chosen is None:
        raise UserError(f"{folder} has the graphs {', '.join(file.name for file in graphs)}: name one of these files")
    found = voices or next(voices_in(folder), None)
    if found is None:
        raise UserError(f"there are no voices beside {chosen}: a Kokoro model has voices*.bin, *.npz or the folder "
                        "voices; name them with voices")
    return KokoroModel(folder, folder.name, chosen, found)


def graphs_in(folder: Path) -> list[Path]:
    """The graphs of a folder, else those in its folder ``onnx``."""
    return [*folder.glob("*.onnx")] or [*folder.glob("onnx/*.onnx")]


def voices_in(folder: Path) -> Iterator[Path]:
    """Where the voices of a folder may be."""
    if any(folder.glob("voices/*.bin")):
        yield folder / "voices"
    for pattern in ("voices*.npz", "voices*.bin", "*.npz"):
        yield from sorted(folder.glob(pattern))


def vocabulary_of(content: Any) -> dict[str, int] | None:
    """The object "vocab" of a JSON file, or of its object "model", if it maps characters to ids."""
    if not isinstance(content, dict):
        return None
    inner = content.get("model")
    found = content.get("vocab") or (inner.get("vocab") if isinstance(inner, dict) else None)
    known = isinstance(found, dict) and found and all(
        len(character) == 1 and type(number) is int for character, number in found.items())
    return found if known else None


VOICES = """alloy aoede bella heart jessica kore nicole nova river sarah sky
            adam echo eric fenrir liam michael onyx puck santa  alice emma isabella lily  daniel fable george lewis"""
GROUPS = ("af", 11), ("am", 9), ("bf", 4), ("bm", 4)     # American and British, female and male; how many of VOICES
REQUIRED = "onnx/model.onnx", f"voices/{DEFAULT_VOICE}.bin"         # of a repository


class KokoroFamily(StyleFamily):
    name, title = "kokoro", "Kokoro"
    settings = KokoroSettings
    repositories = "kokoro"

    def recognises(self, path: Path) -> bool:
        if path.is_file():
            return path.suffix == ".onnx"
        return bool(graphs_in(path)) and any(voices_in(path))

    def open_checkpoints(self, path: Path, voices: Path | None = None) -> KokoroModel:     # type: ignore[override]
        return find_model(path, voices)

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Snapshot:
        groups = [group for group, count in GROUPS for _ in range(count)]
        voices = [f"voices/{group}_{name}.bin" for group, name in zip(groups, VOICES.split(), strict=True)]
        return download_files(repository, REQUIRED, (REQUIRED[0], "tokenizer.json", *voices), revision=revision,
                              kind=self.title, progress=progress)


FAMILY = KokoroFamily()
