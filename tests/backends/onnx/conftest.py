import pytest

from ane.bundles.bundle import Bundle
from tests.onnx_packages import OnnxPackages


@pytest.fixture(scope="session")
def bundle(onnx_packages: OnnxPackages) -> Bundle:
    """The tiny bundle with ONNX packages of every network, shared by all workers of a run."""
    return onnx_packages.bundle()


@pytest.fixture(scope="session")
def decoder_bundle(onnx_packages: OnnxPackages) -> Bundle:
    """The same with packages of the decoder alone."""
    return onnx_packages.bundle("autoregressive")
