"""The loss of the vocoders."""

import torch

from ane.audio.mel import HOP
from training.vocoders import EDGE, largest_differences, without_edges


def test_a_click_in_silence_raises_the_loss():
    silence = torch.zeros(1, 4096)
    click = silence.clone()
    click[0, 2000] = 0.01
    assert (largest_differences(click) - largest_differences(silence)).sum() > 2
    assert (largest_differences(click) > largest_differences(silence)).sum() == 1


def test_the_loss_ignores_edges_of_a_crop_except_at_the_ends_of_its_clip():
    audio = torch.arange(20 * HOP)[None]
    assert without_edges(audio).tolist() == audio[:, EDGE * HOP:-EDGE * HOP].tolist()
    assert without_edges(audio, at_start=True).tolist() == audio[:, :-EDGE * HOP].tolist()
    assert without_edges(audio, at_end=True).tolist() == audio[:, EDGE * HOP:].tolist()
