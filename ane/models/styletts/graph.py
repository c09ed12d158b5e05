"""Models of one ONNX graph and tables of voices. They have no PyTorch networks; the files of a bundle, by role:

    config      config.json; KittenTTS: as published; Kokoro: the vocabulary
    graph       *.onnx
    voices      *.npz

Their stage is one graph from phonemes and a style to sound. Dimension names: T phonemes, S samples at 24 kHz.
"""

from abc import abstractmethod
from pathlib import Path

import numpy as np

from ane.backends.base import FunctionSet, ModelStages, Stage, TensorSpec
from ane.backends.choosing import read_graph
from ane.bundles import Bundle
from ane.bundles.family import ModelFamily
from ane.models.styletts.voices import StyleVoices
from ane.system.errors import UserError

TOKENS = "tokens"  # what older exports of Kokoro call the input_ids
DURATION = "duration"  # an output of newer exports
CLIPPED = "/encoder/Clip_output_0"  # the same within older ones of Kokoro
KINDS = {"int64": "tensor(int64)", "float32": "tensor(float)"}  # ONNX Runtime's names of types

# the ids of phonemes of KittenTTS; Kokoro has most of them too (kittentts/onnx_model.py)
PUNCTUATION = ';:,.!?¡¿—…"«»"" '  # the quotation mark three times; the last index of a character counts
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
IPA = (
    "ɑɐɒæɓʙβɔɕçɗɖðʤəɘɚɛɜɝɞɟʄɡɠɢʛɦɧħɥʜɨɪʝɭɬɫɮʟɱɯɰŋɳɲɴøɵɸθœɶʘɹɺɾɻʀʁɽʂʃʈʧʉʊʋⱱʌɣɤʍχʎʏʑʐʒʔʡʕʢǀǁǂǃˈˌːˑʼʴʰʱʲʷˠˤ˞↓↑→↗↘'\u0329'ᵻ"
)
SYMBOLS = "$" + PUNCTUATION + LETTERS + IPA  # the pad first; 178, of which 175 differ
VOCABULARY = {symbol: index for index, symbol in enumerate(SYMBOLS)}  # character → id


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
SPEECH = Stage(
    "graph",
    {"input_ids": TensorSpec((1, "T"), "int64"), "style": TensorSpec((1, 256)), "speed": TensorSpec((1,))},
    TensorSpec(("T+S",)),
    packaged=run_speech,
)


def interface_fault(inputs: dict[str, tuple[str, list[int | str | None]]]) -> str:
    """How the inputs of a graph, type and sizes by name, differ from those of ``SPEECH``; "" when they do not."""
    found = {"input_ids" if name == TOKENS else name: value for name, value in inputs.items()}
    if set(found) != set(SPEECH.inputs):
        return f"its inputs are {', '.join(sorted(found)) or 'none'}, not {', '.join(SPEECH.inputs)}"
    for name, spec in SPEECH.inputs.items():
        kind, shape = found[name]
        fits = len(shape) == len(spec.shape) and all(
            not isinstance(want, int) or got == want or not isinstance(got, int)
            for want, got in zip(spec.shape, shape, strict=True)
        )
        if kind != KINDS[spec.dtype] or not fits:
            sizes = ", ".join(str(size) if isinstance(size, int) else "any" for size in shape)
            return f"its input {name} is {kind} ({sizes})"
    return ""


def with_durations(path: Path) -> bytes:
    """The graph in a file with durations that it computes as a further output: messages in this format join when their
    bytes do.
    """
    from onnx import GraphProto, ModelProto, TensorProto, helper

    output = helper.make_tensor_value_info(CLIPPED, TensorProto.FLOAT, None)
    content, more = path.read_bytes(), ModelProto(graph=GraphProto(output=[output])).SerializeToString()
    return content if CLIPPED.encode() not in content or content.endswith(more) else content + more


CONFIG_FILE = "config.json"


class StyleFamily(ModelFamily):
    """The declarations that these families share. Each defines ``import_checkpoints``, ``voices`` and ``settings``."""

    stages = ModelStages({"speech": SPEECH})
    files = ("config", "graph", "voices")

    @abstractmethod
    def voices(self, model: Bundle) -> StyleVoices:
        """Read the voices of a model. Raises UserError when they are damaged."""

    def voice_names(self, model: Bundle) -> list[str]:
        return self.voices(model).names

    def check_graph(self, graph: Path | bytes, path: Path) -> dict[str, str]:
        """Load the graph of a file and return its metadata. Raises UserError: it is damaged, or has other inputs than
        ``SPEECH``.
        """
        inputs, metadata = read_graph(graph, path, self.title, self.extra)
        if fault := interface_fault(inputs):
            raise UserError(f"{path} is not a {self.title} graph: {fault}")
        return metadata
