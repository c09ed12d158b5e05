"""Test that a model with source-filter vocoders speaks from packages as on torch, with and without diffusion."""

from pathlib import Path

import numpy as np
import pytest

from ane.backends import load_backend
from ane.bundles import open_model
from ane.bundles.bundle import Bundle
from ane.models.tortoise.vocoding import SourceFilterSound, sound_of
from ane.system.decibels import snr_db
from converters.coreml.coreml_package import CoreMLOptions
from converters.onnx.onnx_package import OnnxOptions, OnnxTarget
from tests.conversions import converted

STAGES = "source_filter", "mel_source_filter"


@pytest.fixture(scope="module")
def packaged(shared: Path) -> Bundle:
    core_ml = converted(
        shared, open_model("demo"), [CoreMLOptions("fp32", buckets=dict.fromkeys(STAGES, (64,)))], STAGES
    )
    return converted(shared, core_ml, [OnnxOptions()], STAGES, target=OnnxTarget())


@pytest.mark.parametrize("engine", ["mil", "onnx:cpu"])
@pytest.mark.parametrize("stage", STAGES)
def test_the_sound_of_a_package_is_that_of_torch(packaged, engine, stage):
    rng, config = np.random.default_rng(0), packaged.config(stage)
    columns = (
        rng.standard_normal((40, config.channels), dtype=np.float32)
        if stage == "source_filter"
        else rng.standard_normal((100, 150), dtype=np.float32) - 4
    )
    expected, found = (
        np.concatenate(
            list(
                sound_of(
                    SourceFilterSound(load_backend(backend, packaged), stage, config, np.random.default_rng(1)), columns
                )
            )
        )
        for backend in ("torch:cpu", engine)
    )
    assert len(found) == len(expected)
    assert snr_db(expected, found) >= 50
