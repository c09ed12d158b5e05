"""Provide a small FastSpeech with a vocoder as a bundle, with float32 packages for Core ML and ONNX."""

from pathlib import Path

import pytest

from ane.bundles.bundle import Bundle
from converters.coreml.coreml_package import CoreMLOptions
from converters.onnx.onnx_package import OnnxOptions, OnnxTarget
from tests.conversions import converted
from tests.fastspeech_files import fastspeech_bundle
from tests.shallow import shallow

BUCKETS = {"text": (24, 60), "mel": (64, 160), "vocoder": (62,)}


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Without packages, and with one convolution in each block of the vocoder; tests must not change it."""
    folder, blocks = tmp_path_factory.mktemp("fastspeech"), {"resblock_dilation_sizes": ((1,), (1,), (1,))}
    return shallow(fastspeech_bundle(folder), folder / "shallow", vocoder=blocks)


@pytest.fixture(scope="session")
def packaged(imported: Bundle, shared: Path) -> Bundle:
    """With packages; tests must not change it."""
    core_ml = converted(shared, imported, [CoreMLOptions("fp32", buckets=BUCKETS)])
    return converted(shared, core_ml, [OnnxOptions()], target=OnnxTarget())
