"""Test that every input, output and state of a converted function has a description, whose axes fit its shape."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import coremltools as ct
import onnx
import onnxruntime
import pytest
import torch

from ane.bundles.bundle import Bundle
from ane.system.version import version
from converters.coreml.coreml_package import CoreMLOptions, load_reference
from converters.coreml.graph import Style
from converters.descriptions import EMBEDDINGS, describe, descriptions
from converters.function_table import convertible_model, coreml_graphs, onnx_graphs, pick_networks, scale_of
from converters.onnx import onnx_package
from tests.converters import conformance_table as table

Shape = Sequence[int | str]  # a string names an axis of any length


MODELS = "tortoise", "hibari", "fastspeech", "whisper"


def check_axes(axes: str, shape: Shape, lengths: dict[str, int | str]) -> None:
    """A number is the axis's length, a name has the same length throughout, and sums add up."""
    parts = axes.split(", ")
    assert len(parts) == len(shape), axes
    for part, length in zip(parts, shape, strict=True):
        terms = part.split(" + ")
        if len(terms) == 1 and not part.isdigit():
            assert lengths.setdefault(part, length) == length, f"{part} of {axes} has {length}"
        elif all(isinstance(lengths.get(term, 0), int) for term in terms) and isinstance(length, int):
            assert length == sum(int(term) if term.isdigit() else lengths[term] for term in terms), axes


def coreml_values(model: Bundle, network: str) -> Iterator[tuple[str, Mapping[str, int], dict[str, Shape]]]:
    """The kind, bucket, and shapes of all values of a function of each kind."""
    reference = load_reference(model, network)
    request = CoreMLOptions().request(reference, model, scale_of(network, load_reference(model, network)))
    for graph in {graph.kind: graph for graph in coreml_graphs(network, request)}.values():
        spec, shapes = graph.build(Style("fp32")).get_spec().description, {}
        for value in (*spec.input, *spec.output, *spec.state):
            is_state = value.type.WhichOneof("Type") == "stateType"
            shapes[value.name] = (value.type.stateType.arrayType if is_state else value.type.multiArrayType).shape
        yield graph.kind, graph.bucket, shapes


def onnx_values(model: Bundle, network: str) -> Iterator[tuple[str, Mapping[str, int], dict[str, Shape]]]:
    graphs = onnx_graphs(network, onnx_package.load_reference(model, network, "fp32"), torch.float32)
    for kind, graph in graphs.items():
        shapes: dict[str, Shape] = dict.fromkeys(graph.outputs)
        for name, (value, axes) in graph.inputs.items():
            example = value[0] if isinstance(value, list) else value
            shapes[name] = [axes.get(index, length) for index, length in enumerate(example.shape)]
        yield kind, {}, shapes


@pytest.mark.parametrize("target", [coreml_values, onnx_values])
@pytest.mark.parametrize("family", MODELS)
def test_the_axes_of_every_value_are_described(family, target, tmp_path):
    model, form, seen = table.MODELS[family](tmp_path), target.__name__.partition("_")[0], set()
    rows = [row for row in convertible_model(model).functions if getattr(row, form)]
    for network in pick_networks(model, None, list(dict.fromkeys(row.network for row in rows))):
        for kind, bucket, values in target(model, network):
            lengths = dict(bucket)
            for name, shape in sorted(values.items(), key=lambda value: "mask" in value[0] or "inside" in value[0]):
                text = describe(form, kind, name)
                assert re.fullmatch(r"\([^()]+\) \S.+\.", text), f"{network}, {kind}, {name}: {text!r}"
                if shape is not None:
                    axes = text.partition(")")[0][1:]
                    # Whisper's logits are several outputs with different lengths
                    check_axes(axes.replace("codes", name) if name[-1].isdigit() else axes, shape, lengths)
                seen.add((form, kind, re.sub(r"_\d+$", "", name)))
        parameters = model.tensors(network)
        for key in re.findall(r"\b[a-z_.]+\.weight|positional_embedding", EMBEDDINGS.get(network, "")):
            assert key in parameters
    kinds = {row.kind for row in rows if row.network in model.networks}
    described = {row for row in descriptions() if row[0] == form and row[1] in kinds}
    if family == "tortoise":  # a kind of function that several families have is described once
        assert {row for row in described - seen if not row[2].startswith(("memory_", "prefix_index"))} == set()


def test_a_core_ml_package_explains_itself_to_coremltools(fp16_bundle):
    package = next(package for package in fp16_bundle.packages if package.network == "autoregressive")
    spec = ct.models.MLModel(str(fp16_bundle.path / package.path), skip_model_load=True).get_spec()
    metadata = spec.description.metadata
    assert (metadata.license, metadata.versionString) == (fp16_bundle.manifest.licence, version())
    assert "Axes of the mask of state: 1, 1, columns, slots + 32 + columns" in metadata.userDefined["mask"]
    assert "mel_embedding.weight[code]" in metadata.userDefined["embeddings"]
    assert json.loads(metadata.userDefined["scale"]) == package.scale
    functions = {function.name: function for function in spec.description.functions}
    assert set(functions) == set(package.functions)
    for name, function in functions.items():
        for value in (*function.input, *function.output, *function.state):
            assert value.shortDescription == describe("coreml", package.functions[name].kind, value.name) != ""


def test_an_onnx_graph_explains_itself_to_onnx_runtime(onnx_packages):
    for precision in ("fp32", "int8"):
        path = onnx_packages.folder / onnx_packages.package("autoregressive", precision).path / "step.onnx"
        stated = onnxruntime.InferenceSession(str(path)).get_modelmeta()
        assert stated.description == f"Tortoise, autoregressive, {precision}: step"
        assert stated.custom_metadata_map["mask"].endswith(" of step: lanes, columns, prefix + length + columns")
        assert {"licence", "layout", "embeddings"} <= set(stated.custom_metadata_map)
        graph = onnx.load(path, load_external_data=False)
        assert graph.producer_version == version()
        for value in (*graph.graph.input, *graph.graph.output):
            assert value.doc_string == describe("onnx", "step", value.name) != ""
