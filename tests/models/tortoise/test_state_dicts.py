"""The networks have the keys and shapes of upstream's classes at the official sizes.

state_dicts/*.json map keys to shapes, taken from upstream 3.0.0. The networks are on the meta device, without memory.
"""

import json
import math
from pathlib import Path

import pytest
import torch

from ane.bundles.weights import layout
from ane.models.tortoise.networks import NETWORKS

TABLES = Path(__file__).parent / "state_dicts"
FILES = sorted({network.file for network in NETWORKS.values()})
PARAMETERS = {      # of the published files, weight norm counted as gain and direction; BigVGAN without its filters
    "bigvgan_24khz_100band.pth": 112_446_290,
    "autoregressive.pth": 421_526_786, "classifier.pth": 15_224_002, "clvp2.pth": 243_846_145, "cvvp.pth": 37_780_225,
    "diffusion_decoder.pth": 292_334_380, "hifidecoder.pth": 17_844_226, "rlg_auto.pth": 6_297_600,
    "rlg_diffuser.pth": 25_178_112, "vocoder.pth": 14_865_506,
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


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_the_keys_and_shapes_of_upstream(name):
    upstream = table(NETWORKS[name].file)
    assert as_upstream(name, upstream).items() <= upstream.items()


@pytest.mark.parametrize("file", FILES)
def test_the_networks_of_a_file_use_each_of_its_keys_once(file):
    upstream = table(file)
    parts = [as_upstream(name, upstream) for name, network in NETWORKS.items() if network.file == file]
    assert sorted(key for part in parts for key in part) == sorted(upstream)


@pytest.mark.parametrize("file", FILES)
def test_a_table_has_as_many_parameters_as_the_published_file(file):
    rotary_frequencies = "inv_freq"      # buffers, which are not counted
    assert PARAMETERS[file] == sum(math.prod(shape) for key, shape in table(file).items()
                                   if not key.endswith(rotary_frequencies))


@pytest.mark.parametrize("name", NETWORKS)
def test_all_tensors_of_a_network_are_floats_so_that_every_precision_applies(name):
    with torch.device("meta"):
        module = NETWORKS[name].module(NETWORKS[name].official())
    assert all(value.is_floating_point() for value in module.state_dict().values())
