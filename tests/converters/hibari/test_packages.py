"""Test that hibari's packages speak as torch does. A package's windows are its largest buckets."""

import json
from pathlib import Path

import pytest

from ane.audio.mel import diffusion_mel
from ane.backends import load_backend
from ane.bundles import open_model
from ane.bundles.bundle import Bundle
from ane.models.hibari.synthesizer import HibariSynthesizer
from ane.speech.stream import Speech
from ane.system.decibels import snr_db
from converters.coreml.coreml_package import CoreMLOptions
from converters.onnx.onnx_package import OnnxOptions, OnnxTarget
from tests.arrays import assert_equal
from tests.conversions import converted
from tests.shallow import shallow

BUCKETS = {"text": (64,), "prosody": (160,), "spectra": (96,)}
TEXT = "Hello there. How are you?"
FP16_MEL_DB = 36  # required dB of logarithmic mels. Rounding every operation still gives 42


@pytest.fixture(scope="module")
def packaged(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A shallow heart with packages of both formats in float32; tests must not change it."""
    few = {"repeats": 2, "prosody_repeats": 2, "decoder_layers": 2}
    model = shallow(open_model("heart"), tmp_path_factory.mktemp("shallow") / "heart", hibari=few)
    core_ml = converted(shared, model, [CoreMLOptions("fp32", buckets=BUCKETS)])
    return converted(shared, core_ml, [OnnxOptions()], target=OnnxTarget())


def spoken(model: Bundle, *backends: str) -> list[Speech]:
    """The text on torch and on the other backends, which predict the same durations."""
    speeches = [HibariSynthesizer(model, load_backend(name, model)).speak(TEXT) for name in ("torch:cpu", *backends)]
    for speech in speeches:
        assert_equal(speeches[0].durations, speech.durations)
    return speeches


@pytest.mark.parametrize("engine", ["mil", "onnx:cpu"])
def test_speech_is_that_of_torch(packaged, engine):
    expected, speech = spoken(packaged, engine)
    assert snr_db(expected.audio, speech.audio) >= 50


def test_speech_in_fp16_is_that_of_torch(shared):
    """As a Mac converts it, with and without rounding of every operation; samples move with the summed pitch."""
    model = converted(shared, open_model("heart"), [CoreMLOptions(buckets=BUCKETS)])
    assert {package.precision for package in model.packages} == {"fp16"}
    expected, *others = spoken(model, "mil", "mil:fp16")
    for found in others:
        assert snr_db(diffusion_mel(expected.audio), diffusion_mel(found.audio)) >= FP16_MEL_DB


@pytest.mark.parametrize("published", [False, True])
def test_values_inside_onnx_graphs_are_those_of_the_modules(packaged, tmp_path, succeed, published):
    """Of the published graphs, only the outputs are compared."""
    model, report = open_model("heart") if published else packaged, tmp_path / "report.json"
    succeed("verify", "--bundle", model.path, "--against", "onnx:cpu", "--layers", "--json", report)
    found = json.loads(report.read_text())["functions"]
    assert {one["package"].partition("-")[2] for one in found} == {"int8" if published else "fp32"}
    for one in found:
        assert (one["passed"], one["drift"], len(one["values"]) > 10) == (True, None, not published)
