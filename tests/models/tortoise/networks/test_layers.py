"""Layers that are computed in another way than upstream's give the same numbers."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ane.models.tortoise.networks import layers


@pytest.mark.parametrize(("length", "block"), [(40, 2**20), (40, 2 * 40**2), (40, 1)])
def test_attention_in_blocks_equals_attention_at_once(length, block, monkeypatch):
    monkeypatch.setattr(layers, "SCORES", block)
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 5, length, 8, generator=generator).unbind()
    bias = torch.randn(5, length, length, generator=generator)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])
    torch.testing.assert_close(layers.attention_in_blocks(q, k, v, bias), expected.transpose(1, 2).flatten(2))


def test_a_relative_bias_of_fp16_weights_is_scaled_in_float32():
    bias = layers.RelativePositionBias(2, 23.0)
    half = layers.RelativePositionBias(2, 23.0).half()
    half.load_state_dict(bias.state_dict())
    bias.load_state_dict(half.state_dict())
    torch.testing.assert_close(half(40, torch.float32), bias(40, torch.float32), rtol=0, atol=0)


@pytest.mark.parametrize("length", [1, 2, 7, 90])
def test_attention_adds_the_bias_of_each_query_and_key(length):
    bias, generator = layers.RelativePositionBias(5, 2.0), torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 5, length, 8, generator=generator).unbind()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias(length, torch.float32)[None])
    torch.testing.assert_close(layers.relative_attention(q, k, v, bias, length), expected.transpose(1, 2).flatten(2))


def test_a_relative_bias_is_kept_for_one_length_in_inference_only(monkeypatch):
    bias, computed, lengths = layers.RelativePositionBias(2, 23.0), layers.RelativePositionBias.computed, []
    monkeypatch.setattr(layers.RelativePositionBias, "computed",
                        lambda self, *key: lengths.append(key[0]) or computed(self, *key))
    with torch.inference_mode():
        for length, dtype in ((7, torch.float32), (7, torch.float32), (7, torch.bfloat16), (9, torch.float32),
                              (7, torch.float32)):
            assert torch.equal(bias.by_distance(length, dtype), computed(bias, length, dtype))
            assert bias(length, dtype).dtype == dtype
        assert lengths == [7, 7, 9, 7]
    bias(8, torch.float32).sum().backward()         # training: nothing is kept, and nothing kept is used
    assert bias.relative_attention_bias.weight.grad is not None


def test_on_a_gpu_the_whole_bias_is_kept_for_one_length():
    bias = layers.RelativePositionBias(2, 23.0).to("meta")       # any device but the CPU
    with torch.inference_mode():
        first = bias(7, torch.float32)
        assert first.shape == (2, 7, 7)
        assert bias(7, torch.float32) is first
        assert bias(9, torch.float32).shape == (2, 9, 9)
        assert bias(7, torch.float32) is not first


def test_threads_that_keep_biases_of_different_lengths_each_get_their_own():
    bias, switch = layers.RelativePositionBias(2, 23.0), sys.getswitchinterval()

    def lengths_found(length: int) -> set[int]:
        with torch.inference_mode():
            return {bias.by_distance(length, torch.float32).shape[1] for _ in range(3000)}

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as threads:
            assert list(threads.map(lengths_found, (5, 9, 14))) == [{9}, {17}, {27}]
    finally:
        sys.setswitchinterval(switch)
