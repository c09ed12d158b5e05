"""Import the voices that hibari's author publishes for hibari-tts 0.2.1. Each voice is one int8 ONNX graph.

In the graph, a matrix has int8 weights with one scale, or with one scale per row. The import makes a bundle. It stores
the weights as safetensors, and an ONNX package (``ane.models.hibari.stage_graphs``) that reads the weights from this
file.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, numpy_helper
from safetensors.numpy import save_file

from ane.bundles.contents import Contents
from ane.bundles.hashes import record, sha256_of
from ane.bundles.package_records import PUBLISHED, FunctionRecord, PackageRecord
from ane.bundles.weights import SCALE, layout
from ane.models.hibari.config import MAX_GRAPH, NETWORKS, HibariConfig
from ane.models.hibari.stage_graphs import write_stages
from ane.system.errors import UserError
from ane.system.file_gate import read_regular

PACKAGE = "packages/hibari-int8.onnx"
PARTS = "m.", "pn."  # how the names of parameters begin: the sound's, and the prosody's
RELEASE = "hibari-tts 0.2.1"


@dataclass(frozen=True)
class PublishedVoice:
    """A voice that hibari-tts publishes: its file, the file's SHA-256, and the Kokoro voice that it was trained on."""

    name: str
    file: str
    sha256: str
    teacher: str

    @property
    def british(self) -> bool:
        return self.teacher.startswith("b")


VOICES = tuple(
    PublishedVoice(*row)
    for row in (
        ("heart", "hibari.onnx", "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8", "af_heart"),
        ("emma", "bf_emma.int8.onnx", "f709f0488ee63b583a22189a955aaf4257b9806dd330be3490661e53af0a89c1", "bf_emma"),
        (
            "fenrir",
            "am_fenrir_v2.int8.onnx",
            "f59fbd87908c91f827bc21b1b89443757b9a8580db9eee20aa948deb731321f4",
            "am_fenrir",
        ),
        ("fable", "bm_fable.int8.onnx", "c28529302f2d27cd12f62625c24425888c4e3c2675583100ec530259136b8bc6", "bm_fable"),
        ("kore", "af_kore.int8.onnx", "346885752673e45d42f9864c9e2432094bc4b6385df060d4b83273da764d2fa9", "af_kore"),
    )
)


def import_published(path: Path) -> Contents:
    """Read the graph of a voice.

    A file that is named like one of ``VOICES`` must contain exactly this voice. A file with another name may contain
    any voice with the same network. Such a voice counts as British if the file's name begins with "bf_" or "bm_", like
    Kokoro's British voices ("bf_emma").

    Raises:
        UserError: The file is damaged, or is not a voice of hibari-tts.
    """
    known = next((voice for voice in VOICES if voice.file == path.name), None)
    if known and sha256_of(path) != known.sha256:
        raise UserError(
            f"{path} has another SHA-256 than the voice {known.name} of {RELEASE}: download the voice again, or "
            "rename the file if it is another version"
        )
    model = read_model(path)
    weights = checked_weights(model, path)
    british = known.british if known else path.name.startswith(("bf_", "bm_"))
    learned = f" It learned from speech of Kokoro-82M's voice {known.teacher} (hexgrad)." if known else ""

    def write_package(folder: Path) -> list[PackageRecord]:
        return [write_voice(model, weights, folder, path)]

    return Contents(
        "hibari",
        path,
        configs={"hibari": config_of(model.graph, weights)},
        packages=write_package,
        tensors=lambda network: {key: torch.from_numpy(value.copy()) for key, value in weights.items()},
        default_voice=known.name if known else path.name.partition(".")[0],
        settings={"british": True} if british else {},
        clones=False,
        licence="Apache-2.0" if known else "",
        source={"package": RELEASE, "file": path.name} if known else {"file": path.name},
        description=f"A synthetic voice with the networks of {RELEASE} (Maureese Williams).{learned}",
    )


def write_voice(model: ModelProto, weights: Mapping[str, np.ndarray], folder: Path, path: Path) -> PackageRecord:
    """Write a voice's weights and its ONNX package, which uses these weights, into the folder of a bundle.

    Raises:
        UserError: The published graph differs from the graph that the sizes of its parameters imply.
    """
    stages = folder / PACKAGE
    stages.mkdir(parents=True, exist_ok=True)
    file = stages / "hibari.safetensors"
    save_file(dict(weights), file)
    file.chmod(0o644)
    try:
        graphs = write_stages(model, file, stages)
    except KeyError as error:
        raise form_error(path, f"it lacks {error}") from error
    except (ValueError, RuntimeError, onnx.checker.ValidationError) as error:
        raise form_error(path, str(error)) from error
    return PackageRecord(
        "hibari",
        "int8",
        PACKAGE,
        [record(folder, f"{PACKAGE}/{part.name}") for part in (file, *graphs)],
        {graph.stem: FunctionRecord(graph.stem, {}) for graph in graphs},
        format="onnx",
        source={PUBLISHED: path.name},
    )


def read_model(path: Path) -> ModelProto:
    """Read an ONNX graph. Raises UserError if the file is damaged."""
    model = ModelProto()
    try:
        model.ParseFromString(read_regular(path, MAX_GRAPH))
        onnx.checker.check_model(model)
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise UserError(f"{path} is damaged, because it is not a whole ONNX graph: download it again") from error
    return model


def form_error(path: Path, fault: str) -> UserError:
    return UserError(f"{path} is not a voice like those of {RELEASE}: {fault}")


def checked_weights(model: ModelProto, path: Path) -> dict[str, np.ndarray]:
    """Read the state dict of a voice. Raises UserError if its parameters do not fit the network."""
    if [one.name for one in model.graph.input] != ["ids", "speed"]:
        raise form_error(path, f"its inputs are {', '.join(one.name for one in model.graph.input)}, not ids and speed")
    try:
        weights = int8_weights(model.graph)
        shapes = layout(NETWORKS["hibari"], config_of(model.graph, weights)).shapes
    except (KeyError, StopIteration, ValueError, TypeError) as error:
        raise form_error(path, f"{error} is missing or has another type") from error
    stored = {key: value.shape for key, value in weights.items() if not key.endswith(SCALE)}
    for key in sorted(shapes.keys() | stored.keys()):
        if shapes.get(key) != stored.get(key):
            raise form_error(
                path,
                f"parameter {key} has the shape {stored.get(key, 'none')} in the file and "
                f"{shapes.get(key, 'none')} in the network",
            )
    for key, value in weights.items():
        if not np.isfinite(value).all():
            raise UserError(f"{path} is damaged: {key} has NaN or infinite values: download it again")
    return weights


def int8_weights(graph: GraphProto) -> dict[str, np.ndarray]:
    """Return the state dict of an int8 ONNX graph that hibari's author published.

    An int8 weight KEY, (O, I), has its scale under KEY.scale, (1,) or (O,) float32. The graph multiplies the result of
    MatMulInteger by the scales, and adds the bias. Every bias has its key as its name.

    Raises:
        ValueError: A weight has a zero point.
    """
    values = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    found = {key: value for key, value in values.items() if key.startswith(PARTS)}
    for node in graph.node:
        bias = next((name for name in node.input if name in found and name.endswith("bias")), None)
        product = next((makers[name] for name in node.input if name != bias and name in makers), None)
        if node.op_type != "Add" or bias is None or product is None or product.op_type != "Mul":
            continue
        cast = next(makers[name] for name in product.input if makers[name].op_type == "Cast")
        name = makers[cast.input[0]].input[1]
        base = name.removesuffix("_quantized")
        if values[f"{base}_zero_point"].any():
            raise ValueError(f"{name}, whose zero point must be 0,")
        key = f"{bias.removesuffix('bias')}weight"
        found[key] = np.ascontiguousarray(values[name].T)
        found[f"{key}{SCALE}"] = values[f"{base}_scale"].reshape(-1)
    return found


def config_of(graph: GraphProto, weights: Mapping[str, np.ndarray]) -> HibariConfig:
    """Derive the sizes of a voice's network from its parameters. Raises KeyError if a parameter is missing."""
    norms = Counter(node.input[1] for node in graph.node if node.op_type == "LayerNormalization")
    symbols, width = weights["m.text.emb.weight"].shape
    return HibariConfig(
        symbols=symbols,
        width=width,
        inner=len(weights["m.text.attn.linear1.bias"]),
        repeats=norms["m.text.attn.norm1.weight"],
        prosody_width=weights["pn.text.emb.weight"].shape[1],
        prosody_inner=len(weights["pn.text.attn.linear1.bias"]),
        prosody_repeats=norms["pn.text.attn.norm1.weight"],
        decoder_width=len(weights["m.dec_in.bias"]),
        decoder_inner=len(weights["m.dec.0.pw1.bias"]),
        decoder_layers=len({key.split(".")[2] for key in weights if key.startswith("m.dec.")}),
    )
