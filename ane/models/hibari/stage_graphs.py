"""Cut a published graph of hibari-tts into hibari's three stages (network calls), as an ONNX package of a bundle.

The published graph computes in int8. In each call, it quantises an array of activations with a single range
(``DynamicQuantizeLinear``). The stages round exactly as the graph does. They read their weights from the bundle's
safetensors, as ONNX's external data, so the three files hold only operations.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.utils import Extractor

from ane.models.hibari.config import PITCH_SCALE
from ane.system.decibels import snr_db
from ane.system.reports import switch_off_reports

IR_VERSION, OPSET = 10, 17
INLINE = 128  # size in bytes below which a tensor stays in the graph
BATCH, LENGTH = "batch", "length"
SPECTRA_OUTPUTS = "lh", "theta", "ln", "lr", "phi"
LEAST_DB = 35.0  # smallest SNR of a stage to the graph, in dB; other rounding can change an int8 number by 1
PROBE = np.array([[0, 50, 83, 54, 156, 57, 16, 81, 102, 61, 4, 0]])  # ids of phonemes, the input of the check


@dataclass(frozen=True)
class Cut:
    """A stage, as a part of the published graph.

    Attributes:
        name: Name of the stage.
        value: Name of the stage's input. (The other input is the mask.)
        inner: Name of the tensor in the published graph that the input replaces. It is (1, channels, n), or ids (1, n).
        outputs: Names of the tensors in the published graph that the stage returns. Each tensor is (1, channels, n). If
            ``rows`` is true, there is only one tensor, (1, n, channels).
        rate: Number of output positions per input position.
        output: Name of the stage's output.
        channels: Number of channels of the input. 0 means that the input is ids.
        rows: Whether the published graph has the output as one tensor (1, n, channels).
    """

    name: str
    value: str
    inner: str
    outputs: tuple[str, ...]
    output: str
    channels: int = 0
    rate: int = 1
    rows: bool = False


def cuts_of(graph: GraphProto) -> list[Cut]:
    """Find where to cut a published graph into stages (network calls).

    The names of parameters show the places, and are the same for every exporter.

    Raises:
        ValueError: The graph lacks a parameter or an operation at which a stage begins or ends.
    """
    convs = {node.input[1]: node for node in graph.node if node.op_type == "Conv"}
    sizes = {one.name: tuple(one.dims) for one in graph.initializer}
    try:
        states, log_durations = convs["pn.dur.0.weight"].input[0], convs["pn.dur.2.weight"].output[0]
        slow, prosody = convs["pn.pro_in.weight"].input[0], convs["pn.pro_out.weight"].output[0]
        frames = convs["m.dec_in.weight"].input[0]
        # The tensor with all spectra, before the graph transposes it and splits it into five.
        [spectra] = [node.output[0] for node in graph.node if node.op_type == "Add" and "m.head.bias" in node.input]
        [repeated] = [node for node in graph.node if slow in node.output]  # repeats states for their durations
        [sound] = [
            node.input[0]
            for node in graph.node
            if node.op_type == "Gather" and node.input[1] == repeated.input[1] and node.input[0] != states
        ]
        return [
            Cut("text", "ids", "ids", (states, sound, log_durations), "encoded"),
            Cut("prosody", "states", slow, (prosody,), "prosody", sizes["pn.pro_in.weight"][1], 2),
            Cut("spectra", "frames", frames, (spectra,), "spectra", sizes["m.dec_in.weight"][1], rows=True),
        ]
    except KeyError as error:
        raise ValueError(f"it has no {error.args[0]}") from error


def write_stages(published: ModelProto, weights: Path, folder: Path) -> list[Path]:
    """Write a graph for each stage (part of the published graph), and check that the stages compute the same values.

    Args:
        published: The published graph of a voice.
        weights: The bundle's safetensors file, in ``folder``.
        folder: Folder to write the graphs to.

    Raises:
        ValueError, KeyError: The graph has another structure, ONNX Runtime cannot run it, or the outputs of a stage
            differ from the published graph's values.
    """
    model = onnx.shape_inference.infer_shapes(published)
    extractor, places = Extractor(model), stored_places(weights)
    files, cuts = [], cuts_of(model.graph)
    for cut in cuts:
        part = extractor.extract_model([cut.inner], list(cut.outputs))
        graph = stage_graph(cut, part.graph)
        widen_convolutions(graph)
        share_weights(graph, places, weights.name)
        written = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="tortoise-ane"
        )
        check_shapes(written)
        file = folder / f"{cut.name}.onnx"
        file.write_bytes(written.SerializeToString(deterministic=True))
        files.append(file)
    check_stages(published, cuts, files)
    return files


def check_stages(published: ModelProto, cuts: list[Cut], files: list[Path]) -> None:
    """Run the published graph, and the stages (its parts), on ``PROBE``.

    Raises ValueError if their numbers differ too much.
    """
    whole = ModelProto()
    whole.CopyFrom(published)
    stated = {one.name for one in whole.graph.output}
    values = [name for cut in cuts for name in (cut.inner, *cut.outputs) if name not in (*stated, "ids")]
    whole.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(values))
    found = outputs_of(whole.SerializeToString(), ids=PROBE, speed=np.ones(1, np.float32))
    for cut, file in zip(cuts, files, strict=True):
        given = found[cut.inner].transpose(0, 2, 1) if cut.channels else PROBE
        mask = np.ones(given.shape[:2], np.float32)
        [result] = outputs_of(file, **{cut.value: given, "mask": mask}).values()
        parts = SPECTRA_OUTPUTS if cut.rows else cut.outputs
        wanted = np.concatenate([found[name] for name in parts], axis=1).transpose(0, 2, 1)
        if cut.name == "prosody":
            wanted = wanted.reshape(1, -1, 2, 2).transpose(0, 1, 3, 2).reshape(1, -1, 2) * [PITCH_SCALE, 1]
        if not snr_db(wanted, result) > LEAST_DB:
            raise ValueError(f"its stage {cut.name} computes something else alone than it does within the graph")


def outputs_of(graph: Path | bytes, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Run a graph and return its outputs by name. Raises ValueError if ONNX Runtime cannot run it."""
    switch_off_reports()
    import onnxruntime  # noqa: TID251

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # log only fatal errors, because other errors are raised
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        return dict(zip((one.name for one in session.get_outputs()), session.run(None, inputs), strict=True))
    except Exception as error:  # ONNX Runtime's errors have no narrower class in common
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        raise ValueError(f"ONNX Runtime cannot run it: {str(error).strip().splitlines()[0][:300]}") from error


def stage_graph(cut: Cut, part: GraphProto) -> GraphProto:
    """Build the graph of a stage around a part of the published graph.

    The new graph removes padding first, and adds padding again at the end.
    """
    nodes, constants = list(part.node), list(part.initializer)

    def constant(name: str, value: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(value, f"stage/{name}"))
        return f"stage/{name}"

    def add(op: str, *inputs: str, output: str, **attributes: object) -> str:
        made.append(helper.make_node(op, list(inputs), [output], **attributes))
        return output

    made: list[NodeProto] = []
    zero, one, two = (
        constant(name, np.array([value], np.int64)) for name, value in (("zero", 0), ("one", 1), ("two", 2))
    )
    # The number of positions without padding, (1,) int64.
    count = add(
        "Cast",
        add("ReduceSum", "mask", constant("axes", np.array([0, 1], np.int64)), output="stage/sum", keepdims=0),
        output="stage/count",
        to=TensorProto.INT64,
    )
    count = add("Reshape", count, one, output="stage/n")
    total = add("Slice", add("Shape", "mask", output="stage/shape"), one, two, output="stage/total")
    inner = f"{cut.inner}/cut" if cut.inner == cut.value else cut.inner
    taken = add("Slice", cut.value, zero, count, one, output=inner if not cut.channels else "stage/taken")
    if cut.channels:
        add("Transpose", taken, output=inner, perm=[0, 2, 1])
    for node in nodes:
        node.input[:] = [inner if name == cut.inner else name for name in node.input]
    before, made = made, []
    channels = cut.outputs[0]
    if len(cut.outputs) > 1:
        channels = add("Concat", *cut.outputs, output="stage/channels", axis=1)
    if cut.name == "prosody":  # (f0, f0, energy, energy) of two frames → two frames (f0 in Hz, energy)
        split = add("Reshape", channels, constant("parts", np.array([1, 2, 2, -1], np.int64)), output="stage/parts4")
        turned = add("Transpose", split, output="stage/turned", perm=[0, 3, 2, 1])
        rows = add("Reshape", turned, constant("rows", np.array([1, -1, 2], np.int64)), output="stage/pairs")
        rows = add("Mul", rows, constant("scale", np.array([PITCH_SCALE, 1], np.float32)), output="stage/scaled")
    else:
        rows = channels if cut.rows else add("Transpose", channels, output="stage/rows_of_channels", perm=[0, 2, 1])
    missing = add(
        "Mul",
        add("Sub", total, count, output="stage/missing"),
        constant("rate", np.array([cut.rate], np.int64)),
        output="stage/padding",
    )
    pads = add("Concat", constant("before", np.zeros(4, np.int64)), missing, zero, output="stage/pads", axis=0)
    add("Pad", rows, pads, output=cut.output)
    shape = [BATCH, LENGTH] + ([cut.channels] if cut.channels else [])
    inputs = [
        helper.make_tensor_value_info(cut.value, TensorProto.FLOAT if cut.channels else TensorProto.INT64, shape),
        helper.make_tensor_value_info("mask", TensorProto.FLOAT, [BATCH, LENGTH]),
    ]
    output = helper.make_tensor_value_info(cut.output, TensorProto.FLOAT, [BATCH, None, None])
    return helper.make_graph([*before, *nodes, *made], cut.name, inputs, [output], constants)


def widen_convolutions(graph: GraphProto) -> None:
    """Give convolutions a second axis of length 1, because ONNX Runtime's code for two axes is faster."""
    kernels = {name for node in graph.node if node.op_type == "Conv" for name in node.input[1:2]}
    for tensor in graph.initializer:
        if tensor.name in kernels:
            tensor.dims.insert(2, 1)
    graph.initializer.append(numpy_helper.from_array(np.array([2], np.int64), "stage/axis"))
    nodes = []
    for node in graph.node:
        if node.op_type == "Conv":
            [x, *parameters], [output] = node.input, node.output
            own = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
            before, after = own["pads"]
            wide = {
                "group": own["group"],
                "pads": [0, before, 0, after],
                **{name: [1, *own[name]] for name in ("kernel_shape", "dilations", "strides")},
            }
            nodes += [
                helper.make_node("Unsqueeze", [x, "stage/axis"], [f"{output}/wide_input"]),
                helper.make_node("Conv", [f"{output}/wide_input", *parameters], [f"{output}/wide"], **wide),
                helper.make_node("Squeeze", [f"{output}/wide", "stage/axis"], [output]),
            ]
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def stored_places(weights: Path) -> dict[tuple[bytes, tuple[int, ...]], tuple[int, int]]:
    """Return the offset and the length in bytes of each tensor in a safetensors file, by the tensor's bytes and shape.

    The file begins with the length of its JSON header. The header has each tensor's offset from the header's end.
    """
    content = weights.read_bytes()
    [length] = struct.unpack("<Q", content[:8])
    header: Mapping[str, dict] = json.loads(content[8 : 8 + length])
    places = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = (8 + length + offset for offset in entry["data_offsets"])
            places[content[first:last], tuple(entry["shape"])] = (first, last - first)
    return places


def share_weights(
    graph: GraphProto, places: Mapping[tuple[bytes, tuple[int, ...]], tuple[int, int]], file: str
) -> None:
    """Replace the graph's weights by references to a safetensors file. In this file, int8 weights are transposed.

    Raises:
        ValueError: A weight is not in the file.
    """
    kept, transposes = [], []
    for tensor in graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.nbytes < INLINE or not array.any():  # small tensors and zeros, such as zero points, stay
            kept.append(tensor)
            continue
        shape = tuple(
            size for axis, size in enumerate(array.shape) if array.ndim < 4 or axis != 2
        )  # without the axis that widen_convolutions added
        place = places.get((array.tobytes(), shape))
        stored, name = array.shape, tensor.name
        if place is None and array.ndim == 2:
            place, stored, name = places.get((array.T.tobytes(), array.T.shape)), array.T.shape, f"{tensor.name}/stored"
            transposes.append(helper.make_node("Transpose", [name], [tensor.name], perm=[1, 0]))
        if place is None:
            raise ValueError(f"tensor {tensor.name} is unknown")
        outside = TensorProto(name=name, data_type=tensor.data_type, dims=stored, data_location=TensorProto.EXTERNAL)
        for key, value in zip(("location", "offset", "length"), (file, *place), strict=True):
            outside.external_data.add(key=key, value=str(value))
        kept.append(outside)
    nodes = [*transposes, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes)


def check_shapes(model: ModelProto) -> None:
    """Infer the shapes in a graph. Raise ValueError if a node reads a tensor that no node or input provides."""
    graph = model.graph
    known = {one.name for one in (*graph.input, *graph.initializer)} | {""}
    for node in graph.node:
        missing = set(node.input) - known
        if missing:
            raise ValueError(f"{node.op_type} {node.name} reads {', '.join(sorted(missing))}, which nothing makes")
        known |= set(node.output)
