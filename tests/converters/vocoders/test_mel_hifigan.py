"""HiFi-GAN without conditioning as graphs: windows join to the sound of one long call, with both kinds of block."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from ane.models.vocoders.hifigan import MelHifigan, MelHifiganConfig
from ane.models.vocoders.segments import HifiganVocoder
from ane.system.decibels import snr_db
from converters.coreml.graph import Style
from converters.vocoders.hifigan import hifigan
from tests.backends.packaged.packages import FP16, FP32, ROUNDED, functions, saved
from tests.random_model import draw

CONFIGS = {
    "1": MelHifiganConfig(num_mels=12, upsample_rates=(4, 2), upsample_kernel_sizes=(8, 4), upsample_initial_channel=16,
                          resblock_kernel_sizes=(3, 5), resblock_dilation_sizes=((1, 3), (1, 2))),
    "2": MelHifiganConfig(num_mels=12, resblock="2", upsample_rates=(4, 2), upsample_kernel_sizes=(8, 4),
                          upsample_initial_channel=16, resblock_kernel_sizes=(3, 5),
                          resblock_dilation_sizes=((1, 2), (2, 6))),
}
FRAMES = 5, 22
every_block = pytest.mark.parametrize("block", CONFIGS)


def network(block: str) -> MelHifigan:
    module, generator = MelHifigan(CONFIGS[block]), torch.Generator().manual_seed(5)
    for key, parameter in module.named_parameters():
        parameter.data = draw(key, parameter, generator)
    return module.eval().requires_grad_(False)


def mel(length: int, batch: int = 1) -> np.ndarray:
    return np.random.default_rng(length).standard_normal((batch, 12, length), dtype=np.float32)


@every_block
@pytest.mark.parametrize(("style", "arithmetic", "least"), [
    (FP32, FP16, 100), (Style("fp16"), FP16, 60), (Style("fp16"), ROUNDED, 50)])
def test_windows_join_to_the_whole(tmp_path, block, style, arithmetic, least):
    module = network(block)
    graphs = [hifigan(module, frames, "vocoder") for frames in FRAMES]
    vocoder = HifiganVocoder(functions(graphs, saved(graphs, style, tmp_path), arithmetic))
    for length, batch in ((1, 1), (22, 1), (61, 2)):
        expected = module(torch.from_numpy(mel(length, batch))).numpy()
        assert snr_db(expected, vocoder(mel(length, batch))) >= least


@every_block
def test_the_margin_covers_the_receptive_field_and_little_more(block):
    module, margin = deepcopy(network(block)).double(), CONFIGS[block].margin
    length = 60 + margin + 10
    x, hop = torch.from_numpy(mel(length)).double(), CONFIGS[block].hop
    whole = module(x)

    def change(frames: int) -> float:
        moved = module(x + (torch.arange(length) >= 60 + frames).double())
        return (moved - whole)[..., :60 * hop].abs().max().item()

    assert change(margin) == 0
    assert change(margin - 3) > 0


@pytest.mark.parametrize(("config", "margin"), [
    (MelHifiganConfig(), 14),
    (MelHifiganConfig(resblock="2", upsample_rates=(8, 8, 4), upsample_kernel_sizes=(16, 16, 8),
                      upsample_initial_channel=256, resblock_kernel_sizes=(3, 5, 7),
                      resblock_dilation_sizes=((1, 2), (2, 6), (3, 12))), 12)])
def test_official_sizes_use_the_widest_axis_well(config, margin):
    assert hifigan(MelHifigan(config), 62, "vocoder").name == f"vocoder_62_{margin}"
