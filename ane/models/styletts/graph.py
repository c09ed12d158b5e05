"""Run and check the ONNX graph of KittenTTS or Kokoro, and declare what both model families share.

Such a model has no PyTorch networks. Its bundle has these files, by role:

    config      config.json: as published (KittenTTS), or with the vocabulary (Kokoro)
    graph       *.onnx
    voices      *.npz

Its only stage (network call) is the graph, which makes sound from phonemes and a style. Dimension names: T phonemes,
S samples at 24 kHz.
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

TOKENS = "tokens"  # name of the input input_ids in older exports of Kokoro
DURATION = "duration"  # name of the output with the durations in newer exports
CLIPPED = "/encoder/Clip_output_0"  # name of the tensor with the durations inside older exports of Kokoro
KINDS = {"int64": "tensor(int64)", "float32": "tensor(float)"}  # ONNX Runtime's names of the types

# Phonemes in the order of KittenTTS's ids (kittentts/onnx_model.py). Kokoro has most of these ids too.
PUNCTUATION = ';:,.!?¡¿—…"«»"" '  # the quotation mark is here three times, and its last index is its id
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
IPA = (
    "ɑɐɒæɓʙβɔɕçɗɖðʤəɘɚɛɜɝɞɟʄɡɠɢʛɦɧħɥʜɨɪʝɭɬɫɮʟɱɯɰŋɳɲɴøɵɸθœɶʘɹɺɾɻʀʁɽʂʃʈʧʉʊʋⱱʌɣɤʍχʎʏʑʐʒʔʡʕʢǀǁǂǃˈˌːˑʼʴʰʱʲʷˠˤ˞↓↑→↗↘'\u0329'ᵻ"
)
SYMBOLS = "$" + PUNCTUATION + LETTERS + IPA  # "$" is the pad; 175 of the 178 characters are different
VOCABULARY = {symbol: index for index, symbol in enumerate(SYMBOLS)}  # character → id


def run_speech(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Run the graph for one text. Backends call this as ``Stage.packaged``.

    Raises:
        UserError: The graph does not return one waveform, or samples are NaN or infinite.
    """
    [graph] = package.functions(stage)
    tokens = TOKENS if TOKENS in graph.inputs else "input_ids"
    outputs = graph(**{tokens if name == "input_ids" else name: array for name, array in inputs.items()})
    wave = next(iter(outputs.values()))
    if wave.ndim == 0 or wave.size != wave.shape[-1]:
        raise UserError(f"the graph returns {wave.shape} instead of one waveform: use a graph for one text per run")
    if not np.isfinite(wave).all():
        raise UserError("the graph returns NaN or infinite samples, so it or its voices are damaged: import them again")
    ids = inputs["input_ids"].size
    durations = next((outputs[name].reshape(-1) for name in (DURATION, CLIPPED) if name in outputs), np.zeros(0))
    known = durations.size == ids and (durations >= 0).all()
    return np.concatenate((durations if known else np.zeros(ids), wave.reshape(-1)), dtype=np.float32)


# The output is one array: the durations of the phonemes (zeros if the graph does not return them), then the waveform.
SPEECH = Stage(
    "graph",
    {"input_ids": TensorSpec((1, "T"), "int64"), "style": TensorSpec((1, 256)), "speed": TensorSpec((1,))},
    TensorSpec(("T+S",)),
    packaged=run_speech,
)


def interface_fault(inputs: dict[str, tuple[str, list[int | str | None]]]) -> str:
    """Describe how a graph's inputs differ from the inputs of the stage ``SPEECH``. Returns "" if they do not.

    Args:
        inputs: Type and sizes of each input, by name.
    """
    named = {"input_ids" if name == TOKENS else name: value for name, value in inputs.items()}
    if set(named) != set(SPEECH.inputs):
        return f"its inputs are {', '.join(sorted(named)) or 'none'}, not {', '.join(SPEECH.inputs)}"
    for name, spec in SPEECH.inputs.items():
        kind, shape = named[name]
        fits = len(shape) == len(spec.shape) and all(
            not isinstance(want, int) or got == want or not isinstance(got, int)
            for want, got in zip(spec.shape, shape, strict=True)
        )
        if kind != KINDS[spec.dtype] or not fits:
            sizes = ", ".join(str(size) if isinstance(size, int) else "any" for size in shape)
            return f"its input {name} is {kind} ({sizes})"
    return ""


def with_durations(path: Path) -> bytes:
    """Read a graph, and make the durations that it computes an output. Returns the bytes of the new graph.

    To do this, the function only appends bytes. In protobuf, the format of the graph, messages are merged if their
    bytes are concatenated.
    """
    from onnx import GraphProto, ModelProto, TensorProto, helper

    output = helper.make_tensor_value_info(CLIPPED, TensorProto.FLOAT, None)
    content, more = path.read_bytes(), ModelProto(graph=GraphProto(output=[output])).SerializeToString()
    return content if CLIPPED.encode() not in content or content.endswith(more) else content + more


CONFIG_FILE = "config.json"


class StyleFamily(ModelFamily):
    """Base class of the families KittenTTS and Kokoro.

    Both define ``import_checkpoints``, ``voices`` and ``settings``.
    """

    stages = ModelStages({"speech": SPEECH})
    files = ("config", "graph", "voices")

    @abstractmethod
    def voices(self, model: Bundle) -> StyleVoices:
        """Read the voices of a model. Raises UserError if they are damaged."""

    def voice_names(self, model: Bundle) -> list[str]:
        return self.voices(model).names

    def check_graph(self, graph: Path | bytes, path: Path) -> dict[str, str]:
        """Load a graph and return its metadata.

        Raises:
            UserError: The graph is damaged, or its inputs differ from the inputs of ``SPEECH``.
        """
        inputs, metadata = read_graph(graph, path, self.title, self.extra)
        if fault := interface_fault(inputs):
            raise UserError(f"{path} is not a {self.title} graph: {fault}")
        return metadata
