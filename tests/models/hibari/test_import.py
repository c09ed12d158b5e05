"""Test that one command imports a voice from hibari's author, and that one line rejects damaged or foreign graphs."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import ane
from ane.bundles import open_model
from ane.cli import main
from ane.models.hibari.published import RELEASE, VOICES
from ane.speech.request import SpeechContext
from ane.system.decibels import snr_db
from ane.text.phonemes import phonemise
from tests.imported import hibari_graph

TEXT = "The wind blew over the hill. She could not bathe before the clerk's tomato dance at half past four."


@pytest.fixture(scope="module")
def graph() -> Path:
    return hibari_graph()


def imported_voice(file: Path, name: str) -> ane.Speaker:
    assert main(["import", str(file), "-o", name]) == 0
    return ane.load(name)


def changed(graph: Path, file: Path, change) -> Path:
    model = onnx.load(graph)
    change(model)
    onnx.save(model, file)
    return file


def test_one_command_adds_the_published_voice_and_it_speaks_as_heart_bit_for_bit(graph: Path) -> None:
    assert imported_voice(graph, "mine").speak(TEXT, seed=1) == ane.load().speak(TEXT, seed=1)
    mine, heart = open_model("mine"), open_model()
    assert {file.file: file.sha256 for package in mine.onnx_packages for file in package.files} == {
        file.file: file.sha256 for package in heart.onnx_packages for file in package.files
    }
    assert (mine.default_voice, mine.manifest.licence) == ("heart", "Apache-2.0")
    assert sum(file.stat().st_size for file in mine.path.rglob("*") if file.is_file()) < 8_000_000
    assert ane.load("mine", backend="torch:cpu").speak("Rain.", seed=1).seconds > 0.3


def by_rows(model: ModelProto) -> None:
    """Give every row of each int8 weight a scale of its own, as the quantiser of ONNX Runtime does with per_channel."""
    tensors = {one.name: one for one in model.graph.initializer}
    for name in [name for name in tensors if name.endswith("_quantized")]:
        scale, zero = (tensors[name.replace("_quantized", part)] for part in ("_scale", "_zero_point"))
        weights = numpy_helper.to_array(tensors[name]) * numpy_helper.to_array(scale)  # (I, O)
        scales = np.maximum(np.abs(weights).max(axis=0), 1e-9).astype(np.float32) / 127
        for tensor, value in (
            (tensors[name], np.rint(weights / scales).astype(np.int8)),
            (scale, scales),
            (zero, np.zeros(len(scales), np.int8)),
        ):
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def test_a_voice_with_a_scale_for_each_row_speaks_on_both_backends(graph: Path, tmp_path: Path) -> None:
    """The file of fenrir is larger by these scales."""
    file = changed(graph, tmp_path / "rows.onnx", by_rows)
    fenrir_and_heart = 8_031_158 - 7_936_868
    assert file.stat().st_size - graph.stat().st_size == pytest.approx(fenrir_and_heart, rel=0.01)
    voice, heart = imported_voice(file, "rows"), ane.load()
    exact = ane.load("rows", backend="torch:cpu")
    assert voice.model.default_voice == "rows"
    ids = np.array([[0, 50, 83, 54, 156, 57, 16, 81, 102, 61, 4, 0]])
    inputs = {"ids": ids, "mask": np.ones(ids.shape, np.float32)}
    results = [speaker.backend.run("text", **inputs) for speaker in (voice, exact, heart)]
    assert snr_db(results[0], results[1]) > 25
    assert snr_db(results[0], results[2]) > 20
    assert 4 < voice.speak(TEXT, seed=1).seconds < 9


def test_a_voice_of_britain_has_british_phonemes(graph: Path, tmp_path: Path) -> None:
    (tmp_path / "bf_nobody.onnx").write_bytes(graph.read_bytes())
    british, heart = imported_voice(tmp_path / "bf_nobody.onnx", "british"), ane.load()
    counts = [
        [len(chunk.ids) for chunk in speaker.chunks(speaker.request(TEXT), SpeechContext())]
        for speaker in (british, heart)
    ]
    wanted = [sum(len(word.phonemes) for word in phonemise(TEXT, flag)) for flag in (True, False)]
    assert wanted[0] - wanted[1] == sum(counts[0]) - sum(counts[1]) != 0


def without_part(model: ModelProto) -> None:
    next(node for node in model.graph.node if "pn.pro_in.weight" in node.input).input[1] = "other"
    next(one for one in model.graph.initializer if one.name == "pn.pro_in.weight").name = "other"


def with_unknown(model: ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.ones((9, 9), np.float32), "m.more.weight"))


def with_another_order(model: ModelProto) -> None:
    """The graph adds one where it has the input of a part."""
    node = next(node for node in model.graph.node if "m.dec_in.weight" in node.input)
    node.input[0], frames = "frames/more", node.input[0]
    at = list(model.graph.node).index(node)
    model.graph.node.insert(at, helper.make_node("Identity", [frames], ["frames/more"]))


def not_finite(model: ModelProto) -> None:
    tensor = next(one for one in model.graph.initializer if one.name == "m.head.bias")
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32("nan"), tensor.name))


def other_inputs(model: ModelProto) -> None:
    model.graph.input[1].name = "tempo"
    for node in model.graph.node:
        node.input[:] = ["tempo" if name == "speed" else name for name in node.input]


def without_padding(model: ModelProto) -> None:
    """The first convolution does not state its padding, which ONNX allows."""
    node = next(node for node in model.graph.node if node.op_type == "Conv")
    node.attribute.remove(next(attribute for attribute in node.attribute if attribute.name == "pads"))


def with_seven_frames(model: ModelProto) -> None:
    """The graph is well-formed, and fails when it runs on another number of frames."""
    with_another_order(model)
    node = next(node for node in model.graph.node if node.output[0] == "frames/more")
    sizes = {one.name: one.dims for one in model.graph.initializer}
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, sizes["m.dec_in.weight"][1], 7]), "seven"))
    node.op_type = "Reshape"
    node.input.append("seven")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_padding, "it lacks 'pads'"),
        (with_seven_frames, "ONNX Runtime cannot run it: "),
        (without_part, "pn.pro_in.weight"),
        (with_unknown, "m.more.weight has the shape (9, 9) in the file and none in the network"),
        (not_finite, "m.head.bias has NaN"),
        (other_inputs, "its inputs are ids, tempo, not ids and speed"),
    ],
)
def test_graphs_of_another_form_are_refused_in_one_line(graph: Path, tmp_path: Path, complain, change, message) -> None:
    file = changed(graph, tmp_path / "voice.onnx", change)
    error = complain("import", file, "-o", "mine")
    assert message in error
    assert str(file) in error


def test_a_graph_that_names_its_values_otherwise_is_cut_at_the_same_places(graph: Path, tmp_path: Path) -> None:
    file = changed(graph, tmp_path / "voice.onnx", with_another_order)
    assert imported_voice(file, "mine").speak(TEXT, seed=1) == ane.load().speak(TEXT, seed=1)


@pytest.mark.parametrize(
    ("name", "cut", "message"),
    [
        ("voice.onnx", 7_000_000, "is damaged, because it is not a whole ONNX graph"),
        ("hibari.onnx", 7_000_000, f"has another SHA-256 than the voice heart of {RELEASE}"),
        ("am_fenrir_v2.int8.onnx", None, f"has another SHA-256 than the voice fenrir of {RELEASE}"),
    ],
)
def test_damaged_files_are_refused_in_one_line(graph: Path, tmp_path: Path, complain, name, cut, message) -> None:
    (tmp_path / name).write_bytes(graph.read_bytes()[:cut])
    assert message in complain("import", tmp_path / name, "-o", "mine")


def test_the_voices_of_the_package_are_those_of_its_registry(graph: Path) -> None:
    registry = json.loads((graph.parent / "voices.json").read_text())
    assert {voice.name: (voice.file, voice.sha256, voice.teacher, voice.british) for voice in VOICES} == {
        name: (entry["file"], entry["sha256"], entry["kokoro"], entry["british"]) for name, entry in registry.items()
    }


def test_without_onnx_the_error_names_the_command_that_installs_it(graph: Path, complain, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.startswith("ane.models.hibari.published")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "needs onnx: pip install '.[onnx]'" in complain("import", graph, "-o", "mine")
