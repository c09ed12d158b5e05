"""WaveGlow as graphs: windows join to the sound of one long call."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from ane.models.vocoders.segments import WaveglowVocoder
from ane.models.vocoders.waveglow import Waveglow, WaveglowConfig
from ane.system.decibels import snr_db
from converters.coreml.graph import Style
from converters.fastspeech.functions import windows
from converters.vocoders.waveglow import waveglow
from tests.backends.packaged.packages import FP16, FP32, ROUNDED, functions, saved
from tests.random_model import draw

# channels leave twice; every flow reads 7 groups of 16 samples on either side, 28 in all: 4 frames, and 2 for the mel
CONFIG = WaveglowConfig(n_mel_channels=12, n_flows=4, n_group=16, n_early_every=2, n_layers=3, n_channels=8,
                        upsample_kernel=600)
FRAMES = 5, 22


@pytest.fixture(scope="module")
def network() -> Waveglow:
    module, generator = Waveglow(CONFIG), torch.Generator().manual_seed(5)
    for key, parameter in module.named_parameters():
        scale = 0.1 if ".end." in key else 1
        parameter.data = scale * draw(key, parameter, generator)
    return module.eval().requires_grad_(False)


def inputs(length: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(length)
    mel = rng.standard_normal((batch, 12, length), dtype=np.float32)
    return mel, np.float32(0.6) * rng.standard_normal((batch, 256, length), dtype=np.float32)


@pytest.mark.parametrize(("style", "arithmetic", "least"), [
    (FP32, FP16, 100), (Style("fp16"), FP16, 60), (Style("fp16"), ROUNDED, 50)])
def test_windows_join_to_the_whole(tmp_path, network, style, arithmetic, least):
    graphs = [waveglow(network, frames) for frames in FRAMES]
    vocoder = WaveglowVocoder(functions(graphs, saved(graphs, style, tmp_path), arithmetic), CONFIG.n_group)
    for length, batch in ((1, 1), (22, 1), (61, 2)):
        mel, noise = inputs(length, batch)
        expected = network(torch.from_numpy(mel), torch.from_numpy(noise)).numpy()
        assert snr_db(expected, vocoder(mel, noise)) >= least


def test_the_margin_covers_the_receptive_field_and_little_more(network):
    margin, edge = CONFIG.margin, 20            # the sound depends on more frames before it than after it
    mel, noise = (torch.from_numpy(part).double() for part in inputs(edge + 10, 1))
    module = deepcopy(network).double()
    whole = module(mel, noise)

    def change(frames: int) -> float:
        moved = (torch.arange(mel.shape[2]) < edge - frames).double()
        return (module(mel + moved, noise + moved) - whole)[..., edge * 256:].abs().max().item()

    assert change(margin) == 0
    assert change(margin - 3) > 0


def test_official_sizes_use_the_widest_axis_well():
    assert WaveglowConfig().margin == 99
    assert windows(32, 99) == (14, 314)
