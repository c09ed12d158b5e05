"""Test the layers of the networks, their keys and shapes, and their embeddings.

state_dicts/*.json map keys to shapes, from upstream 3.0.0. The networks are on the meta device, so they need no memory.
"""

import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from ane.bundles.weights import layout
from ane.models.tortoise.decoding import Embeddings
from ane.models.tortoise.networks import NETWORKS, layers
from tests.random_model import CONFIGS


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
    monkeypatch.setattr(
        layers.RelativePositionBias, "computed", lambda self, *key: lengths.append(key[0]) or computed(self, *key)
    )
    with torch.inference_mode():
        for length, dtype in (
            (7, torch.float32),
            (7, torch.float32),
            (7, torch.bfloat16),
            (9, torch.float32),
            (7, torch.float32),
        ):
            assert torch.equal(bias.by_distance(length, dtype), computed(bias, length, dtype))
            assert bias(length, dtype).dtype == dtype
        assert lengths == [7, 7, 9, 7]
    bias(8, torch.float32).sum().backward()  # during training, nothing is cached, and nothing cached is used
    assert bias.relative_attention_bias.weight.grad is not None


def test_on_a_gpu_the_whole_bias_is_kept_for_one_length():
    bias = layers.RelativePositionBias(2, 23.0).to("meta")  # stands for any device except the CPU
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


TABLES = Path(__file__).parent / "state_dicts"
PUBLISHED = [*CONFIGS, "bigvgan"]  # all other networks are our own
FILES = sorted({NETWORKS[name].file for name in PUBLISHED})
# numbers of parameters in the published files. Weight norm counts as gain and direction. BigVGAN's filters do not count
PARAMETERS = {
    "bigvgan_24khz_100band.pth": 112_446_290,
    "autoregressive.pth": 421_526_786,
    "clvp2.pth": 243_846_145,
    "diffusion_decoder.pth": 292_334_380,
    "hifidecoder.pth": 17_844_226,
    "rlg_auto.pth": 6_297_600,
    "rlg_diffuser.pth": 25_178_112,
    "vocoder.pth": 14_865_506,
}


def table(file: str) -> dict[str, tuple[int, ...]]:
    stated = json.loads((TABLES / file).with_suffix(".json").read_text())
    return {key: tuple(shape) for key, shape in stated.items()}


def as_upstream(name: str, upstream: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The network's keys and shapes as in its file: with prefix, weight norm as two tensors, and training's keys."""
    network = NETWORKS[name]
    config = network.official()
    result = {}
    for key, shape in {**layout(NETWORKS[name], config).shapes, **network.unused(config)}.items():
        key = network.prefix + key
        if f"{key}_g" in upstream:
            result[f"{key}_g"] = shape[:1] + (1,) * (len(shape) - 1)
            result[f"{key}_v"] = shape
        else:
            result[key] = shape
    return result


@pytest.mark.parametrize("file", FILES)
def test_the_networks_of_a_file_use_each_of_its_keys_once_in_its_shape(file):
    upstream = table(file)
    parts = [as_upstream(name, upstream) for name, network in NETWORKS.items() if network.file == file]
    assert sorted(entry for part in parts for entry in part.items()) == sorted(upstream.items())
    rotary_frequencies = "inv_freq"  # rotary frequencies are buffers, which do not count
    assert PARAMETERS[file] == sum(
        math.prod(shape) for key, shape in upstream.items() if not key.endswith(rotary_frequencies)
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_all_tensors_of_a_network_are_floats_so_that_every_precision_applies(name):
    with torch.device("meta"):
        module = NETWORKS[name].module(NETWORKS[name].official())
    assert all(value.is_floating_point() for value in module.state_dict().values())


CONFIG = CONFIGS["autoregressive"]
WIDTH = 4
EMBEDDINGS = Embeddings(
    *(np.random.default_rng(seed).standard_normal((600, WIDTH), dtype=np.float32) for seed in range(4))
)


def test_a_prefix_is_the_conditioning_then_the_text_then_the_start_code():
    conditioning = np.full((1, WIDTH), 5, np.float32)
    prefix = EMBEDDINGS.prefix(conditioning, [9, 3], CONFIG)
    assert prefix.shape == (Embeddings.prefix_length([9, 3]), WIDTH)
    np.testing.assert_array_equal(prefix[:1], conditioning)
    ids = [CONFIG.start_text_token, 9, 3, CONFIG.stop_text_token]
    np.testing.assert_array_equal(prefix[1:-1], EMBEDDINGS.text[ids] + EMBEDDINGS.text_position[:4])
    np.testing.assert_array_equal(prefix[-1], EMBEDDINGS.code[CONFIG.start_mel_token] + EMBEDDINGS.code_position[0])


def test_codes_become_columns_at_their_positions():
    columns = EMBEDDINGS.codes(np.array([2, 2]), np.array([1, 2]))
    np.testing.assert_array_equal(columns, EMBEDDINGS.code[[2, 2]] + EMBEDDINGS.code_position[[1, 2]])
