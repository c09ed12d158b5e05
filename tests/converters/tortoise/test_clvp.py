"""Test what CLVP and the clip encoders reject or leave out. test_conformance.py compares their outputs."""

from pathlib import Path

import numpy as np
import pytest

from ane.backends.mil import Package
from ane.backends.packaged.functions import PackageFunction
from ane.models.tortoise.family import STAGES
from ane.models.tortoise.packaged import clvp_vectors
from ane.system.errors import UserError
from converters.tortoise import conditioning
from tests.backends.packaged.packages import FP32, reference_network, saved


class StoredFunctions(list):
    """The functions of a package, all of one kind."""

    def functions(self, kind: str) -> "StoredFunctions":
        return self


@pytest.mark.parametrize(
    ("ids", "fault"),
    [
        ([7] * 41, "the speech needs 41 positions"),
        ([3, 90], "the speech has the id 90, but CLVP has embeddings only for ids from 0 to 89"),
        ([3, -1], "the id -1"),
    ],
)
def test_too_long_or_unknown_ids_are_reported(ids, fault):
    served = [PackageFunction(None, Path("clvp.mlpackage"), "clvp_speech_40", {"positions": 40}, "ALL")]
    with pytest.raises(UserError, match=fault):
        clvp_vectors(served, np.zeros((90, 4), np.float32), 1.0, "the speech", np.array([ids]))


def test_the_last_block_computes_only_the_first_column(tmp_path):
    graph = conditioning.ar_conditioning(reference_network("conditioning_encoder"), 33)
    [path] = saved([graph], FP32, tmp_path).values()
    scores = [
        type.shape for op in Package(path).function(None).ops if op.type == "softmax" for type in op.outputs.values()
    ]
    assert [shape[2] for shape in scores] == [33] * 5 + [1]


@pytest.mark.parametrize("length", [516, 518])
def test_a_clip_of_another_length_is_reported(length):
    package = Path("conditioning_encoder.mlpackage")
    served = [PackageFunction(None, package, "ar_conditioning_517", {"frames": 517}, "ALL")]
    with pytest.raises(UserError, match=f"{length} mel frames: conditioning_encoder takes exactly 517 frames"):
        STAGES["ar_conditioning"].packaged(StoredFunctions(served), "", {"mel": np.zeros((1, 80, length), np.float32)})
