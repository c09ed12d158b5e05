"""The embedded voice converted once for all tests of a run, with few buckets."""

from pathlib import Path

import pytest
from filelock import FileLock

from ane.bundles import open_model
from ane.bundles.bundle import Bundle
from converters.conversion import convert
from converters.coreml.package import CoreMLOptions
from tests.random_model import write_random_bundle

BUCKETS = {"prefill": (64,), "condition": (64,), "denoise": (320,), "sample": (320,), "steps": (3,),
           "clvp_text": (64,), "univnet": (62,), "hifigan": (62,)}


def converted(folder: Path, precision: str, caches: tuple[str, ...]) -> Bundle:
    """The embedded bundle with packages, converted by the first worker that needs it; read-only."""
    path = folder / f"demo-{precision}"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            convert(open_model("demo"), path, [CoreMLOptions(precision, lanes=(1, 8), caches=caches, buckets=BUCKETS)])
    return Bundle(path)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder shared by all workers of a run."""
    own = tmp_path_factory.getbasetemp()
    return own if worker_id == "master" else own.parent


@pytest.fixture(scope="session")
def fp16_bundle(shared: Path) -> Bundle:
    return converted(shared, "fp16", ("io", "state"))


@pytest.fixture(scope="session")
def fp32_bundle(shared: Path) -> Bundle:
    return converted(shared, "fp32", ("io",))


@pytest.fixture
def source(tmp_path: Path) -> Bundle:
    write_random_bundle(tmp_path / "source")
    return Bundle(tmp_path / "source")
