"""Models of one ONNX graph and tables of voices, and their bundles. They have no PyTorch networks.

    bundle.json     format, model, name, licence, source, created_by, and files: role → file, sha256, bytes
    config.json     KittenTTS: as published; Kokoro: the vocabulary
    *.onnx, *.npz   the graph and the voices

Their stage is one graph from phonemes and a style to sound. Dimension names: T phonemes, S samples at 24 kHz.
"""

import dataclasses
import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from ane.backends.base import FunctionSet, ModelStages, Stage, TensorSpec
from ane.backends.choosing import load_backend
from ane.bundles.family import ModelFamily
from ane.bundles.hashes import FileRecord, check_hash, identity_of, record, size_and_time
from ane.bundles.manifest import DAMAGED, FORMAT, MANIFEST_FILE, bundle_family, read_content
from ane.bundles.model import Model
from ane.bundles.surplus import Surplus
from ane.models.styletts.voices import StyleVoices
from ane.system.checked import read_record
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.version import version

TOKENS = "tokens"                           # what older exports of Kokoro call the input_ids
DURATION = "duration"                       # an output of newer exports
CLIPPED = "/encoder/Clip_output_0"          # the same within older ones of Kokoro
KINDS = {"int64": "tensor(int64)", "float32": "tensor(float)"}      # ONNX Runtime's names of types

# the ids of phonemes of KittenTTS; Kokoro has most of them too (kittentts/onnx_model.py)
PUNCTUATION = ';:,.!?¡¿—…"«»"" '        # the quotation mark three times; the last index of a character counts
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
IPA = ("ɑɐɒæɓʙβɔɕçɗɖðʤəɘɚɛɜɝɞɟʄɡɠɢʛɦɧħɥʜɨɪʝɭɬɫɮʟɱɯɰŋɳɲɴøɵɸθœɶʘɹɺɾɻʀʁɽʂʃʈʧʉʊʋⱱʌɣɤʍχʎʏʑʐʒʔʡʕʢǀǁǂǃ"
       "ˈˌːˑʼʴʰʱʲʷˠˤ˞↓↑→↗↘'\u0329'ᵻ")
SYMBOLS = "$" + PUNCTUATION + LETTERS + IPA                                 # the pad first; 178, of which 175 differ
VOCABULARY = {symbol: index for index, symbol in enumerate(SYMBOLS)}        # character → id


def run_speech(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """``Stage.packaged``. Raises UserError when the graph returns no finite waveform."""
    [graph] = package.functions(stage)
    tokens = TOKENS if TOKENS in graph.inputs else "input_ids"
    outputs = graph(**{tokens if name == "input_ids" else name: array for name, array in inputs.items()})
    wave = next(iter(outputs.values()))
    if wave.ndim == 0 or wave.size != wave.shape[-1]:
        raise UserError(f"the graph returns {wave.shape} instead of one waveform: it is not for one text a run")
    if not np.isfinite(wave).all():
        raise UserError("the graph returns NaN or infinite samples: it or its voices are damaged")
    ids = inputs["input_ids"].size
    found = next((outputs[name].reshape(-1) for name in (DURATION, CLIPPED) if name in outputs), np.zeros(0))
    known = found.size == ids and (found >= 0).all()
    return np.concatenate((found if known else np.zeros(ids), wave.reshape(-1)), dtype=np.float32)


# the output: how long each phoneme is, zeros where the graph does not state it, and then the waveform
SPEECH = Stage("graph", {"input_ids": TensorSpec((1, "T"), "int64"), "style": TensorSpec((1, 256)),
                         "speed": TensorSpec((1,))}, TensorSpec(("T+S",)), packaged=run_speech)


def interface_fault(inputs: dict[str, tuple[str, list[int | str | None]]]) -> str:
    """How the inputs of a graph, type and sizes by name, differ from those of ``SPEECH``; "" when they do not."""
    found = {"input_ids" if name == TOKENS else name: value for name, value in inputs.items()}
    if set(found) != set(SPEECH.inputs):
        return f"its inputs are {', '.join(sorted(found)) or 'none'}, not {', '.join(SPEECH.inputs)}"
    for name, spec in SPEECH.inputs.items():
        kind, shape = found[name]
        fits = len(shape) == len(spec.shape) and all(
            not isinstance(want, int) or got == want or not isinstance(got, int)
            for want, got in zip(spec.shape, shape, strict=True))
        if kind != KINDS[spec.dtype] or not fits:
            sizes = ", ".join(str(size) if isinstance(size, int) else "any" for size in shape)
            return f"its input {name} is {kind} ({sizes})"
    return ""


def with_durations(path: Path) -> bytes:
    """The graph in a file with durations that it computes as a further output: messages in this format join when their
    bytes do."""
    from onnx import GraphProto, ModelProto, TensorProto, helper

    output = helper.make_tensor_value_info(CLIPPED, TensorProto.FLOAT, None)
    content, more = path.read_bytes(), ModelProto(graph=GraphProto(output=[output])).SerializeToString()
    return content if CLIPPED.encode() not in content or content.endswith(more) else content + more


CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class StyleFiles:
    """The files of a bundle, by role."""

    config: FileRecord
    graph: FileRecord
    voices: FileRecord


@dataclass(frozen=True)
class StyleManifest:
    """What bundle.json of these families must state."""

    name: str
    files: StyleFiles


@dataclass(frozen=True)
class StyleModel(Model):
    """The files of a model: in a folder as published, or in a bundle."""

    folder: Path
    name: str
    graph: Path
    voices_path: Path
    networks: frozenset[str] = field(default=frozenset(), init=False)        # its graph is no PyTorch network
    trained: bool = field(default=True, init=False)
    precision = "fp32"
    extra: ClassVar[str]        # of this package, which installs what it needs

    @property
    @abstractmethod
    def files(self) -> dict[str, Path]:
        """Its files by their names."""

    @abstractmethod
    def write_files(self, folder: Path) -> list[str]:
        """Write config.json, the graph and the voices of a bundle; returns their names in this order."""

    @abstractmethod
    def read_voices(self) -> StyleVoices:
        """Read the voices. Raises UserError when they are missing or damaged."""

    @property
    def voice_names(self) -> list[str]:
        return self.read_voices().names

    def graph_content(self) -> Path | bytes:
        """What is loaded of the graph: the file, or what is to be loaded in its place."""
        return self.graph

    def check_graph(self, graph: Any) -> None:
        """Raise UserError for a loaded graph (``ane.backends.onnx.graph_file``) with other inputs."""
        if fault := interface_fault(graph.inputs):
            raise UserError(f"{self.graph} is not a {self.family.title} graph: {fault}")

    def check(self) -> Surplus:
        """Read the voices and open the graph, all of which are used. Raises UserError when one is damaged."""
        self.read_voices()
        load_backend("auto", self).load()
        return Surplus()

    @property
    def identity(self) -> str:
        return identity_of([(name, *size_and_time(file)) for name, file in self.files.items()])

    def config(self, network: str) -> NoReturn:
        raise self.lacks(f"{network} network")

    tensors = config

    def write_bundle(self, destination: Path | str, *, name: str | None = None, licence: str = "",
                     source: Mapping[str, Any] | None = None, overwrite: bool = False) -> "StyleModel":
        """Write the model as a bundle, which appears at ``destination`` complete or not at all.

        ``source`` states where the files came from. Call ``check`` before, to write no damaged model.

        Raises:
            UserError: the destination is taken or not writable.
        """
        from ane.bundles.writing import check_destination  # imports torch

        destination = Path(destination)
        check_destination(destination, overwrite, self.folder)
        with replacing(destination, directory=True) as folder:
            written = [record(folder, file) for file in self.write_files(folder)]
            content = {"format": FORMAT, "model": self.kind, "name": name or destination.name, "licence": licence,
                       "source": dict(source or {}), "created_by": f"tortoise-ane {version()}",
                       "files": dataclasses.asdict(StyleFiles(*written))}
            (folder / MANIFEST_FILE).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n",
                                                encoding="utf-8")
        return self.family.open_bundle(destination)


class StyleFamily(ModelFamily):
    """What these families declare in common. Each defines ``open_checkpoints`` and ``settings``."""

    stages = ModelStages({"speech": SPEECH})

    def open_bundle(self, folder: Path) -> StyleModel:
        """The files of a bundle, each compared with its SHA-256. Raises UserError: no bundle there, one of another
        family, or a file that is missing, damaged or not recorded."""
        where = str(folder / MANIFEST_FILE)
        if (family := bundle_family(folder)) != self.name:
            raise UserError(f"{folder} is a bundle of {family}, not of {self.title}")
        manifest = read_record(StyleManifest, read_content(folder), where, DAMAGED)
        records = list(vars(manifest.files).values())
        for item in records:
            check_hash(folder, item)
        found = dataclasses.replace(self.open_checkpoints(folder), name=manifest.name)
        if [item.file for item in records] != [CONFIG_FILE, found.graph.name, found.voices_path.name]:
            raise UserError(f"{where} and {CONFIG_FILE} name different files: import the model again")
        return found

    def source_files(self, path: Path, **options: Any) -> dict[str, Path]:
        return self.open_checkpoints(path, **options).files
