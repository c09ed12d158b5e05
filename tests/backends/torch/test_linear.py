"""Test the decoder's linear layers, which are packed for the CPU."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.torch import linear as torch_linear
from ane.backends.torch.backend import TorchBackend, choose_precision
from ane.backends.torch.kernels import KernelLinear, has_kernel
from ane.backends.torch.linear import (
    FEW_ROWS,
    HalfPrecisionLinear,
    HalfWeightLinear,
    Int8FewRowsLinear,
    Int8Linear,
    Int8TwoDigitLinear,
    Int8WeightLinear,
    PackedLinear,
    exact_prepacking,
    has_fbgemm,
    has_fbgemm_int8,
    prepacking,
    quantise,
)
from ane.system.decibels import snr_db
from tests.random_model import random_model
from tests.refusals import assert_refused

CPU = torch.device("cpu")
VNNI = torch.cpu._is_vnni_supported() and torch.backends.mkldnn.is_available()

# layer, whether this machine has a kernel for it, and the SNR in dB that it must reach
PACKINGS = {
    "torch fp16": (HalfPrecisionLinear, True, 60.0),
    "oneDNN fp32": (partial(PackedLinear, dtype=torch.float32), torch.backends.mkldnn.is_available(), 110.0),
    "oneDNN bf16": (
        partial(PackedLinear, dtype=torch.bfloat16),
        torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported(),
        45.0,
    ),
    "FBGEMM fp16": (HalfWeightLinear, has_fbgemm(), 70.0),
    "oneDNN int8": (Int8Linear, VNNI, 35.0),
    "FBGEMM int8": (Int8FewRowsLinear, VNNI and has_fbgemm_int8(), 35.0),
    "FBGEMM int8, 7 bits": (partial(Int8FewRowsLinear, levels=127), has_fbgemm_int8(), 30.0),
    "FBGEMM int8, 14 bits": (Int8TwoDigitLinear, has_fbgemm_int8(), 38.0),
    "torch int8": (Int8WeightLinear, True, 38.0),
    **{
        f"own {kind}": (partial(KernelLinear, kind=kind), has_kernel(kind), threshold)
        for kind, threshold in (("int8", 35.0), ("bf16", 45.0), ("fp16", 70.0), ("fp32", 110.0))
    },
}
INT8 = (Int8Linear, Int8FewRowsLinear, Int8TwoDigitLinear, Int8WeightLinear)
AVAILABLE = {name: (make, threshold) for name, (make, available, threshold) in PACKINGS.items() if available}


def random_layer(inputs: int = 192, outputs: int = 130) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(inputs, outputs, generator=generator).T * torch.logspace(-2, 1, outputs)[:, None],
        torch.randn(outputs, generator=generator),
    )


@pytest.fixture
def no_kernels(monkeypatch) -> None:
    """As where the package's own kernels are not compiled."""
    monkeypatch.setattr(torch_linear, "kernel_packing", lambda weights: None)


@pytest.mark.parametrize("name", AVAILABLE)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_a_packed_layer_computes_what_the_plain_layer_computes(name, stored):
    make, threshold = AVAILABLE[name]
    weight, bias = (tensor.to(stored) for tensor in random_layer())
    x = torch.randn(2, 30, 192, generator=torch.Generator().manual_seed(1))
    actual = make(weight, bias)(x)
    exact = torch.nn.functional.linear(x, weight.float(), bias.float())
    assert (actual.dtype, actual.shape) == (torch.float32, (2, 30, 130))
    assert min(snr_db(exact[..., channel], actual[..., channel]) for channel in range(130)) > threshold - 6
    assert snr_db(exact, actual) > threshold


@pytest.mark.parametrize("name", AVAILABLE)
def test_a_row_does_not_depend_on_its_neighbours(name):
    layer, x = AVAILABLE[name][0](*random_layer()), torch.randn(5, 192, generator=torch.Generator().manual_seed(1))
    scaled = x.clone()
    scaled[1:] *= 1000
    torch.testing.assert_close(layer(scaled)[0], layer(x)[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer(x[:1])[0], layer(x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", AVAILABLE)
def test_constant_rows_and_zero_weights_are_exact_enough_and_large_sums_do_not_overflow(name):
    make, threshold = AVAILABLE[name]
    weight, bias = random_layer()
    weight[3] = 0
    x = torch.stack((torch.zeros(192), torch.ones(192), -torch.ones(192)))
    actual = make(weight, bias)(x)
    assert snr_db(torch.nn.functional.linear(x, weight, bias), actual) > threshold - 8
    torch.testing.assert_close(actual[0], bias, rtol=0.01, atol=1e-3)
    torch.testing.assert_close(actual[:, 3], bias[3].expand(3), rtol=0.01, atol=1e-3)
    # without VNNI, x86 adds two 8-bit products in 16 bits, which overflow for the largest activations
    weight, x = torch.ones(16, 192), torch.ones(3, 192)
    x[:, -1] = 0
    torch.testing.assert_close(make(weight, torch.zeros(16))(x), x @ weight.T, rtol=0.01, atol=0)


@pytest.mark.parametrize(
    ("make", "few", "many"), [(HalfPrecisionLinear, 60.0, 120.0), (Int8WeightLinear, 120.0, 120.0)]
)
def test_a_cpu_that_is_not_x86_multiplies_few_rows_as_stored_and_many_in_float32(make, few, many):
    """Compared with a product of the same rounded weights in float64."""
    layer = make(*random_layer())
    weight = layer.weight.double() * (layer.scale[:, None] if make is Int8WeightLinear else 1)
    for rows, threshold in ((1, few), (FEW_ROWS, few), (FEW_ROWS + 1, many), (300, many)):
        x = torch.randn(rows, 192, generator=torch.Generator().manual_seed(1))
        exact = torch.nn.functional.linear(x.double(), weight, layer.bias.double())
        assert snr_db(exact, layer(x).double()) > threshold
        assert (snr_db(exact, layer(x).double()) > 120) == (threshold == 120)
        torch.testing.assert_close(layer(x[:, None]), layer(x)[:, None], rtol=0, atol=0)
    # 2 bytes per fp16 weight, and 1 per int8 weight: no copy in float32 is kept
    stored = sum(tensor.nbytes for tensor in vars(layer).values() if isinstance(tensor, torch.Tensor))
    assert stored == layer.weight.numel() * layer.weight.element_size() + 4 * 130 * (1 + (make is Int8WeightLinear))


@pytest.mark.parametrize("name", [name for name in ("FBGEMM fp16", "own fp16") if name in AVAILABLE])
def test_weights_stored_in_fp16_stay_exact(name):
    weight, bias = (tensor.half() for tensor in random_layer())
    x = torch.randn(4, 192, generator=torch.Generator().manual_seed(1))
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    assert snr_db(exact, AVAILABLE[name][0](weight, bias)(x).double()) > 120


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
def test_a_quantised_weight_differs_by_at_most_half_a_step(outputs, inputs, seed, size):
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * size
    values, scale = quantise(weight)
    assert values.dtype == torch.int8
    assert int(values.abs().max()) <= 127
    assert ((values * scale[:, None] - weight).abs() <= 0.5001 * scale[:, None]).all()


def test_a_cpu_without_special_instructions_uses_portable_kernels(monkeypatch, no_kernels):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    if "FBGEMM int8, 14 bits" in AVAILABLE:
        assert prepacking("int8") is Int8TwoDigitLinear
        assert prepacking("bf16") is HalfWeightLinear
    monkeypatch.setattr(torch_linear, "has_fbgemm", lambda: False)
    monkeypatch.setattr(torch_linear.platform, "machine", lambda: "arm64")
    assert prepacking("int8") is Int8WeightLinear
    assert prepacking("bf16") is prepacking("fp16") is HalfPrecisionLinear
    assert prepacking("fp32") is None


@pytest.mark.skipif("FBGEMM int8, 7 bits" not in AVAILABLE, reason="FBGEMM runs on x86 with AVX2: run it there")
@pytest.mark.parametrize(
    ("vnni", "fastest", "earlier"),
    [(True, Int8FewRowsLinear, Int8Linear), (False, Int8TwoDigitLinear, Int8WeightLinear)],
)
def test_a_torch_without_fbgemms_kernel_uses_another(monkeypatch, no_kernels, vnni, fastest, earlier):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: vnni)
    assert prepacking("int8") is fastest
    monkeypatch.setattr(torch_linear, "FBGEMM_PRODUCT", "a_kernel_of_an_earlier_release")
    assert prepacking("int8") is earlier


def test_half_precision_is_computed_in_float32_where_the_cpu_lacks_it_with_weights_as_stored(monkeypatch, no_kernels):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    for wanted in ("bf16", "fp16"):
        assert choose_precision(wanted, "bf16", CPU).dtype == torch.float32
    for stored in ("fp16", "bf16", "fp32"):
        chosen = choose_precision("auto", stored, CPU)
        assert (chosen.name, chosen.dtype) == ("fp32", torch.float32)
        if "FBGEMM fp16" in AVAILABLE:
            assert (chosen.linear is HalfWeightLinear) == (stored != "fp32")
            if stored != "fp32":
                assert exact_prepacking(stored) is chosen.linear
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert choose_precision("bf16", "fp16", CPU).dtype == torch.bfloat16


def test_int8_is_used_only_when_requested_and_for_decoder_and_denoiser_alone(no_kernels):
    for stored in ("fp16", "bf16", "fp32"):
        default, int8 = choose_precision("auto", stored, CPU), choose_precision("int8", stored, CPU)
        assert default.linear not in INT8
        assert int8.linear in INT8
        assert int8.dtype == default.dtype
    assert_refused("int8 runs on the CPU only", lambda: choose_precision("int8", "fp16", torch.device("cuda")))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "int8"])
def test_the_decoder_reaches_its_threshold_in_every_precision(precision):
    model = random_model()
    rng = np.random.default_rng(0)
    prefix, columns = (rng.standard_normal(shape, dtype=np.float32) for shape in ((9, 64), (4, 3, 1, 64)))

    def logits_in(precision: str) -> torch.Tensor:
        decoder = TorchBackend(model, "cpu", precision).decoder(3, 4)
        decoder.prefill(prefix)
        steps = [decoder.step(column, np.full(3, at)) for at, column in enumerate(columns)]
        return torch.from_numpy(np.stack([logits for _, logits in steps]))

    threshold = {"fp32": 120, "bf16": 35, "fp16": 60, "int8": 25}[precision]
    assert snr_db(logits_in("fp32"), logits_in(precision)) > threshold


def test_a_packed_decoder_has_no_second_copy_of_its_weights():
    network = TorchBackend(random_model(), "cpu", "int8").network("autoregressive")
    floats = [name for name, tensor in network.state_dict().items() if tensor.ndim > 1 and not tensor.is_meta]
    assert floats == []
