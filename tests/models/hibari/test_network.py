"""hibari's network: padding changes nothing, windows are the whole, and its prosody is that of the published graph."""

import numpy as np
import pytest
import torch

from ane.bundles import open_model
from ane.models.hibari.networks import NETWORKS
from ane.models.hibari.networks.hibari import Hibari, margins
from ane.models.phoneme_chunks import split_into_phonemes
from ane.models.vocoders.harmonic_noise import BINS, SPECTRA
from ane.system.decibels import snr_db
from ane.text.passages import Passage

TEXT = "The weather is going to be warm."
# of hibari.onnx of hibari-tts 0.2.1, run by ONNX Runtime: frames of 25 ms of each phoneme, and f0 in Hz
DURATIONS = [14, 1, *[2] * 16, 1, 2, 1, 1, 1, 2, 2, 3, 2, 3, 3, 3, 13, 6, 1]
PITCH = {36: 214.7, 48: 288.7, 60: 220.8, 72: 158.9, 84: 176.8, 96: 191.9, 108: 180.6, 120: 211.9}


@pytest.fixture(scope="module")
def network() -> Hibari:
    model = open_model("demo-fast")
    network = NETWORKS["hibari"].module(model.config("hibari")).eval()
    network.load_state_dict(model.tensors("hibari"))
    return network


def padded(x: torch.Tensor, more: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x (1, N, …) with ``more`` positions of padding, and its mask."""
    mask = torch.ones(1, x.shape[1] + more)
    mask[:, x.shape[1]:] = 0
    return torch.cat([x, torch.zeros(1, more, *x.shape[2:], dtype=x.dtype)], dim=1), mask


def test_durations_and_pitch_are_those_of_the_published_graph(network):
    [chunk] = split_into_phonemes([Passage(TEXT)], None, 402)
    ids = torch.from_numpy(chunk.ids)[None]
    with torch.no_grad():
        encoded = network.text(ids, torch.ones(ids.shape))[0]
        counts = (encoded[:, -1].exp() - 1).round().clamp(min=1).long()
        states = encoded[:, :network.config.prosody_width].repeat_interleave(counts, 0)[None]
        prosody = network.prosody(states, torch.ones(states.shape[:2]))[0].numpy()
    assert counts.tolist() == DURATIONS
    assert {frame: prosody[frame, 0] for frame in PITCH} == {frame: pytest.approx(f0, abs=4)
                                                             for frame, f0 in PITCH.items()}


@torch.no_grad()
def test_padding_changes_no_output(network):
    ids = torch.randint(1, 178, (1, 20), generator=torch.Generator().manual_seed(0))
    slow, frames = torch.randn(1, 30, network.config.prosody_width), torch.randn(1, 40, network.config.width + 2)
    for method, x, rate in ((network.text, ids, 1), (network.prosody, slow, 2), (network.spectra, frames, 1)):
        alone = method(x, torch.ones(x.shape[:2])).numpy()
        beside = method(*padded(x, 13))[:, :rate * x.shape[1]].numpy()
        assert snr_db(alone, beside) > 90


@torch.no_grad()
def test_a_window_with_its_margins_is_the_whole(network):
    frames = torch.randn(1, 120, network.config.width + 2, generator=torch.Generator().manual_seed(0))
    margin = margins(network.config)["spectra"]
    whole = network.spectra(frames, torch.ones(1, 120))
    assert whole.shape == (1, 120, SPECTRA * BINS)
    window = network.spectra(frames[:, 50 - margin:60 + margin], torch.ones(1, 10 + 2 * margin))
    assert snr_db(whole[0, 50:60].numpy(), window[0, margin:margin + 10].numpy()) > 90
    assert not np.allclose(whole[0, 50:60], network.spectra(frames[:, 50:60], torch.ones(1, 10))[0], atol=1e-3)
