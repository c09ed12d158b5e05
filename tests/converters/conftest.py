"""Convert the embedded voice once for all tests of a run, with few buckets."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from ane.bundles import open_model
from ane.bundles.bundle import Bundle
from converters.coreml.coreml_package import CoreMLOptions
from tests.conversions import converted
from tests.random_model import write_random_bundle

BUCKETS = {
    "prefill": (64,),
    "condition": (64,),
    "denoise": (320,),
    "clvp_text": (64,),
    "univnet": (62,),
    "hifigan": (62,),
    "source_filter": (64,),
    "mel_source_filter": (64,),
}


SPEAKING = ("autoregressive", "clvp", "diffusion", "source_filter", "mel_source_filter")


def embedded(shared: Path, precision: str, caches: tuple[str, ...], networks: Sequence[str] | None = None) -> Bundle:
    options = CoreMLOptions(precision, lanes=(1, 8), caches=caches, buckets=BUCKETS)
    return converted(shared, open_model("demo"), [options], networks)


@pytest.fixture(scope="session")
def fp16_bundle(shared: Path) -> Bundle:
    return embedded(shared, "fp16", ("io", "state"))


@pytest.fixture(scope="session")
def fp32_bundle(shared: Path) -> Bundle:
    """The networks that speak and that the other bundle does not have in fp32 already, as it has UnivNet."""
    return embedded(shared, "fp32", ("io",), SPEAKING)


@pytest.fixture
def source(tmp_path: Path) -> Bundle:
    write_random_bundle(tmp_path / "source")
    return Bundle(tmp_path / "source")
