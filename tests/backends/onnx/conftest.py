from pathlib import Path

import pytest

from ane.bundles.bundle import Bundle
from tests.backends.onnx.onnx_bundle import onnx_bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Bundle:
    """The tiny bundle with ONNX packages, shared by all workers of a run."""
    own: Path = tmp_path_factory.getbasetemp()
    return onnx_bundle(own if worker_id == "master" else own.parent)
