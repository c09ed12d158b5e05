"""Test that the decoder on ONNX Runtime returns what the decoder on torch returns."""

from functools import partial

import numpy as np
import pytest

from ane.backends import load_backend
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.decoder import GROWTH
from ane.backends.onnx.providers import DEVICES
from ane.bundles.package_records import PackageFolder
from converters.proof.parity import mean_snr_db
from tests.backends import decoder_steps

FP32_SNR = 100  # dB that float32 reaches if only the order of sums differs
columns = partial(decoder_steps.columns, width=32)


@pytest.fixture(scope="module")
def torch(decoder_bundle):
    return load_backend("torch:cpu", decoder_bundle, "fp32", threads=1, keep=True)


@pytest.fixture(scope="module")
def onnx(decoder_bundle):
    return load_backend("onnx:cpu", decoder_bundle, "fp32", threads=1, keep=True)


def near(expected, actual, threshold: float = FP32_SNR) -> bool:
    return mean_snr_db([*expected], [*actual]) >= threshold


def test_a_cache_that_grows_keeps_its_content(torch, onnx):
    both = torch.decoder(2, 3 * GROWTH), onnx.decoder(2, 3 * GROWTH)
    for one in both:
        one.prefill(columns(0, 6))
    x = columns(1, 2, GROWTH - 2)
    length = np.zeros(2, dtype=np.int64)
    assert near(*(one.step(x, length) for one in both))
    for turn in range(4):  # enough steps to leave the first bucket
        x = columns(turn, 2, 1)
        assert near(*(one.step(x, length + GROWTH - 2 + turn) for one in both))
    assert both[1].lane_caches[0].shape[3] == 2 * GROWTH
    x = columns(7, 2, GROWTH)
    assert near(*(one.step(x, length + GROWTH + 2) for one in both))


@pytest.mark.parametrize(("precision", "threshold"), [("fp16", 50), ("int8", 25), ("int4", 9)])
def test_quantised_decoders_reach_their_threshold(torch, decoder_bundle, precision, threshold):
    (package,) = (
        both for both in decoder_bundle.onnx_packages if (both.network, both.precision) == ("autoregressive", precision)
    )
    assert min(function.parity["cpu"] for function in package.functions.values()) >= threshold
    backend = OnnxBackend(
        decoder_bundle, DEVICES["cpu"], torch, threads=1, unpublished=PackageFolder(decoder_bundle.path, [package])
    )
    both = torch.decoder(2, 8), backend.decoder(2, 8)
    assert near(*(one.prefill(columns(0, 12) / 20) for one in both), threshold=threshold)
    for turn in range(3):
        x = columns(turn, 2, 1) / 20
        assert near(*(one.step(x, np.full(2, turn)) for one in both), threshold=threshold)


def test_a_step_before_any_prefill_is_refused(onnx):
    with pytest.raises(ValueError, match="step needs a prefix"):
        onnx.decoder(2, 4).step(columns(1, 1, 1), np.zeros(1, dtype=np.int64))
