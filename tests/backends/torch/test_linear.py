"""The decoder's linear layers, packed for the CPU."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.torch import linear as torch_linear
from ane.backends.torch.backend import TorchBackend, choose_precision
from ane.backends.torch.linear import (
    HalfWeightLinear,
    Int8Linear,
    Int8WeightLinear,
    PackedLinear,
    RowsLinear,
    exact_prepacking,
    prepacking,
    quantised,
)
from ane.system.errors import UserError
from tests.random_model import RandomModel

CPU = torch.device("cpu")
VNNI = torch.cpu._is_vnni_supported() and torch.backends.mkldnn.is_available()

# how a layer is packed, what this machine must have for it, and dB that it must keep of normal numbers
PACKINGS = {
    "rows bf16": (partial(RowsLinear, dtype=torch.bfloat16), True, 45.0),
    "oneDNN fp32": (partial(PackedLinear, dtype=torch.float32), torch.backends.mkldnn.is_available(), 110.0),
    "oneDNN bf16": (partial(PackedLinear, dtype=torch.bfloat16),
                    torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported(), 45.0),
    "FBGEMM fp16": (HalfWeightLinear, "fbgemm" in torch.backends.quantized.supported_engines, 70.0),
    "oneDNN int8": (Int8Linear, VNNI, 35.0),
    "torch int8": (Int8WeightLinear, True, 38.0),
}
HERE = {name: (make, bar) for name, (make, there, bar) in PACKINGS.items() if there}


def kept(exact: torch.Tensor, got: torch.Tensor) -> float:
    """Signal-to-noise ratio in dB."""
    return float(10 * torch.log10(exact.square().sum() / (exact - got).square().sum()))


def a_layer(inputs: int = 192, outputs: int = 130) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(inputs, outputs, generator=generator).T * torch.logspace(-2, 1, outputs)[:, None],
            torch.randn(outputs, generator=generator))


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_a_packed_layer_computes_what_the_plain_one_does(name, stored):
    make, bar = HERE[name]
    weight, bias = (tensor.to(stored) for tensor in a_layer())
    x = torch.randn(2, 30, 192, generator=torch.Generator().manual_seed(1))
    got = make(weight, bias)(x)
    exact = torch.nn.functional.linear(x, weight.float(), bias.float())
    assert (got.dtype, got.shape) == (torch.float32, (2, 30, 130))
    assert min(kept(exact[..., channel], got[..., channel]) for channel in range(130)) > bar - 6
    assert kept(exact, got) > bar


@pytest.mark.parametrize("name", HERE)
def test_a_row_does_not_depend_on_its_neighbours(name):
    layer, x = HERE[name][0](*a_layer()), torch.randn(5, 192, generator=torch.Generator().manual_seed(1))
    loud = x.clone()
    loud[1:] *= 1000
    torch.testing.assert_close(layer(loud)[0], layer(x)[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer(x[:1])[0], layer(x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", HERE)
def test_rows_of_one_value_and_of_zeros_are_as_right_as_any(name):
    weight, bias = a_layer()
    weight[3] = 0
    x = torch.stack((torch.zeros(192), torch.ones(192), -torch.ones(192)))
    got = HERE[name][0](weight, bias)(x)
    assert kept(torch.nn.functional.linear(x, weight, bias), got) > HERE[name][1] - 8
    torch.testing.assert_close(got[0], bias, rtol=0.01, atol=1e-3)
    torch.testing.assert_close(got[:, 3], bias[3].expand(3), rtol=0.01, atol=1e-3)


@pytest.mark.skipif("FBGEMM fp16" not in HERE, reason="FBGEMM runs on x86 with AVX2")
def test_weights_stored_in_fp16_lose_nothing():
    weight, bias = (tensor.half() for tensor in a_layer())
    x = torch.randn(4, 192, generator=torch.Generator().manual_seed(1))
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    assert kept(exact, HalfWeightLinear(weight, bias)(x).double()) > 120


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
def test_a_quantised_weight_is_off_by_half_a_step_at_most(outputs, inputs, seed, size):
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * size
    values, scale = quantised(weight)
    assert values.dtype == torch.int8
    assert int(values.abs().max()) <= 127
    assert ((values * scale[:, None] - weight).abs() <= 0.5001 * scale[:, None]).all()


def test_a_cpu_without_instructions_takes_kernels_that_need_none(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert prepacking("int8") is Int8WeightLinear
    assert prepacking("bf16").func is RowsLinear
    monkeypatch.setattr(torch_linear.platform, "machine", lambda: "arm64")
    assert prepacking("fp32") is None


def test_weights_stay_as_small_as_they_are_stored_where_the_arithmetic_is_float32(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    for stored in ("fp16", "bf16", "fp32"):
        chosen = choose_precision("auto", stored, CPU)
        assert (chosen.name, chosen.dtype) == ("fp32", torch.float32)
        if "FBGEMM fp16" in HERE:
            assert (chosen.linear is HalfWeightLinear) == (stored != "fp32")
            assert exact_prepacking(stored) == chosen.linear or stored == "fp32"


def test_int8_is_taken_when_it_is_asked_for_alone_and_leaves_the_other_networks_as_they_were():
    for stored in ("fp16", "bf16", "fp32"):
        usual, fewer = choose_precision("auto", stored, CPU), choose_precision("int8", stored, CPU)
        assert usual.linear not in (Int8Linear, Int8WeightLinear)
        assert fewer.linear in (Int8Linear, Int8WeightLinear)
        assert fewer.dtype == usual.dtype
    with pytest.raises(UserError, match="int8 is of the CPU"):
        choose_precision("int8", "fp16", torch.device("cuda"))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "int8"])
def test_the_decoder_says_nearly_the_same_in_every_precision(precision):
    model = RandomModel()
    rng = np.random.default_rng(0)
    prefix, columns = (rng.standard_normal(shape, dtype=np.float32) for shape in ((9, 64), (4, 3, 1, 64)))

    def said(precision: str) -> torch.Tensor:
        decoder = TorchBackend(model, "cpu", precision).decoder(3, 4)
        decoder.prefill(prefix)
        steps = [decoder.step(column, np.full(3, at)) for at, column in enumerate(columns)]
        return torch.from_numpy(np.stack([logits for _, logits in steps]))

    assert kept(said("fp32"), said(precision)) > {"fp32": 120, "bf16": 35, "fp16": 60, "int8": 25}[precision]


def test_a_packed_decoder_holds_no_second_copy_of_its_weights():
    network = TorchBackend(RandomModel(), "cpu", "int8").network("autoregressive")
    floats = [name for name, tensor in network.state_dict().items() if tensor.ndim > 1 and not tensor.is_meta]
    assert floats == []
