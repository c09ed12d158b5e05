"""Speech of hibari's packages is that of torch; the windows of a package are its largest buckets."""

from pathlib import Path

import pytest
from filelock import FileLock

from ane.backends import load_backend
from ane.bundles import open_model
from ane.bundles.bundle import Bundle
from ane.models.hibari.synthesizer import HibariSynthesizer
from ane.system.decibels import snr_db
from converters.conversion import convert
from converters.coreml.package import CoreMLOptions
from converters.onnx.package import OnnxOptions, OnnxTarget

BUCKETS = {"text": (48,), "prosody": (160,), "spectra": (96,)}
TEXT = "Hello there. How are you?"


@pytest.fixture(scope="module")
def packaged(shared: Path) -> Bundle:
    """With packages of both formats in float32; tests must not change it."""
    path = shared / "hibari-packages"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            core_ml = convert(open_model("demo-fast"), shared / "hibari-core-ml",
                              [CoreMLOptions("fp32", buckets=BUCKETS)])
            convert(core_ml, path, [OnnxOptions()], target=OnnxTarget())
    return Bundle(path)


@pytest.mark.parametrize("engine", ["mil", "onnx:cpu"])
def test_speech_is_that_of_torch(packaged, engine):
    expected, speech = (HibariSynthesizer(packaged, load_backend(backend, packaged)).speak(TEXT)
                        for backend in ("torch:cpu", engine))
    assert [durations.tolist() for durations in speech.durations] == [found.tolist() for found in expected.durations]
    assert snr_db(expected.audio, speech.audio) >= 50
