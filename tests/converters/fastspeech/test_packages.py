"""Test that FastSpeech's packages speak as torch does. A text that is too long for them is split or rejected."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from ane.backends import load_backend
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.engines import TensorRTOptions, input_axes, shape_profile
from ane.backends.onnx.providers import DEVICES
from ane.backends.onnx.sessions import SessionKey, session_loader
from ane.bundles.bundle import Bundle
from ane.cli import main
from ane.models.fastspeech.settings import FastSpeechSettings
from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer
from ane.system.decibels import snr_db
from benchmarks.__main__ import main as run_benchmarks
from converters.fastspeech import FUNCTIONS
from converters.onnx.onnx_package import WEIGHTS_FILE
from tests.arrays import assert_equal
from tests.converters.fastspeech.conftest import BUCKETS
from tests.fastspeech_files import SMALL
from tests.refusals import assert_refused
from tests.small_bundle import spoil_onnx

TEXT = "Hello there. How are you?"
LONG = "This sentence is one of several, and each of them is too long for a bucket of the package, so it is split. "
ENGINES = ["mil", "onnx:cpu"]


def synthesizer(bundle: Bundle, backend: str) -> FastSpeechSynthesizer:
    return FastSpeechSynthesizer(bundle, load_backend(backend, bundle))


def joined(speech) -> str:
    return "".join(speech.chunks).replace(" ", "")


@pytest.mark.parametrize("engine", ENGINES)
def test_speech_is_that_of_torch(packaged, engine):
    expected, speech = (synthesizer(packaged, backend).speak(TEXT) for backend in ("torch:cpu", engine))
    assert_equal(expected.durations, speech.durations)
    assert snr_db(expected.audio, speech.audio) >= 80
    assert not speech.notes


def test_a_batch_gives_what_each_text_gives_alone(packaged):
    """On packages the rows of a batch run one by one, each in its own buckets."""
    texts = [TEXT, "Yes.", LONG[:50]]
    together = list(synthesizer(packaged, "mil").speak_all(texts))
    alone = [synthesizer(packaged, "mil").speak(text) for text in texts]
    assert_equal([speech.audio for speech in alone], [speech.audio for speech in together])


def test_a_text_longer_than_the_largest_buckets_is_split_and_spoken_whole(packaged):
    model, free = synthesizer(packaged, "mil"), synthesizer(packaged, "onnx:cpu")
    assert (model.most_symbols, model.most_frames) == (60, 160)
    assert (free.most_symbols, free.most_frames) == (SMALL.max_seq_len, SMALL.max_seq_len)
    speech = model.speak(LONG, speed=0.6)
    assert len(speech.chunks) > 2
    assert joined(speech) == LONG.replace(" ", "")
    assert max(map(len, speech.durations)) <= 60
    assert max(mel.shape[1] for mel in speech.mels) <= 160


@pytest.mark.parametrize(
    ("text", "rate", "fault"),
    [
        (LONG, 1.0, r"is \d+ symbols long, and one pass takes at most 60: allow it to be split"),
        (LONG[:50], 0.5, r"takes \d+ mel frames at speed 0.5, and one pass takes at most 160: allow it to be split"),
    ],
)
def test_a_text_that_must_not_be_split_is_refused_with_the_numbers(packaged, text, rate, fault):
    assert_refused(
        fault, lambda: synthesizer(packaged, "mil").speak(text, speed=rate, settings=FastSpeechSettings(split=None))
    )


def test_onnx_keeps_batches(packaged):
    """Rows of different lengths in one call of the graph; the shorter ones are masked."""
    backend = load_backend("onnx:cpu", packaged)
    rng, lengths = np.random.default_rng(0), (9, 14)
    ids, mask = np.zeros((2, 14), np.int64), np.zeros((2, 14), np.float32)
    for row, length in enumerate(lengths):
        ids[row, :length], mask[row, :length] = rng.integers(1, SMALL.embeddings, length), 1
    together = backend.run("text", ids=ids, mask=mask)
    for row, length in enumerate(lengths):
        alone = backend.run("text", ids=ids[row : row + 1, :length], mask=mask[row : row + 1, :length])
        assert np.abs(together[row, :length] - alone[0]).max() <= 5e-6


@pytest.fixture
def graphs(packaged) -> Path:
    """The folder of the ONNX graphs of the text and of the mel."""
    [path] = [package.path for package in packaged.onnx_packages if package.network == "fastspeech"]
    return packaged.path / path


def positions_in(path: Path) -> onnx.TensorProto:
    stored = onnx.load(path, load_external_data=False).graph.initializer
    [table] = [tensor for tensor in stored if tensor.name.endswith("positions.table")]
    return table


def test_onnx_graphs_name_their_axes_and_share_one_table_of_positions(graphs):
    assert input_axes(graphs / "text.onnx") == {"ids": ["batch", "symbols"], "mask": ["batch", "symbols"]}
    assert input_axes(graphs / "mel.onnx") == {
        "states": ["batch", "symbols", SMALL.d_model],
        "alignment": ["batch", "symbols", "frames"],
        "mask": ["batch", "frames"],
    }
    tables = [positions_in(graphs / f"{kind}.onnx").external_data for kind in ("text", "mel")]
    text, mel = ({entry.key: entry.value for entry in table} for table in tables)
    assert text == mel
    assert text["location"] == WEIGHTS_FILE


def test_every_length_of_a_tensorrt_engine_has_positions(graphs):
    """An engine is built for the largest length of its bucket, 256, which exceeds the model's 200 positions."""
    shapes = {"states": (3, 50, SMALL.d_model), "alignment": (3, 50, 190), "mask": (3, 190)}
    profile = shape_profile(input_axes(graphs / "mel.onnx"), shapes)
    assert profile["trt_profile_max_shapes"] == f"states:4x64x{SMALL.d_model},alignment:4x64x256,mask:4x256"
    assert positions_in(graphs / "mel.onnx").dims[0] >= 256


def test_speech_on_engines_of_some_ranges_is_split_to_fit_them_and_not_cut_off(packaged, tmp_path, monkeypatch):
    """ONNX Runtime on the CPU, which gets the graphs, with the options that TensorRT would get."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    requested: set[tuple[str, str]] = set()

    def load(key: SessionKey):
        requested.add((key.path.stem, dict(key.options)["trt_profile_max_shapes"]))
        return session_loader(DEVICES["cpu"])(SessionKey(key.path))

    ranges = TensorRTOptions(engine_symbols=(16, 40), engine_frames=(64, 128), engine_batch=2)
    backend = OnnxBackend(
        packaged,
        replace(DEVICES["tensorrt"], memory="cpu"),
        load_backend("torch:cpu", packaged),
        load=load,
        machine="a GPU",
        options=ranges,
    )
    on_engines = FastSpeechSynthesizer(packaged, backend)
    assert (on_engines.most_symbols, on_engines.most_frames) == (40, 128)
    speech = on_engines.speak(LONG)
    assert joined(speech) == LONG.replace(" ", "")
    assert max(map(len, speech.durations)) <= 40
    assert snr_db(synthesizer(packaged, "torch:cpu").speak("Yes.").audio, on_engines.speak("Yes.").audio) >= 80
    assert {shapes for graph, shapes in requested if graph == "text"} == {"ids:6x40,mask:6x40", "ids:2x16,mask:2x16"}, (
        "six chunks in a pass, and one"
    )
    assert {shapes.rpartition("x")[2] for graph, shapes in requested if graph == "mel"} <= {"64", "128"}


def test_the_benchmark_of_engines_calls_both_sides(packaged, tmp_path):
    """On ONNX Runtime's CPU, where no engine is built."""
    run_benchmarks(
        [
            "engines",
            "--bundle",
            str(packaged.path),
            "--backend",
            "onnx:cpu",
            "--rounds",
            "1",
            "-o",
            str(tmp_path / "out.json"),
        ]
    )
    [row] = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert (row["what"], row["figures"].keys()) == ("usual ranges", {"first_s", "cached_s", "rebuilt_s"})


@pytest.mark.parametrize(("flags", "functions"), [(("mil", "--layers"), 5), (("onnx:cpu", "--layers"), 3)])
def test_verify_compares_every_function_and_the_values_inside(packaged, capsys, flags, functions):
    assert main(["verify", "--bundle", str(packaged.path), "--json", "-", "--against", *flags]) == 0
    found = json.loads(capsys.readouterr().out)["functions"]
    assert len(found) == functions
    assert all(function["passed"] and function["snr"] >= 90 and function["drift"] is None for function in found)
    inside = {function["function"]: {value["module"] for value in function["values"]} for function in found}
    for kind, paths in {
        "text": {
            "phoneme_side.layer_stack.0.slf_attn",
            "phoneme_side.layer_stack.1.pos_ffn.w_1",
            "length_regulator.duration_predictor.conv1d_2",
        },
        "mel": {"mel_side.layer_stack.0.pos_ffn.w_2"},
        "vocoder": {"conv_pre", "ups.1", "resblocks.0"},
    }.items():
        assert paths <= next(modules for name, modules in inside.items() if name.startswith(kind))


LAYER = (
    "slf_attn.linear",
    "slf_attn.scaled_dot",
    "slf_attn.residual",
    "slf_attn.ln",
    "pos_ffn.conv1",
    "pos_ffn.conv2",
    "pos_ffn.residual",
    "pos_ffn.ln",
)


def test_values_inside_onnx_graphs_have_nvidias_names(packaged, tmp_path):
    """All of those that its verify_trt.py compares, apart from ``out.seq_mask``, which the host makes."""
    assert (
        main(
            [
                "verify",
                "--bundle",
                str(packaged.path),
                "--against",
                "onnx:cpu",
                "--networks",
                "fastspeech",
                "--layers",
                "--json",
                str(tmp_path / "out.json"),
            ]
        )
        == 0
    )
    values = [value for one in json.loads((tmp_path / "out.json").read_text())["functions"] for value in one["values"]]
    names = {f"act.{side}.{name}" for side in ("phoneme_side", "mel_side") for name in ("add_pos_enc", "seq")}
    for side, layers in (("phoneme_side", SMALL.phoneme_side_n_layer), ("mel_side", SMALL.mel_side_n_layer)):
        blocks = [f"act.{side}.layer_stack.{layer}" for layer in range(layers)]
        names |= {*blocks, *(f"{block}.{name}" for block in blocks for name in LAYER)}
    assert {value["published"] for value in values} - {""} == names | {
        "act.emb",
        "act.length_regulator.dur",
        "act.length_regulator.seq",
        "out.seq",
    }
    assert max(value["error"] for value in values) <= 1e-4
    assert all(value["count"] and not value["outside"] for value in values)


@pytest.mark.parametrize(
    ("graph", "weight", "name"),
    [
        ("text", "phoneme_side.layer_stack.1.pos_ffn.w_1", "act.phoneme_side.layer_stack.1.pos_ffn.conv1"),
        ("mel", "mel_side.layer_stack.0.slf_attn.linear", "act.mel_side.layer_stack.0.slf_attn.linear"),
    ],
)
def test_a_changed_weight_of_an_onnx_graph_is_the_first_that_drifts(packaged, tmp_path, capsys, graph, weight, name):
    path = Path(shutil.copytree(packaged.path, tmp_path / "copy"))
    spoil_onnx(path, "packages/fastspeech-fp32.onnx", graph, weight)
    assert main(["verify", "--bundle", str(path), "--against", "onnx:cpu", "--function", graph, "--layers"]) == 1
    out, err = capsys.readouterr()
    assert f"fastspeech-fp32, {graph}: {name} drifts first;" in " ".join(out.split())
    assert f"drifting since {name}" in " ".join(err.split())


def test_the_default_buckets_cover_the_model(imported):
    lengths = {row.kind: row.bucket.lengths(imported) for row in FUNCTIONS if row.kind in BUCKETS}
    assert lengths == {"text": (32, 64, 96, 128, 192, 200), "mel": (200,), "vocoder": (14, 62)}


def test_only_some_networks(imported, tmp_path):
    """The others run on torch, which the backend's name says."""
    out = tmp_path / "out"
    assert (
        main(
            [
                "convert",
                str(imported.path),
                "--to",
                "coreml",
                "--networks",
                "vocoder",
                "--precision",
                "fp32",
                "--buckets",
                "vocoder=14",
                "-o",
                str(out),
            ]
        )
        == 0
    )
    model = synthesizer(Bundle(out), "mil")
    assert (model.backend.name, model.most_symbols) == ("mil fp32, on torch: fastspeech", SMALL.max_seq_len)
    assert len(model.speak("Yes.").audio)
