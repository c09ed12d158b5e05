"""Provide a small FastSpeech with a vocoder as a bundle, with float32 packages for Core ML and ONNX."""

from pathlib import Path

import pytest

from ane.bundles.bundle import Bundle
from ane.bundles.writing import write_bundle
from ane.models.fastspeech.checkpoints import import_fastspeech
from converters.coreml.coreml_package import CoreMLOptions
from converters.onnx.onnx_package import OnnxOptions, OnnxTarget
from tests.conversions import converted
from tests.fastspeech_files import write_fastspeech, write_hifigan

BUCKETS = {"text": (24, 60), "mel": (64, 160), "vocoder": (62,)}


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Without packages; tests must not change it."""
    folder = tmp_path_factory.mktemp("fastspeech")
    write_fastspeech(folder / "checkpoint.pt")
    write_hifigan(folder / "generator.pth")
    contents = import_fastspeech(folder / "checkpoint.pt", vocoder=folder / "generator.pth")
    return write_bundle(contents, folder / "bundle", name="small")


@pytest.fixture(scope="session")
def packaged(imported: Bundle, shared: Path) -> Bundle:
    """With packages; tests must not change it."""
    core_ml = converted(shared, imported, [CoreMLOptions("fp32", buckets=BUCKETS)])
    return converted(shared, core_ml, [OnnxOptions()], target=OnnxTarget())
