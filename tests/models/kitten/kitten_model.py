"""Make models of any size with random weights and the inputs and outputs of KittenTTS or Kokoro."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

from ane.backends.onnx.graph_file import GraphBackend
from ane.bundles import open_model
from ane.models.kitten.synthesizer import KittenSynthesizer, Phonemizer
from tests.imported import imported

VOICES = ("expr-voice-2-f", "expr-voice-5-m")
HOP = 600  # samples per id


def write_kitten_model(
    folder: Path, width: int = 8, layers: int = 1, rows: int = 16, noise: float = 0.0, **config: Any
) -> Path:
    """Write config.json, model.onnx and voices.npz: ``layers`` convolutions of 5 over ``width`` channels."""
    folder.mkdir(parents=True)
    values = np.random.default_rng(0)
    tables = {name: values.standard_normal((rows, 256)).astype(np.float32) for name in VOICES}
    np.savez(folder / "voices.npz", **tables)
    save(kitten_graph(width, layers, noise), folder / "model.onnx")
    content = {
        "type": "ONNX2",
        "model_file": "model.onnx",
        "voices": "voices.npz",
        "speed_priors": {VOICES[0]: 0.8},
        "voice_aliases": {"Bella": VOICES[0]},
        **config,
    }
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def write_kokoro_model(folder: Path, durations: str = "/encoder/Clip_output_0", **metadata: Any) -> Path:
    """Write model.onnx and voices-v1.0.bin, an archive, as kokoro-onnx has them; ``metadata`` has the vocabulary."""
    folder.mkdir(parents=True)
    values = np.random.default_rng(0)
    model = kitten_graph(8, 1, tokens="tokens", durations=durations)
    if metadata:
        model.metadata_props.add(key="kokoro_config", value=json.dumps(metadata))
    save(model, folder / "model.onnx")
    with (folder / "voices-v1.0.bin").open("wb") as file:
        np.savez(
            file, **{name: values.standard_normal((16, 1, 256)).astype(np.float32) for name in ("af_bella", "af_heart")}
        )
    return folder


def kitten_graph(
    width: int,
    layers: int,
    noise: float = 0.0,
    samples: int = HOP,
    tokens: str = "input_ids",
    durations: str = "duration",
) -> Any:
    """An ONNX model: embedding, convolutions over the ids, and a projection to ``samples`` an id; seeded weights.

    With ``noise`` it adds RandomNormalLike of that scale, as the published graphs do.

    Args:
        tokens: name of its input of ids. durations: of a tensor with 1 for each id, an output unless it has a slash.
    """
    values = np.random.default_rng(1)

    def weight(name: str, *shape: int) -> Any:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array((values.standard_normal(shape) * scale).astype(np.float32), name)

    weights = [
        weight("embedding", 178, width),
        weight("styling", 256, width),
        weight("output", width, samples),
        numpy_helper.from_array(np.array([-1]), "flat"),
    ]
    nodes = [
        helper.make_node("Gather", ["embedding", tokens], ["embedded"]),  # (1, T, C)
        helper.make_node("MatMul", ["style", "styling"], ["styled"]),  # (1, C)
        helper.make_node("Add", ["embedded", "styled"], ["conditioned"]),
        helper.make_node("Div", ["conditioned", "speed"], ["paced"]),
        helper.make_node("Transpose", ["paced"], ["x0"], perm=[0, 2, 1]),
    ]  # (1, C, T)
    for layer in range(layers):
        weights.append(weight(f"kernel{layer}", width, width, 5))
        nodes += [
            helper.make_node("Conv", [f"x{layer}", f"kernel{layer}"], [f"y{layer}"], pads=[2, 2]),
            helper.make_node("Tanh", [f"y{layer}"], [f"x{layer + 1}"]),
        ]
    nodes += [
        helper.make_node("Transpose", [f"x{layers}"], ["columns"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["columns", "output"], ["frames"]),  # (1, T, samples)
        helper.make_node("Tanh", ["frames"], ["bounded"]),
        helper.make_node("Reshape", ["bounded", "flat"], ["clean" if noise else "waveform"]),
        helper.make_node("Equal", [tokens, tokens], ["each"]),
        helper.make_node("Cast", ["each"], [durations], to=TensorProto.FLOAT),
    ]
    if noise:
        nodes += [
            helper.make_node("RandomNormalLike", ["clean"], ["noise"], scale=noise),
            helper.make_node("Add", ["clean", "noise"], ["waveform"]),
        ]
    inputs = [
        helper.make_tensor_value_info(tokens, TensorProto.INT64, [1, "T"]),
        helper.make_tensor_value_info("style", TensorProto.FLOAT, [1, 256]),
        helper.make_tensor_value_info("speed", TensorProto.FLOAT, [1]),
    ]
    outputs = [helper.make_tensor_value_info("waveform", TensorProto.FLOAT, ["S"])]
    if "/" not in durations:
        outputs.append(helper.make_tensor_value_info(durations, TensorProto.FLOAT, [1, "T"]))
    graph = helper.make_graph(nodes, "kitten", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def letters(text: str) -> str:
    """A phonemizer without phonemes: the text itself."""
    return text


def kitten_speaker(folder: Path, threads: int | None = 1, phonemizer: Phonemizer = letters) -> KittenSynthesizer:
    """A model of KittenTTS in a folder or a bundle, on so many cores, also more than there are."""
    model = open_model(folder) if (folder / "bundle.json").is_file() else imported(folder, family="kitten")
    speaker = KittenSynthesizer(model, GraphBackend(model, threads))
    speaker.phonemizer = phonemizer
    return speaker
